"""S-LATS: soft threshold pruning as ISTA with a constant penalty (Chen et al., ICLR 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from softprune.goals.base import constant
from softprune.methods.base import Context, GoalSettings, Method, Total, register
from softprune.methods.transforms import SolvedThreshold, Target, Transform
from softprune.ops import straight_through


@register("slats")
@dataclass(frozen=True)
class SLATS(Method):
    """One soft threshold on all weights that rises as the integral of a cosine; pruned weights get the whole gradient.

    After n of N steps it is ``D * (n / N + sin(pi * n / N) / pi)``: with a cosine learning rate this is proximal
    gradient descent on the loss plus a constant L1 penalty.

    Args:
        min_keep: weights that each tensor keeps whatever happens; by default a twentieth of what it would have if all
            tensors were equally dense.

    Deviations from the paper: there D is given, and the sparsity is what comes out; here D is at every step the
    threshold that would meet the total now, so that at the end it is met exactly. The floor under min_keep.
    State: ``alpha`` (D) and ``rise`` in the transform of each tensor.
    """

    role = "learned"
    paper = "Chen et al. 2023"
    accepts = ("goal", "budget")

    min_keep: int = 0

    @property
    def goal_settings(self) -> GoalSettings:
        return GoalSettings(min_keep=self.min_keep, schedule=constant())

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        return SolvedThreshold(target.raw, backward=straight_through, rises=True)

    def after_step(self, ctx: Context) -> None:
        # The sine of pi is not exactly 0, and the last threshold must be exactly D.
        done = ctx.step >= ctx.total_steps
        rise = 1.0 if done else ctx.progress + math.sin(math.pi * ctx.progress) / math.pi
        for target in ctx.targets:
            assert isinstance(target.transform, SolvedThreshold) and target.transform.rise is not None
            target.transform.rise.fill_(rise)
