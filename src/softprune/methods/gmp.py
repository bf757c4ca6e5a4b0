"""GMP: gradual magnitude pruning (Zhu and Gupta 2017; Gale, Elsen and Hooker 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from softprune.methods.base import Context, GoalSettings, Method, Total, register
from softprune.methods.transforms import SolvedMask, Target, Transform
from softprune.ops import Backward, masked


@register("gmp")
@dataclass(frozen=True)
class GMP(Method):
    """At intervals the smallest weights are masked, more of them each time; the rest trains on.

    The sparsity rises as ``s_f * (1 - (1 - x)^3)`` with the progress x of the ramp (`schedule=cubic(...)`). With a
    budget every tensor has its own threshold, with a goal all share one (global magnitude).

    Args:
        every: steps between two masks; between them the mask is fixed.
        min_keep: under a goal, weights that each tensor keeps whatever happens; by default a twentieth of what it would
            have if all tensors were equally dense.

    Deviations from the paper: thresholds come from exact counts, not from a histogram.
    State: ``mask`` in the transform of each tensor.
    """

    role = "given"
    paper = "Zhu and Gupta 2017; Gale et al. 2019"
    accepts = ("goal", "budget")

    every: int = 16
    min_keep: int = 0

    _backward: ClassVar[Backward] = masked

    @property
    def goal_settings(self) -> GoalSettings:
        return GoalSettings(every=self.every, min_keep=self.min_keep)

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        return SolvedMask(target.raw, backward=self._backward)

    def check(self, ctx: Context) -> None:
        if self.every > ctx.total_steps:
            raise ValueError(
                f"masks are renewed every {self.every} steps, but the training has {ctx.total_steps}: lower every"
            )
