"""SET: sparse evolutionary training (Mocanu et al., Nature Communications 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from softprune.methods.base import Context, Method, register
from softprune.methods.masks import due, moving, refuse_too_long, require_fraction, require_interval
from softprune.ops import at_random, largest


@register("set")
@dataclass(frozen=True)
class SET(Method):
    """Sparse from the first step on; at intervals each tensor drops its smallest weights and grows as many at random.

    With n weights in a tensor and ``k = floor(zeta * n)``: the n - k largest |w| stay, and k places are drawn among all
    others. What is new begins at 0, without momentum.

    Args:
        every: steps between two exchanges; the paper has one epoch.
        zeta: fraction exchanged; the paper has 0.3.
        end: fraction of the training after which the mask stays.

    Deviations from the paper: the smallest |w| go, as in the code of Evci et al., where the paper takes zeta of the
    positive and zeta of the negative weights and gives new ones random values; the mask stays after `end`.
    State: ``mask`` in the transform of each tensor.
    """

    role = "given"
    paper = "Mocanu et al. 2018"
    accepts = ("budget",)
    moves_masks = True
    selects = False

    every: int = 100
    zeta: float = 0.3
    end: float = 0.75

    def __post_init__(self) -> None:
        require_interval(self.every, self.end)
        require_fraction("zeta", self.zeta)

    def check(self, ctx: Context) -> None:
        refuse_too_long(ctx, self.every, self.end)

    def after_step(self, ctx: Context) -> None:
        if not due(ctx, self.every, self.end):
            return
        for target in ctx.targets:
            transform = moving(target)
            count = int(transform.mask.sum())
            moved = int(self.zeta * count)
            kept = largest(torch.where(transform.mask, target.raw.abs(), -1.0), count - moved)
            target.raw.masked_fill_(~kept, 0.0)
            ctx.forget(target, ~kept)
            transform.mask.copy_(kept | at_random(~kept, moved, ctx.rng(target.name)))
