"""The variants of a method that rules have made, each with its tensors, and the calls of their hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from torch import nn
from torch.optim import Optimizer

from softprune.core.plan import Plan
from softprune.goals.select import keep_largest
from softprune.methods.base import Context, Method, Target

# Parameter -> its name, and a weight that it acts on.
Owners: TypeAlias = dict[nn.Parameter, tuple[str, nn.Parameter]]


class Variants:
    """Calls every variant's hooks with its own tensors.

    Attributes:
        targets: those of each variant.
        memories: numbers that each variant keeps from step to step; JSON-able.
        seed: of everything that is drawn at random.
    """

    def __init__(self, plan: Plan, model: nn.Module, seed: int) -> None:
        self.targets: dict[Method, list[Target]] = {}
        for planned in plan.managed:
            if planned.method is not None:
                self.targets.setdefault(planned.method, []).append(planned.target)
        self._kept = {p.target.name: p.kept for p in plan.managed if p.kept is not None}
        self._shared = plan.shared
        self._model = model
        self.seed = seed
        self.memories: list[dict[str, Any]] = [{} for _ in self.targets]

    def thresholds(self) -> Owners:
        """Every learnable threshold, with its name and a weight that it acts on."""
        return self._owners(lambda method, target: method.thresholds([target]))

    def undecayed(self) -> Owners:
        """Every other parameter that the methods brought, in the same way."""
        return self._owners(lambda method, target: method.undecayed([target]))

    def _owners(self, brought: Callable[[Method, Target], list[nn.Parameter]]) -> Owners:
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        owners: Owners = {}
        for method, targets in self.targets.items():
            for target in targets:
                for parameter in brought(method, target):
                    owners.setdefault(parameter, (names[parameter], target.raw))
        return owners

    def check(self, optimizers: Sequence[Optimizer], step: int, total_steps: int) -> None:
        """Let every variant refuse a training that cannot work."""
        for method, context in self._contexts(optimizers, step, total_steps, 1.0):
            method.check(context)

    def before_step(self, optimizers: Sequence[Optimizer], step: int, total_steps: int, loss_scale: float) -> None:
        for method, context in self._contexts(optimizers, step, total_steps, loss_scale):
            method.before_step(context)

    def after_step(self, optimizers: Sequence[Optimizer], step: int, total_steps: int) -> None:
        for method, context in self._contexts(optimizers, step, total_steps, 1.0):
            method.after_step(context)

    def _contexts(
        self, optimizers: Sequence[Optimizer], step: int, total_steps: int, loss_scale: float
    ) -> Iterator[tuple[Method, Context]]:
        for (method, targets), memory in zip(self.targets.items(), self.memories, strict=True):
            kept = {t.name: self._kept[t.name] for t in targets if t.name in self._kept}
            yield (
                method,
                Context(
                    step, total_steps, targets, optimizers, kept, self._shared, self.seed, memory, loss_scale,
                    keep_largest, self._model,
                ),
            )  # fmt: skip
