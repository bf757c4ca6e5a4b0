"""The learner: moves the thresholds of a part against each other, by the gradient of the loss under the fixed total.

With P = <dL/dS, sign(w) 1[S != 0]> the loss changes by G = dL/dlog alpha = -alpha P where a threshold moves alone. But
the total is held by a shared offset: raising one threshold lowers all others. Along the constraint the gradient is

    D_l = G_l - (f_l / F) * sum_j G_j,

with f_l the cost of the weights that a threshold meets per unit of log alpha, and F their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from softprune.goals.constraint import ConstrainedTensor, Part
from softprune.goals.scan import Array, flat_like, for_each, numbers, rows_of, signed_sums
from softprune.methods.transforms import Solved

# Running averages of D and of its square, in steps: about ten and a hundred.
KEEP_PULL, KEEP_FORCE = 0.9, 0.99
# No step moves a threshold by more than this factor (in log alpha), whatever the gradient says.
LARGEST_STEP = 0.1


@torch.no_grad()
def observe(part: Part, *, loss_scale: float = 1.0) -> None:
    """Take in the gradients of the step that is about to be made.

    Args:
        part: whose thresholds learn.
        loss_scale: the factor on the gradients, where a fused optimizer under GradScaler gets them scaled. It changes
            during the training, and what is averaged over steps must not.
    """
    learning = _learning(part)
    if not learning:
        return
    transforms = list(learning.values())
    along = for_each(_along, list(learning.items()), sum(one.target.raw.numel() for one in learning))
    alpha = torch.cat([transform.alpha.flatten() for transform in transforms])
    forces = torch.from_numpy(np.concatenate(along)).to(alpha).mul_(alpha).div_(-loss_scale)
    if not bool(torch.isfinite(forces).all()):
        return
    if all(one.settings.gradient == "projected" for one in learning):
        crossing = torch.cat([transform.crossing.flatten().mul(one.cost.each) for one, transform in learning.items()])
        total, summed = float(crossing.sum(dtype=torch.float64)), float(forces.sum(dtype=torch.float64))
        if total > 0.0:
            forces -= crossing.mul_(summed / total)
    _take_in_(transforms, forces)


def _along(learning: tuple[ConstrainedTensor, Solved]) -> Array:
    """P, flat, from the gradient of the raw weights: for those that live it is dL/dS in every backward mode."""
    raw, alpha = learning[0].target.raw, learning[1].alpha
    rows = rows_of(raw.detach(), alpha.shape)
    assert raw.grad is not None
    grad, thresholds = flat_like(raw.grad, raw), numbers(alpha.flatten().cpu())
    if rows.group is None:
        return signed_sums(rows, grad, thresholds)
    group = rows.group.numpy()
    return np.bincount(group, signed_sums(rows, grad, thresholds[group]), minlength=len(thresholds))


def _take_in_(transforms: Sequence[Solved], forces: Tensor) -> None:
    """Bring the running averages up to date; `forces` has D of all tensors one after the other."""
    sizes = [transform.s.numel() for transform in transforms]
    parts = zip(forces.split(sizes), forces.square().split(sizes), strict=True)
    counts = torch.stack([transform.observed for transform in transforms]).tolist()
    for transform, count, (force, square) in zip(transforms, counts, parts, strict=True):
        pull, size = transform.pull.view(-1), transform.force.view(-1)
        # As long as an average has seen fewer steps than it remembers it is a plain mean, so that it is right from the
        # first step on: one that starts from 0 would be too small, and the slower one by more.
        pull.lerp_(force.to(pull.dtype), max(1 - KEEP_PULL, 1 / (count + 1)))
        size.lerp_(square.to(size.dtype), max(1 - KEEP_FORCE, 1 / (count + 1)))
        transform.observed.add_(1)


@torch.no_grad()
def learn(part: Part, progress: float, total_steps: int) -> None:
    """Move every s. One common measure of the gradients' size is divided out, so neither the scale of the loss nor the
    optimizer of the weights plays a part, while tensors keep their say relative to each other."""
    learning = _learning(part)
    if not learning:
        return
    force = torch.cat([transform.force.flatten() for transform in learning.values()])
    size = math.sqrt(float(force.sum(dtype=torch.float64)) / len(force))
    if size == 0.0:
        return
    for one, transform in learning.items():
        # Cosine, with mean 1: `pace` is how far s can travel, in units of log alpha.
        rate = one.settings.pace / total_steps * (1 + math.cos(math.pi * min(progress, 1.0)))
        step = (transform.pull * (rate / size)).clamp_(-LARGEST_STEP, LARGEST_STEP)
        transform.s.sub_(step)


def _learning(part: Part) -> dict[ConstrainedTensor, Solved]:
    """The tensors whose thresholds are in use, may move, and that have a gradient."""
    movable = {t: t.transform for t in part.tensors if t.settings.pace > 0.0 and t.target.raw.grad is not None}
    if not movable:
        return {}
    alphas = [transform.alpha for transform in movable.values()]
    # One question to the device for all of them.
    used = torch.stack([alpha[0] if alpha.shape == (1,) else alpha.amax() for alpha in alphas]).tolist()
    return {one: transform for (one, transform), in_use in zip(movable.items(), used, strict=True) if in_use}
