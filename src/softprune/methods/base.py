"""The one interface that every method implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softprune.methods.transforms import Transform


@dataclass(frozen=True, eq=False)
class Target:
    """One managed tensor.

    Args:
        name: its attribute path, the key in budgets, reports and checkpoints.
        sites: every (module, attribute) that reads it; more than one where weights are tied.
    """

    name: str
    sites: tuple[tuple[nn.Module, str], ...]

    @property
    def module(self) -> nn.Module:
        return self.sites[0][0]

    @property
    def tensor(self) -> str:
        return self.sites[0][1]

    @property
    def managed(self) -> bool:
        return self.tensor not in self.module._parameters

    @property
    def shape(self) -> torch.Size:
        """Known also for a weight that something else computes from several tensors or keeps beside its own."""
        if not self.managed:
            return self.raw.shape
        lists = self.module._modules.get("parametrizations")
        transforms = lists[self.tensor] if lists is not None and self.tensor in lists else None  # type: ignore[operator,index]
        original = None if transforms is None else transforms._parameters.get("original")
        return (self.effective if original is None else original).shape

    @property
    def raw(self) -> nn.Parameter:
        """The Parameter that the optimizer moves; looked up anew, since sharding may replace it."""
        if not self.managed:
            return self.module._parameters[self.tensor]  # type: ignore[return-value]
        return self.module.parametrizations[self.tensor].original  # type: ignore[index,union-attr,return-value]

    @property
    def transform(self) -> Transform:
        return self.module.parametrizations[self.tensor][0]  # type: ignore[index,return-value]

    @property
    def effective(self) -> Tensor:
        return getattr(self.module, self.tensor)


@dataclass(frozen=True)
class Context:
    """What a hook of a method may read.

    Args:
        step: optimizer steps completed; in `after_step` the one just made is counted.
        total_steps: optimizer steps of the whole training.
        targets: the tensors that this method instance manages.
        optimizers: the attached optimizers.
    """

    step: int
    total_steps: int
    targets: Sequence[Target]
    optimizers: Sequence[Optimizer]


class Method(ABC):
    """An algorithm that decides which weights are zero.

    Subclasses are frozen dataclasses of hyper-parameters: hashable, without state, JSON in and out.
    All their tensors live in the transforms, so `model.state_dict()` is complete.
    """

    # What the method does with a budget: keeps it, moves it between tensors, or learns it.
    role: ClassVar[Literal["given", "moved", "learned"]]

    @property
    def reads_weights(self) -> bool:
        """Whether its hooks look at whole weights, which no process has once a model is sharded."""
        return False

    @abstractmethod
    def transform(self, target: Target) -> Transform:
        """The map from the raw to the effective tensor of this target; refuses what it cannot do."""

    def link(self, transforms: Mapping[str, Transform], methods: Mapping[str, Method]) -> None:  # noqa: B027
        """Share parameters between the transforms of one model; called once, before they are installed.

        Args:
            transforms: tensor name -> its transform.
            methods: tensor name -> this method as the rules refined it for the tensor.
        """

    def thresholds(self, targets: Sequence[Target]) -> list[nn.Parameter]:
        """The parameters beside the weights that the optimizer must train, each once."""
        return []

    def before_step(self, ctx: Context) -> None:  # noqa: B027
        """Gradients are ready, weights have not moved. Runs without gradient tracking."""

    def after_step(self, ctx: Context) -> None:  # noqa: B027
        """Weights have moved. Runs without gradient tracking."""
