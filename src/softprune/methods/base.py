"""The one interface that every method implements."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softprune.methods.transforms import SolvedThreshold, Transform


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


@dataclass(frozen=True)
class Pursuit:
    """How a method goes after a goal; what it does not say is the same for all of them.

    Args:
        pace: how far a threshold can travel against the others over a training, in units of log alpha; 0 leaves the
            distribution where it starts.
        gradient: "projected" along the fixed total, or "plain", as if the shared offset did not answer.
        start: the thresholds are first proportional to the "mean" size of each tensor's weights, or "equal".
        every: steps between two solutions; in between nothing moves.
        min_keep: weights that each tensor keeps whatever happens; 0 leaves it to the default floor.
    """

    pace: float = 0.0
    gradient: Literal["projected", "plain"] = "projected"
    start: Literal["mean", "equal"] = "equal"
    every: int = 1
    min_keep: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.pace, int | float) or isinstance(self.pace, bool) or not 0 <= self.pace < math.inf:
            raise ValueError(f"pace is a distance in units of log alpha, 0 or more; got {self.pace!r}")
        if self.gradient not in ("projected", "plain"):
            raise ValueError(f"gradient must be 'projected' or 'plain', got {self.gradient!r}")
        if self.start not in ("mean", "equal"):
            raise ValueError(f"start must be 'mean' or 'equal', got {self.start!r}")
        if not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1:
            raise ValueError(f"every is a number of steps, at least 1; got {self.every!r}")
        if not isinstance(self.min_keep, int) or isinstance(self.min_keep, bool) or self.min_keep < 0:
            raise ValueError(f"min_keep is a number of weights, 0 or more; got {self.min_keep!r}")


class Method(ABC):
    """An algorithm that decides which weights are zero.

    Subclasses are frozen dataclasses of hyper-parameters: hashable, without state, JSON in and out.
    All their tensors live in the transforms, so `model.state_dict()` is complete.
    """

    # What the method does with a budget: keeps it, moves it between tensors, or learns it.
    role: ClassVar[Literal["given", "moved", "learned"]]
    # Whether it does nothing by itself: it must be given a goal or a budget.
    needs_total: ClassVar[bool] = False

    @property
    def reads_weights(self) -> bool:
        """Whether its hooks look at whole weights, which no process has once a model is sharded."""
        return False

    @abstractmethod
    def transform(self, target: Target) -> Transform:
        """The map from the raw to the effective tensor of this target; refuses what it cannot do."""

    def solved(self, target: Target) -> SolvedThreshold:
        """The transform of this target under a goal or a budget, for methods whose total can be prescribed."""
        raise ValueError(f"{type(self).__name__} takes neither a goal nor a budget")

    @property
    def pursuit(self) -> Pursuit:
        """How it goes after a goal or a budget."""
        return Pursuit()

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
