"""DSR: dynamic sparse reparameterization (Mostafa and Wang, ICML 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softprune.methods.base import Context, Method, register
from softprune.methods.masks import moving, refuse_too_long, require_fraction, require_interval, share_out
from softprune.ops import at_random


@register("dsr")
@dataclass(frozen=True)
class DSR(Method):
    """Sparse from the first step on; weights move from tensors that lose many small ones to those that keep more.

    At intervals:

    1. in each tensor the weights with |w| < H go, but never the last one; K go in all;
    2. H is doubled if ``K < 0.9 * N``, halved if ``K > 1.1 * N``, with N the number that shall move;
    3. K weights are grown, in each tensor in proportion to what it still has, at random among the places that were
       empty before; what does not fit goes to the others. New weights begin at 0.

    Args:
        every: steps between two moves in the first quarter of the training; twice, four and eight times as many in the
            others. The paper has 1000 of 500,000.
        moves: N, as a fraction of all weights that are kept; the paper has 400,000 weights for ResNet50.
        threshold: H at first; the paper has 0.001.
        end: fraction of the training after which the masks stay; the paper has epoch 95 of 100.

    Deviations from the paper: where more go than there were empty places, those just emptied are drawn from too. Which
    layers stay dense (the paper: the first and the projections) is said by skip or rules.
    State: ``mask`` in the transform of each tensor; H in the sparsifier's memory.
    """

    role = "moved"
    paper = "Mostafa and Wang 2019"
    accepts = ("goal", "budget")
    moves_masks = True
    selects = False

    every: int = 25
    moves: float = 0.1
    threshold: float = 1e-3
    end: float = 0.95

    def __post_init__(self) -> None:
        require_interval(self.every, self.end)
        require_fraction("moves", self.moves)
        if not (isinstance(self.threshold, int | float) and 0.0 < self.threshold < float("inf")):
            raise ValueError(f"threshold is a positive number, got {self.threshold!r}")

    def check(self, ctx: Context) -> None:
        refuse_too_long(ctx, self.every, self.end)

    def after_step(self, ctx: Context) -> None:
        if ctx.progress > self.end or ctx.step % (self.every * 2 ** min(3, int(4 * ctx.progress))):
            return
        threshold = float(ctx.memory.setdefault("threshold", self.threshold))
        masks = {t.name: moving(t).mask for t in ctx.targets}
        gone = {t.name: below(t.raw.detach(), masks[t.name], threshold) for t in ctx.targets}
        moved = sum(int(g.sum()) for g in gone.values())
        wanted = self.moves * sum(ctx.kept.values())
        if moved < 0.9 * wanted:
            ctx.memory["threshold"] = 2 * threshold
        elif moved > 1.1 * wanted:
            ctx.memory["threshold"] = threshold / 2
        left = {name: int(mask.sum()) - int(gone[name].sum()) for name, mask in masks.items()}
        empty = {name: ~mask for name, mask in masks.items()}
        if moved > sum(int(places.sum()) for places in empty.values()):
            empty = {name: places | gone[name] for name, places in empty.items()}
        grown = share_out(moved, left, {name: int(places.sum()) for name, places in empty.items()})
        for target in ctx.targets:
            mask, lost = masks[target.name], gone[target.name]
            born = at_random(empty[target.name], grown[target.name], ctx.rng(target.name))
            target.raw.masked_fill_(lost | born, 0.0)
            ctx.forget(target, lost | born)
            mask.copy_((mask & ~lost) | born)


def below(w: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """The weights of the mask that are smaller than the threshold, without the largest if that would be all of them."""
    gone = mask & (w.abs() < threshold)
    if bool(gone.any()) and int(gone.sum()) == int(mask.sum()):
        gone.view(-1)[torch.where(mask, w.abs(), -1.0).argmax()] = False
    return gone
