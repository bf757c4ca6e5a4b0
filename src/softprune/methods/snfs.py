"""SNFS: sparse networks from scratch, or sparse momentum (Dettmers and Zettlemoyer 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from softprune.methods.base import Context, Method, Total, register
from softprune.methods.masks import (
    MovingMask,
    due,
    moving,
    refuse_too_long,
    require_fraction,
    require_interval,
    share_out,
)
from softprune.methods.transforms import Target, Transform
from softprune.ops import largest


@register("snfs")
@dataclass(frozen=True)
class SNFS(Method):
    """Sparse from the first step on; momentum says which tensors need weights, and where.

    The gradient and so the momentum M of all weights are dense, the weights are masked after each step. At intervals,
    with a rate ``p = p_1 + (p_0 - p_1) / 2 * (1 + cos(pi * t / T))``:

    1. each tensor loses the ``ceil(p * n)`` smallest of its n weights; one that is nearly dense (sparsity below 0.2)
       and more important than the average loses at most its sparsity;
    2. all that were lost are shared out in proportion to the mean |M| of the weights that lived;
    3. each tensor grows its share at the empty places with the largest |M|; no tensor fills more than 99 % of them, the
       rest goes to the others.

    Args:
        every: steps between two moves; the paper has one epoch.
        rate: p_0; the paper has 0.5.
        last_rate: p_1; 0.005 in the authors' code.
        end: fraction of the training after which the masks stay.

    Deviations from the paper: weights are shared out in whole numbers, which needs no correction for rounding; the
    masks stay at the end, so that what was grown last can be trained.
    State: ``mask`` in the transform of each tensor; the momentum is the optimizer's.
    """

    role = "moved"
    paper = "Dettmers and Zettlemoyer 2019"
    accepts = ("goal", "budget")
    moves_masks = True

    every: int = 100
    rate: float = 0.5
    last_rate: float = 0.005
    end: float = 0.95

    def __post_init__(self) -> None:
        require_interval(self.every, self.end)
        require_fraction("rate", self.rate)
        require_fraction("last_rate", self.last_rate)

    def transform(self, target: Target, total: Total, mask: Tensor | None) -> Transform:
        assert mask is not None
        return MovingMask(mask, dense_grad=True)

    def check(self, ctx: Context) -> None:
        refuse_too_long(ctx, self.every, self.end)
        groups = [(optimizer, group) for optimizer in ctx.optimizers for group in optimizer.param_groups]
        for target, (optimizer, group) in product(ctx.targets, groups):
            held = any(parameter is target.raw for parameter in group["params"])
            if held and not (group.get("momentum") or group.get("betas")):
                raise ValueError(
                    f"SNFS reads the momentum, which {type(optimizer).__name__} has not for {target.name}: "
                    "set momentum=0.9, or use Adam"
                )

    def after_step(self, ctx: Context) -> None:
        for target in ctx.targets:
            target.raw.masked_fill_(~moving(target).mask, 0.0)
        if due(ctx, self.every, self.end):
            self._move(ctx)

    def _move(self, ctx: Context) -> None:
        rate = self.last_rate + (self.rate - self.last_rate) / 2 * (1 + math.cos(math.pi * ctx.progress))
        momenta = {t.name: _momentum(ctx, t) for t in ctx.targets}
        living = {t.name: moving(t).mask for t in ctx.targets}
        importance = {name: float(momenta[name][mask].mean()) for name, mask in living.items()}
        average = sum(importance.values()) / len(importance)
        gone = {}
        for target in ctx.targets:
            mask = living[target.name]
            count, sparsity = int(mask.sum()), 1 - float(mask.double().mean())
            own = min(sparsity, rate) if sparsity < 0.2 and importance[target.name] > average else rate
            lost = min(count - 1, math.ceil(own * count))
            gone[target.name] = mask & ~largest(torch.where(mask, target.raw.abs(), -1.0), count - lost)
        total = sum(int(g.sum()) for g in gone.values())
        empty = {name: ~mask | gone[name] for name, mask in living.items()}
        room = {name: max(int(gone[name].sum()), int(0.99 * int(e.sum()))) for name, e in empty.items()}
        grown = share_out(total, importance, room)
        for target in ctx.targets:
            name, mask = target.name, living[target.name]
            target.raw.masked_fill_(gone[name], 0.0)
            born = largest(torch.where(empty[name], momenta[name], -1.0), grown[name])
            mask.copy_((mask & ~gone[name]) | born)


def _momentum(ctx: Context, target: Target) -> Tensor:
    """|M| of every weight; of Adam the step that it would make."""
    for optimizer in ctx.optimizers:
        state = optimizer.state.get(target.raw, {})
        if state.get("momentum_buffer") is not None:
            return state["momentum_buffer"].abs()
        if "exp_avg" in state:
            size = state["exp_avg_sq"].sqrt() if "exp_avg_sq" in state else state.get("exp_inf", 1.0)
            return (state["exp_avg"] / (size + 1e-8)).abs()
    return torch.zeros_like(target.raw)
