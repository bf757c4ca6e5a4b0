"""IMP: iterative magnitude pruning with rewinding (Han et al. 2015; Frankle et al. 2020; Renda et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from softprune.goals.base import Staircase, begins_round
from softprune.methods.base import Context, GoalSettings, Method, Total, register
from softprune.methods.masks import Remembered, is_count
from softprune.methods.transforms import SolvedMask, Target, Transform


@register("imp")
@dataclass(frozen=True)
class IMP(Method):
    """Train, prune the smallest weights, go back, and train again what is left.

    The training is divided into R rounds of equal length. After each but the last the mask becomes ``mask and |w| is
    among the largest that are left``, so that the density in round r (from 0) is ``d^(r / (R - 1))`` of a goal d: the
    first round is dense, the last trains at exactly d. With a goal all tensors share one threshold, with a budget each
    has its own. Pruned weights stay pruned, and the optimizer begins anew.

    The learning rate must begin anew too: `softprune train` sees to it, in your own loop `softprune.restarted` does.

    Args:
        rounds: R, at least 2. The more, the less is pruned at once and the shorter is each training; Frankle et al.
            prune a fifth each time, which is 11 rounds for a sparsity of 0.9.
        rewind: "weights" puts every parameter and buffer of the model, biases and batch norm too, back to its value
            early in the first round, and later rounds go on with the learning rate of then (Frankle et al.); "rate"
            keeps the weights and goes back in the learning rate alone (Renda et al.).
        rewind_at: the fraction of the first round to go back to; 0 is the initial values, which large networks do not
            train from.
        min_keep: under a goal, weights that each tensor keeps whatever happens; by default a twentieth of what it would
            have if all tensors were equally dense.

    Deviations from the paper: there every round is a whole training, here all of them are one; the fraction that is
    pruned follows from the goal; the floor under min_keep.
    State: ``mask`` in the transform of each tensor; in the first of them ``remembered``, the values to go back to: as
    much memory as the model.
    """

    role = "given"
    paper = "Han et al. 2015; Frankle et al. 2020; Renda et al. 2020"
    accepts = ("goal", "budget")

    rounds: int = 5
    rewind: Literal["weights", "rate"] = "weights"
    rewind_at: float = 0.05
    min_keep: int = 0

    def __post_init__(self) -> None:
        if not is_count(self.rounds, least=2):
            raise ValueError(
                f"rounds is a number of at least 2, as weights are pruned between them; got {self.rounds!r}"
            )
        if self.rewind not in ("weights", "rate"):
            raise ValueError(f"rewind must be 'weights' or 'rate', got {self.rewind!r}")
        if not 0.0 <= self.rewind_at < 1.0:
            raise ValueError(f"rewind_at is a fraction of the first round, from 0 to below 1; got {self.rewind_at!r}")
        super().__post_init__()

    @property
    def restart_at(self) -> float:
        return self.rewind_at if self.rewind == "weights" else 0.0

    @property
    def goal_settings(self) -> GoalSettings:
        steps, at = Staircase(self.rounds), self.restart_at
        return GoalSettings(every=0, min_keep=self.min_keep, schedule=steps, rounds=self.rounds, restart_at=at)

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        return SolvedMask(target.raw, nested=True)

    def link(self, model: nn.Module, transforms: Mapping[str, Transform], methods: Mapping[str, Method]) -> None:
        if self.rewind == "weights":
            next(iter(transforms.values())).remembered = Remembered(model)

    def check(self, ctx: Context) -> None:
        if ctx.total_steps < self.rounds:
            raise ValueError(f"{self.rounds} rounds do not fit into {ctx.total_steps} steps: lower rounds")
        # The last moment before a forward pass, which moves the statistics of batch norm.
        self._remember(ctx)

    def after_step(self, ctx: Context) -> None:
        self._remember(ctx)
        if not begins_round(ctx.step, ctx.total_steps, self.rounds):
            return
        # The masks have been renewed already, from the trained weights.
        if self.rewind == "weights":
            model, remembered = _remembered(ctx)
            remembered.put_back_(model)
        ctx.forget_all()

    def _remember(self, ctx: Context) -> None:
        if self.rewind == "weights" and ctx.step == int(self.rewind_at * ctx.total_steps / self.rounds):
            model, remembered = _remembered(ctx)
            remembered.take_(model)


def _remembered(ctx: Context) -> tuple[nn.Module, Remembered]:
    assert ctx.model is not None
    return ctx.model, next(module for module in ctx.model.modules() if isinstance(module, Remembered))
