"""SNIP: pruning before training by connection sensitivity (Lee, Ajanthan and Torr, ICLR 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softprune.methods.base import Context, Method, Total, register
from softprune.methods.masks import MovingMask, moving
from softprune.methods.transforms import Target, Transform
from softprune.ops import largest


@register("snip")
@dataclass(frozen=True)
class SNIP(Method):
    """The first batch decides: kept are the weights with the largest ``|w * dL/dw|``, and the mask never changes.

    With a goal the scores of all tensors are compared, with a budget those of each. The first step is made with the
    mask already.

    Deviations from the paper: the score is taken at the weights as they are, from one batch of the training.
    State: ``mask`` in the transform of each tensor; all are kept until the first step.
    """

    role = "given"
    paper = "Lee et al. 2019"
    accepts = ("goal", "budget")
    moves_masks = True
    selects = False

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        return MovingMask(torch.ones_like(target.raw, dtype=torch.bool))

    def before_step(self, ctx: Context) -> None:
        if ctx.step:
            return
        scores = {t.name: (t.raw * t.raw.grad).abs() for t in ctx.targets if t.raw.grad is not None}
        silent = [t.name for t in ctx.targets if t.name not in scores]
        if silent:
            raise ValueError(f"{silent[0]} has no gradient in the first step, so SNIP cannot judge it: skip it")
        if ctx.shared:
            assert ctx.keep_largest is not None
            masks = ctx.keep_largest(scores, sum(ctx.kept.values()))
        else:
            masks = {name: largest(score, ctx.kept[name]) for name, score in scores.items()}
        for target in ctx.targets:
            assert target.raw.grad is not None
            mask = masks[target.name]
            moving(target).mask.copy_(mask)
            target.raw.masked_fill_(~mask, 0.0)
            target.raw.grad.masked_fill_(~mask, 0.0)
