"""AC/DC: alternating compressed and decompressed training (Peste et al., NeurIPS 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softprune.methods.base import Context, GoalSettings, Method, Total, register
from softprune.methods.masks import is_count
from softprune.methods.transforms import SolvedMask, Target, Transform


@dataclass(frozen=True)
class Alternation:
    """Dense for `warmup`, then `phases` pairs of equal length, compressed and dense, then compressed for `final`.

    >>> alternate = Alternation()
    >>> [alternate(p) for p in (0.05, 0.12, 0.17, 0.8, 0.9)]
    [0.0, 1.0, 0.0, 0.0, 1.0]
    """

    warmup: float = 0.1
    final: float = 0.15
    phases: int = 7

    def __call__(self, progress: float) -> float:
        if progress >= 1.0 - self.final:
            return 1.0
        if progress < self.warmup:
            return 0.0
        # The last dense phase is twice as long as the others.
        slot = (1.0 - self.final - self.warmup) / (2 * self.phases + 1)
        return 1.0 if int((progress - self.warmup) / slot) % 2 == 0 and progress < 1.0 - self.final - 2 * slot else 0.0


@register("acdc")
@dataclass(frozen=True)
class ACDC(Method):
    """Phases with a fixed mask take turns with phases in which all weights train.

    Compress: the largest |w| of all tensors stay (with a budget, of each), the others are set to 0, and the mask is
    fixed. Decompress: all weights train again, those that were pruned from 0, without momentum.

    Args:
        warmup: fraction of the training before the first compression; the paper has 10 of 100 epochs.
        final: fraction of the training for the last compressed phase; the paper has 15 of 100 epochs.
        phases: compressed phases before that; the paper has 7, of 5 epochs each, and 5 dense ones between them.
        min_keep: under a goal, weights that each tensor keeps whatever happens; by default a twentieth of what it would
            have if all tensors were equally dense.

    Deviations from the paper: the floor. That pruned weights go on from 0 is how we read it.
    State: ``mask`` in the transform of each tensor.
    """

    role = "given"
    paper = "Peste et al. 2021"
    accepts = ("goal", "budget")

    warmup: float = 0.1
    final: float = 0.15
    phases: int = 7
    min_keep: int = 0

    def __post_init__(self) -> None:
        if not (0.0 <= self.warmup < 1.0 and 0.0 < self.final <= 1.0 - self.warmup):
            raise ValueError(
                f"warmup and final are fractions of the training that leave room between them, got {self.warmup} and "
                f"{self.final}"
            )
        if not is_count(self.phases, least=1):
            raise ValueError(f"phases is a number of at least 1, got {self.phases!r}")
        super().__post_init__()

    @property
    def goal_settings(self) -> GoalSettings:
        alternation = Alternation(self.warmup, self.final, self.phases)
        return GoalSettings(every=0, min_keep=self.min_keep, schedule=alternation)

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        return SolvedMask(target.raw)

    def check(self, ctx: Context) -> None:
        shortest = (1.0 - self.final - self.warmup) / (2 * self.phases + 1) * ctx.total_steps
        if shortest < 1.0:
            raise ValueError(
                f"{self.phases} phases do not fit into {ctx.total_steps} steps, {shortest:.2g} for each: lower phases"
            )

    def before_step(self, ctx: Context) -> None:
        # The masks were renewed after the last step; weights and momentum follow.
        compressed = self.goal_settings.schedule(ctx.progress) == 1.0
        if ctx.memory.get("compressed", False) == compressed:
            return
        ctx.memory["compressed"] = compressed
        for target in ctx.targets:
            assert isinstance(target.transform, SolvedMask)
            target.raw.masked_fill_(~target.transform.mask, 0.0)
            ctx.forget(target, torch.ones_like(target.transform.mask))
