"""The learner: moves the thresholds of a part against each other, by the gradient of the loss under the fixed total.

With P = <dL/dS, sign(w) 1[S != 0]> the loss changes by G = dL/dlog alpha = -alpha P where a threshold moves alone. But
the total is held by a shared offset: raising one threshold lowers all others. Along the constraint the gradient is

    D_l = G_l - (f_l / F) * sum_j G_j,

with f_l the cost of the weights that a threshold meets per unit of log alpha, and F their sum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softprune.core.goals.part import Member, Part
from softprune.core.goals.solver import transform_of
from softprune.ops import shrink

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
    learning = [m for m in part.members if _learns(m)]
    if not learning:
        return
    forces = [_force(m) / loss_scale for m in learning]
    if not all(bool(torch.isfinite(g).all()) for g in forces):
        return
    if all(m.method.pursuit.gradient == "projected" for m in learning):
        crossing = [transform_of(m).crossing * m.cost for m in learning]
        total = sum(float(f.sum()) for f in crossing)
        summed = sum(float(g.sum()) for g in forces)
        if total > 0.0:
            forces = [g - f * (summed / total) for g, f in zip(forces, crossing, strict=True)]
    for member, force in zip(learning, forces, strict=True):
        transform = transform_of(member)
        transform.pull.lerp_(force, 1 - KEEP_PULL)
        transform.force.lerp_(force.square(), 1 - KEEP_FORCE)


@torch.no_grad()
def learn(part: Part, progress: float, total_steps: int) -> None:
    """Move every s. One common measure of the gradients' size is divided out, so neither the scale of the loss nor the
    optimizer of the weights plays a part, while tensors keep their say relative to each other."""
    learning = [m for m in part.members if _learns(m)]
    count = sum(transform_of(m).s.numel() for m in learning)
    size = math.sqrt(sum(float(transform_of(m).force.sum()) for m in learning) / count) if learning else 0.0
    if size == 0.0:
        return
    for member in learning:
        transform = transform_of(member)
        # Cosine, with mean 1: `pace` is how far s can travel, in units of log alpha.
        rate = member.method.pursuit.pace / total_steps * (1 + math.cos(math.pi * min(progress, 1.0)))
        transform.s.sub_((transform.pull * (rate / size)).clamp_(-LARGEST_STEP, LARGEST_STEP))


def _learns(member: Member) -> bool:
    """Whether its threshold is in use, may move, and heard of the loss."""
    transform = transform_of(member)
    return member.method.pursuit.pace > 0.0 and bool(transform.alpha.any()) and member.target.raw.grad is not None


def _force(member: Member) -> Tensor:
    """G, from the gradient of the raw weights: for those that live it is dL/dS in every backward mode."""
    transform, raw = transform_of(member), member.target.raw
    assert raw.grad is not None
    signs = shrink(raw.detach(), transform.alpha).sign()
    along = (raw.grad * signs).to(transform.alpha.dtype)
    return -transform.alpha * along.sum_to_size(transform.alpha.shape)
