"""AutoSparse: learnable thresholds with gradient annealing (Kundu et al. 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from softprune.methods.base import Context, GoalSettings, Method, Total, register
from softprune.methods.soft_threshold import PAPER_G, STR
from softprune.methods.transforms import Target, Transform
from softprune.ops import G, annealed


@register("autosparse")
@dataclass(frozen=True)
class AutoSparse(Method):
    """STR in which pruned weights go on learning, ever less: a weight that was pruned too early comes back.

    Forward ``sign(w) * relu(|w| - g(s))`` with one learnt s per tensor; backward ``dL/dw = dL/dS`` for weights that
    live and ``a_t * dL/dS`` for the others, with ``a_t = leak * (1 + cos(pi * x)) / 2`` after the fraction x of the
    annealing: slow at first and at last, and 0 from `until` of the training on. The gradient of s is that of STR.

    Args:
        leak: a_0, the part of the gradient that pruned weights get at first. Without a goal more is less sparse.
        until: the fraction of the training after which they get none; the mask is then as in STR.
        s_init: where s starts without a goal.
        g: threshold function without a goal; sigmoid as in STR.
        min_keep: weights that each tensor keeps whatever happens; under a goal 0 stands for a twentieth of what the
            tensor would have if all were equally dense.
        pace: under a goal, how far s can travel against the others over the training, in units of log alpha.

    Deviations from the paper: a plain cosine, where the paper's decay has another form and other constants; decay of
    s as in STR; goals, and the floor under them.
    State: ``s`` and ``leak`` in the transform of each tensor; under a goal also the threshold and two running averages.
    """

    role = "learned"
    paper = "Kundu et al. 2023"
    accepts = ("none", "goal", "budget")

    leak: float = 0.75
    until: float = 0.9
    s_init: float = -3200.0
    g: G = PAPER_G
    min_keep: int = 0
    pace: float = 3.0

    @property
    def _inner(self) -> STR:
        """What it is but for the course of the annealing; it checks all settings."""
        backward = annealed(self.leak, until=self.until)
        return STR(self.s_init, self.g, backward=backward, min_keep=self.min_keep, pace=self.pace)

    @property
    def reads_weights(self) -> bool:
        return self._inner.reads_weights

    @property
    def goal_settings(self) -> GoalSettings:
        return self._inner.goal_settings

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        return self._inner.transform(target, total, mask)

    def leak_at(self, progress: float) -> float:
        """The part of the gradient that pruned weights get at a point of the training.

        >>> AutoSparse(leak=0.8, until=0.5).leak_at(0.25)
        0.4
        """
        return self.leak * (1.0 + math.cos(math.pi * min(1.0, progress / self.until))) / 2.0

    def after_step(self, ctx: Context) -> None:
        for target in ctx.targets:
            assert target.transform.leak is not None
            target.transform.leak.fill_(self.leak_at(ctx.progress))
