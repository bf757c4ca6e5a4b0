"""A method as somebody else would write it, in one file."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from softprune.methods import Method, register
from softprune.methods.masks import MovingMask, due, refuse_too_long, require_interval
from softprune.ops import largest


@register("own-swap")
@dataclass(frozen=True)
class Swap(Method):
    """At intervals each tensor swaps its smallest weight for the pruned one with the largest momentum."""

    role: ClassVar = "given"
    paper: ClassVar = ""
    accepts: ClassVar = ("budget",)
    moves_masks: ClassVar = True
    selects: ClassVar = False

    every: int = 50
    end: float = 0.8

    def __post_init__(self):
        require_interval(self.every, self.end)

    def transform(self, target, total, mask):
        return MovingMask(mask, dense_grad=True)

    def check(self, ctx):
        refuse_too_long(ctx, self.every, self.end)

    def after_step(self, ctx):
        for target in ctx.targets:
            mask = target.transform.mask
            if due(ctx, self.every, self.end) and not mask.all():
                smallest = mask & ~largest(torch.where(mask, target.raw.abs(), -1.0), int(mask.sum()) - 1)
                moved = target.raw.detach().abs()  # pruned weights begin each step at 0: how far the step led
                born = largest(torch.where(mask, -1.0, moved), 1)
                mask.copy_((mask & ~smallest) | born)
                target.raw.masked_fill_(born, 0.0)
            target.raw.masked_fill_(~mask, 0.0)
