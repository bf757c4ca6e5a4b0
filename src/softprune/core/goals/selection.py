"""Selection: the largest of many scaled weights, as many as a total allows, and the thresholds that part them exactly.

A weight w of a group with scale t (one per tensor, filter or weight) has the key |w| / t. Selected are the largest
keys; equal ones are taken in the order of the tensors and, within one, of memory. What comes out are thresholds
alpha, one per group, with |w| > alpha for exactly the selected weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softprune.core.goals.layout import flat, flat_like, lower_

# On a CPU weights are read in pieces of this many, so that what is made from them stays in the cache.
PIECE = 1 << 17
# Keys looked at to guess where the border lies (all tensors, and at least of each); then only what is near it is
# sorted.
SAMPLE, SAMPLE_OF_EACH = 1 << 17, 1 << 10
# Weights within this much of the border, in units of log key, tell how many a moving threshold would meet.
WINDOW = 0.1
# Where float16 ends: a weight that is this much larger than its threshold is not zero after subtracting it.
_LEAST_HALF = 2.0**-24


@dataclass
class Candidate:
    """One tensor that takes part.

    Args:
        w: the raw weights.
        scale: t, positive, of a shape that broadcasts to that of w.
        cost: what one kept weight adds to the total.
    """

    w: Tensor
    scale: Tensor
    cost: float = 1.0


@dataclass
class Selected:
    """What was selected of one tensor.

    Args:
        alpha: the thresholds, like the scale.
        kept: how many weights lie above them.
        crossing: how many weights lie within the window around the border, per group, and per unit of log alpha.
    """

    alpha: Tensor
    kept: int
    crossing: Tensor


@dataclass
class _Near:
    """The weights of one tensor whose keys are close to the border."""

    place: Tensor  # in the order of memory
    key: Tensor
    size: Tensor


def select(candidates: Sequence[Candidate], allowed: float) -> tuple[list[Selected], float]:
    """Keep the largest keys whose costs add up to at most `allowed`.

    Ties among equal weights that share a threshold are parted by lowering the losers, raw and pruned, by one unit in
    the last place.

    Args:
        candidates: the tensors.
        allowed: the total cost that may be kept.

    Returns:
        What was selected of each tensor, and the key of the border (0 if everything is kept).
    """
    everything = sum(c.w.numel() * c.cost for c in candidates)
    if allowed >= everything:
        return [_all_of(c) for c in candidates], 0.0
    stride = max(1, sum(c.w.numel() for c in candidates) // SAMPLE)
    samples = [_sample(c, stride) for c in candidates]
    low, high = _bracket(candidates, samples, allowed)
    while True:
        near, above = zip(*(_look(c, low, high) for c in candidates), strict=True)
        cost_above = sum(n * c.cost for n, c in zip(above, candidates, strict=True))
        cost_near = sum(len(n.key) * c.cost for n, c in zip(near, candidates, strict=True))
        # The border must lie strictly inside, with a weight on each side of it.
        if cost_above > allowed - max(c.cost for c in candidates) and high < math.inf:
            high = 1.5 * high if high < 1e30 else math.inf
        elif cost_above + cost_near <= allowed and low > 0.0:
            low = low / 1.5 if low > 1e-30 else 0.0
        else:
            break
    order, kept_until = _sort(candidates, near, allowed - cost_above)
    border = _border(near, order, kept_until, low)
    chosen = torch.zeros(len(order), dtype=torch.bool, device=order.device)
    chosen[order[:kept_until]] = True
    parts = chosen.split([len(n.key) for n in near])
    found = [
        Selected(_exact(c, n, keep, border, high), over + int(torch.count_nonzero(keep)), _crossing(c, sample, border))
        for c, n, keep, over, sample in zip(candidates, near, parts, above, samples, strict=True)
    ]
    return found, border


def _all_of(c: Candidate) -> Selected:
    return Selected(torch.zeros_like(c.scale), int(torch.count_nonzero(c.w)), torch.zeros_like(c.scale))


def _sample(c: Candidate, stride: int) -> tuple[Tensor, int]:
    """The keys of every n-th weight in memory, and n: the stride, or less for a small tensor."""
    step = max(1, min(stride, c.w.numel() // SAMPLE_OF_EACH))
    sizes = flat(c.w)[::step].abs().to(c.scale.dtype)
    return sizes / _scales(c, slice(None, None, step)), step


def _scales(c: Candidate, where: slice | Tensor) -> Tensor:
    """The scale of the weights at these places in memory; one number where it is one."""
    return c.scale.reshape(()) if c.scale.numel() == 1 else flat_like(c.scale.expand(c.w.shape), c.w)[where]


def _bracket(
    candidates: Sequence[Candidate], samples: Sequence[tuple[Tensor, int]], allowed: float
) -> tuple[float, float]:
    """Two keys that the border most likely lies between: three deviations of the sample around its own border."""
    # Of a small model the sample is nearly all: what is sorted here and what is sorted later should be about as much.
    total = sum(c.w.numel() for c in candidates)
    thin = max(1, round(sum(len(keys) for keys, _ in samples) / (2 * total ** (2 / 3))))
    samples = [(keys[::thin], step * thin) for keys, step in samples]
    key, order = torch.cat([keys for keys, _ in samples]).sort(descending=True)
    stands_for = [c.cost * c.w.numel() / len(keys) for c, (keys, _) in zip(candidates, samples, strict=True)]
    costs = torch.cat(
        [
            keys.new_full((len(keys),), value, dtype=torch.float64)
            for (keys, _), value in zip(samples, stands_for, strict=True)
        ]
    )[order]
    cumulated = costs.cumsum(0)
    if all(step == 1 for _, step in samples):
        deviation = 0.0
    else:
        deviation = 3.0 * float((costs[: max(1, int((cumulated <= allowed).sum()))].square().sum()).sqrt())
    margin = deviation + 2 * max(stands_for)
    last = len(key) - 1
    most = int(torch.count_nonzero(cumulated <= allowed - margin))
    least = int(torch.count_nonzero(cumulated <= allowed + margin))
    high = float(key[most - 1]) if most > 0 else math.inf
    low = float(key[least]) if least <= last else 0.0
    return low, high


def _look(c: Candidate, low: float, high: float) -> tuple[_Near, int]:
    """The weights with keys between low and high, and how many lie above."""
    w = flat(c.w)
    one = c.scale.numel() == 1
    scale = c.scale.reshape(()) if one else flat_like(c.scale.expand(c.w.shape), c.w)
    bottom, top = scale * low, scale * high + _slack(c) if high < math.inf else None
    places, sizes, above = [], [], 0
    piece = PIECE if w.device.type == "cpu" else max(1, w.numel())
    for start in range(0, w.numel(), piece):
        here = slice(start, start + piece)
        size = w[here].abs().to(c.scale.dtype)
        near = size > (bottom if one else bottom[here])
        if top is not None:
            over = size > (top if one else top[here])
            above += int(torch.count_nonzero(over))
            near ^= over
        (found,) = torch.nonzero(near, as_tuple=True)
        sizes.append(size[found])
        places.append(found + start)
    place, size = torch.cat(places), torch.cat(sizes)
    # In double precision different weights with one scale have different keys.
    return _Near(place, size.double() / (scale if one else scale[place]).double(), size), above


def _sort(candidates: Sequence[Candidate], near: Sequence[_Near], allowed: float) -> tuple[Tensor, int]:
    """The order of all near weights from the largest key down, and how many of them fit."""
    # Stable: equal keys stay in the order of the tensors and of memory.
    order = torch.sort(torch.cat([n.key for n in near]), descending=True, stable=True).indices
    costs = torch.cat([n.key.new_full((len(n.key),), c.cost) for n, c in zip(near, candidates, strict=True)])
    return order, int(torch.count_nonzero(costs[order].cumsum(0) <= allowed))


def _border(near: Sequence[_Near], order: Tensor, kept_until: int, low: float) -> float:
    """The key just below the last weight that is kept."""
    key = torch.cat([n.key for n in near])[order]
    return float(key[kept_until]) if kept_until < len(key) else low


def _exact(c: Candidate, near: _Near, keep: Tensor, border: float, high: float) -> Tensor:
    """Thresholds for one tensor: the scale times the border, moved where rounding or ties would part it wrongly."""
    groups = c.scale.numel()
    group = torch.zeros_like(near.place) if groups == 1 else _group(c, near.place)
    alpha = (c.scale.double() * border).to(c.scale.dtype).flatten()
    ceiling = _just_below(c, _reduce(near.size[keep], group[keep], groups, "amin", math.inf))
    if high < math.inf:  # below every weight that was counted without a closer look, too
        ceiling = torch.minimum(ceiling, (c.scale * high).flatten())
    lost, lost_group = near.size[~keep], group[~keep]
    while bool((tied := lost > ceiling[lost_group]).any()):
        lower_(c.w, near.place[~keep][tied])
        lost = flat(c.w)[near.place[~keep]].abs().to(lost.dtype)
    floor = _reduce(lost, lost_group, groups, "amax", 0.0)
    return torch.minimum(torch.maximum(alpha, floor), ceiling).view_as(c.scale)


def _crossing(c: Candidate, sample: tuple[Tensor, int], border: float) -> Tensor:
    """How many weights a threshold would meet per unit of log alpha, estimated on the sample."""
    keys, step = sample
    half = math.exp(WINDOW / 2)
    inside = ((keys > border / half) & (keys <= border * half)).to(c.scale.dtype)
    if c.scale.numel() == 1:
        return (inside.sum() * (step / WINDOW)).view_as(c.scale)
    places = torch.arange(0, c.w.numel(), step, device=c.w.device)
    counts = torch.zeros(c.scale.numel(), dtype=c.scale.dtype, device=c.scale.device)
    return counts.index_add_(0, _group(c, places), inside * (step / WINDOW)).view_as(c.scale)


def _group(c: Candidate, place: Tensor) -> Tensor:
    """Which scale a weight has, by its place in memory."""
    numbers = torch.arange(c.scale.numel(), device=c.scale.device).view(c.scale.shape).expand(c.w.shape)
    return flat_like(numbers, c.w)[place]


def _reduce(values: Tensor, group: Tensor, groups: int, how: str, empty: float) -> Tensor:
    result = torch.full((groups,), empty, dtype=values.dtype, device=values.device)
    return result.scatter_reduce_(0, group, values, how)


def _just_below(c: Candidate, size: Tensor) -> Tensor:
    """The largest threshold below a kept weight: after subtracting it the weight is still not zero in its own dtype."""
    return torch.minimum(torch.nextafter(size, torch.zeros_like(size)), size - _slack(c))


def _slack(c: Candidate) -> float:
    return _LEAST_HALF if c.w.dtype == torch.float16 else 0.0
