"""DNW: discovering neural wirings (Wortsman, Farhadi and Rastegari, NeurIPS 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from softprune.goals.base import constant
from softprune.methods.base import GoalSettings, Method, Total, register
from softprune.methods.transforms import SolvedMask, Target, Transform
from softprune.ops import straight_through


@register("dnw")
@dataclass(frozen=True)
class DNW(Method):
    """At every step the largest weights are used, and all of them learn.

    Forward ``w * 1[|w| is among the k largest of its tensor]``; backward as if there were no mask: a pruned weight gets
    the gradient of the place where it would be, and comes back when it has grown. The whole sparsity holds from the
    first step on.

    Deviations from the paper: none; with a goal instead of a budget, all tensors share one threshold.
    State: ``mask`` in the transform of each tensor.
    """

    role = "given"
    paper = "Wortsman et al. 2019"
    accepts = ("goal", "budget")

    @property
    def goal_settings(self) -> GoalSettings:
        return GoalSettings(schedule=constant())

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        return SolvedMask(target.raw, backward=straight_through)
