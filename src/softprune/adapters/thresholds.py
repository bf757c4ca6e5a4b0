"""Thresholds in the loop of a framework: their decay, and gradient clipping, which leaves them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from softprune.budget.budget import Budget
from softprune.core.groups import check_decay
from softprune.core.rule import Rule
from softprune.goals.base import Goal
from softprune.goals.goal import Rank


def refuse_decay(decay: float | None, goal: Goal | Rank | None, budget: Budget | None, rules: Iterable[Rule]) -> None:
    """Raise for a threshold decay that is invalid or without effect: goals and budgets set the thresholds."""
    if decay is None:
        return
    check_decay("threshold_decay", decay)
    if goal is not None or budget is not None or any(rule.goal is not None for rule in rules):
        raise ValueError(
            "threshold_decay has no effect under a goal or a budget, which set the thresholds: leave it out"
        )


class ThresholdsAside:
    """Hides the gradients of thresholds from clipping, and gives them back when the step begins.

    A framework clips whatever has a gradient between backward and the step. That would weaken the loss, which holds a
    threshold back, and not the decay, which drives it. Attach the sparsifier to the optimizers after this, so that it
    sees the gradients given back.
    """

    def __init__(self, thresholds: Iterable[nn.Parameter], optimizers: Sequence[Optimizer]) -> None:
        self._thresholds = tuple(thresholds)
        self._kept: list[tuple[nn.Parameter, Tensor | None]] = []
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._on_step)

    def take(self) -> None:
        self._kept = [(s, s.grad) for s in self._thresholds]
        for s in self._thresholds:
            s.grad = None

    def _on_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        closure = kwargs.get("closure")
        if closure is None:
            self._give_back()
            return None

        # Backward and clipping happen inside of it. It runs before the step, at whose beginning gradients are read.
        def run() -> Any:
            loss = closure()
            self._give_back()
            return loss

        ready = [run()]
        return args, {**kwargs, "closure": lambda: ready.pop() if ready else run()}

    def _give_back(self) -> None:
        for s, grad in self._kept:
            s.grad = grad
        self._kept = []
