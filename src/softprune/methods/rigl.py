"""RigL: drop the smallest weights, grow where the gradient is largest (Evci et al., ICML 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softprune.methods.base import Context, Method, register
from softprune.methods.masks import due, moving, refuse_too_long, require_fraction, require_interval
from softprune.ops import largest


@register("rigl")
@dataclass(frozen=True)
class RigL(Method):
    """Sparse from the first step on; at intervals each tensor exchanges some of its weights.

    After t steps, with n weights in a tensor and ``k = floor(f * n)``, ``f = alpha / 2 * (1 + cos(pi * t / T_end))``:

    - drop: the n - k largest |w| of the mask stay;
    - grow: among all others, those just dropped too, the k with the largest |dL/dw| of the whole batch join.

    Weights that join from outside begin at 0, without momentum. The exchange takes the place of an optimizer step.

    Args:
        every: steps between two exchanges; the paper has 100.
        alpha: fraction exchanged at first; the paper has 0.3.
        end: fraction of the training after which the mask stays; the paper has 25,000 of 32,000 steps.

    Deviations from the paper: equal sizes are told apart by position, not by noise.
    State: ``mask`` in the transform of each tensor, and whether the dense gradient is asked for.
    """

    role = "given"
    paper = "Evci et al. 2020"
    accepts = ("budget",)
    moves_masks = True

    every: int = 100
    alpha: float = 0.3
    end: float = 0.75

    def __post_init__(self) -> None:
        require_interval(self.every, self.end)
        require_fraction("alpha", self.alpha)

    def check(self, ctx: Context) -> None:
        refuse_too_long(ctx, self.every, self.end)

    def before_step(self, ctx: Context) -> None:
        if not due(ctx, self.every, self.end):
            return
        fraction = self.alpha / 2 * (1 + math.cos(math.pi * ctx.progress / self.end))
        for target in ctx.targets:
            transform = moving(target)
            if target.raw.grad is not None:
                mask = exchange(target.raw.detach(), target.raw.grad, transform.mask, fraction)
                born = mask & ~transform.mask
                target.raw.masked_fill_(born | ~mask, 0.0)
                ctx.forget(target, born | ~mask)
                transform.mask.copy_(mask)
            transform.dense_grad.fill_(False)
        ctx.skip_step()

    def after_step(self, ctx: Context) -> None:
        # The next backward pass is the one whose gradient decides.
        if due(ctx, self.every, self.end):
            for target in ctx.targets:
                moving(target).dense_grad.fill_(True)


def exchange(w: Tensor, grad: Tensor, mask: Tensor, fraction: float) -> Tensor:
    """The mask after dropping this fraction of its weights and growing as many.

    >>> mask = torch.tensor([True, True, False, False])
    >>> exchange(torch.tensor([0.1, -2.0, 0.0, 0.0]), torch.tensor([1.0, 9.0, 3.0, -5.0]), mask, 0.5)
    tensor([False,  True, False,  True])
    """
    count = int(mask.sum())
    moved = int(fraction * count)
    kept = largest(torch.where(mask, w.abs(), -1.0), count - moved)
    return kept | largest(torch.where(kept, -1.0, grad.abs()), moved)
