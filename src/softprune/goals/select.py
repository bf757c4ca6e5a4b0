"""Selection: the largest of many scaled weights, as many as a total allows, and the thresholds that part them exactly.

A weight w of a group with scale t (one per tensor, filter or weight) has the key |w| / t. Selected are the largest
keys; equal ones are taken in the order of the tensors and, within one, of memory. What comes out are thresholds alpha,
one per group, with |w| > alpha for exactly the selected weights. Bounds around the border between kept and pruned
weights, from a sample or from the last borders, decide how many weights are looked at closely, and never what is
selected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from softprune.budget.costs import Cost, PerWeight
from softprune.goals.scan import Array, InRange, Rows, find, flat, for_each, lower_, numbers, rows_of

# Keys looked at to guess where the border lies, and how many weights a moving threshold would meet (of all tensors,
# and at least of each).
SAMPLE, SAMPLE_OF_EACH = 1 << 17, 1 << 10
# Weights within this much of the border, in units of log key, tell how many a moving threshold would meet.
NEAR_BORDER = 0.1
# A guess is widened to this multiple of how far the last ones were off, and a miss counts half as much at each step: it
# costs one more scan, and so do many weights to look at.
MARGIN, FORGET = 4.0, 0.5
# A guess that would have more weights looked at than this multiple of the usual number is no better than a sample.
TOO_MANY = 8.0
# Where float16 ends: a weight that is this much larger than its threshold is not zero after subtracting it.
_LEAST_HALF = 2.0**-24


class Bounds(NamedTuple):
    """Two keys that the border most likely lies between."""

    low: float
    high: float


class Sample(NamedTuple):
    """The sizes of every `step`-th weight of a tensor in memory, and their scales; `row` is None if it has one row."""

    size: Array
    scale: Array
    step: int
    row: Array | None


@dataclass
class Predictor:
    """Where the last borders lay, to guess the next. Only a hint: it is in no checkpoint."""

    last: float | None = None  # log of the last border; None before the first
    stride: float = 0.0  # how far it moved in the last step
    miss: float = 0.0  # how far the guesses were off lately
    weights_per_log: float = 0.0  # the weights near it, per unit of log key

    def guess(self, total: int) -> Bounds | None:
        """Where the next border lies if it goes on as it went; so wide that total^(2/3) / 4 weights are inside."""
        if self.last is None or self.weights_per_log <= 0.0:
            return None
        few = total ** (2 / 3) / 4
        width = max(few / (2 * self.weights_per_log), MARGIN * self.miss)
        if 2 * width * self.weights_per_log > TOO_MANY * few:
            return None
        middle = self.last + self.stride
        return Bounds(math.exp(middle - width), math.exp(middle + width))

    def note(self, border: float, weights_per_log: float) -> None:
        """Take in where the border came to lie."""
        if border <= 0.0:
            self.last = None
            return
        border_log = math.log(border)
        if self.last is not None:
            self.miss = max(abs(border_log - self.last - self.stride), FORGET * self.miss)
            self.stride = border_log - self.last
        self.last, self.weights_per_log = border_log, weights_per_log


class Window(NamedTuple):
    """The weights of a tensor whose keys lie within bounds, and how many lie above; with the row and key of each.

    In double precision different weights with one scale have different keys.
    """

    found: InRange
    row: Array | None
    key: Array


@dataclass
class Ranked:
    """One tensor that takes part.

    Args:
        w: the raw weights.
        scale: t, positive, of a shape that broadcasts to that of w.
        cost: what its kept weights add to the total.
    """

    w: Tensor
    scale: Tensor
    cost: Cost = PerWeight()  # noqa: RUF009
    _windows: dict[Bounds, Window] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def rows(self) -> Rows:
        return rows_of(self.w, self.scale.shape)

    @cached_property
    def groups(self) -> Array | None:
        """The index of each row's scale among the scales; None where it is the row's own."""
        return None if self.rows.group is None else self.rows.group.numpy()

    @cached_property
    def scales(self) -> Array:
        """The scale of each row."""
        scale: Array = self.scale.detach().flatten().cpu().numpy()
        return scale if self.groups is None else scale[self.groups]

    @property
    def slack(self) -> float:
        return _LEAST_HALF if self.w.dtype == torch.float16 else 0.0

    def window(self, bounds: Bounds) -> Window:
        """What lies within bounds; what has just been seen is not read again."""
        if bounds not in self._windows:
            self.forget()
            self._windows[bounds] = _window(self, bounds)
        return self._windows[bounds]

    def forget(self) -> None:
        """What was seen does not hold for weights that have changed."""
        self._windows.clear()


def _window(r: Ranked, bounds: Bounds) -> Window:
    # The sizes that the bounds mean, rounded outwards, one per row.
    exact, dtype = r.scales.astype(np.float64), r.scales.dtype
    bottom = np.nextafter((exact * bounds.low).astype(dtype), dtype.type(0.0))
    top = np.nextafter((exact * bounds.high).astype(dtype), dtype.type(math.inf))
    found = find(r.rows, bottom, top + dtype.type(r.slack))
    row = None if r.rows.count == 1 else found.position // r.rows.columns
    return Window(found, row, found.size / (r.scales[0] if row is None else r.scales[row]).astype(np.float64))


@dataclass
class Selection:
    """Which weights are selected."""

    border: float  # the largest key that is not (0 if everything is)
    bounds: Bounds  # that the border lies in
    keep: list[Array]  # of those within the bounds, per tensor, whether they are selected
    kept: list[int]  # how many are selected of each tensor

    @property
    def weights_per_log(self) -> float:
        """Weights per unit of log key near the border."""
        low, high = self.bounds
        return sum(map(len, self.keep)) / math.log(high / low) if 0.0 < low < high < math.inf else 0.0


class Thresholds(NamedTuple):
    """What parts the selected weights of one tensor from the others."""

    alpha: Tensor  # the thresholds, like the scale
    kept: int  # how many weights lie above them
    crossing: Tensor  # how many weights lie near the border, per group, and per unit of log alpha


def select(tensors: Sequence[Ranked], allowed: float, *, guess: Bounds | None = None) -> Selection | None:
    """The largest keys whose costs add up to at most `allowed`; no weight is touched. None if all weights fit.

    `guess` is where the border may lie. A good one saves time; none changes the result.
    """
    if allowed >= sum(spent(r.cost, r.w.numel()) for r in tensors):
        return None
    total = sum(r.w.numel() for r in tensors)
    bounds = guess or _sampled_bounds(tensors, allowed)
    guessed = guess is not None
    while True:
        windows = for_each(partial(Ranked.window, bounds=bounds), tensors, total)
        room = allowed - sum(spent(r.cost, window.found.above) for r, window in zip(tensors, windows, strict=True))
        border, chosen = _split(tensors, windows, room)
        low, high = bounds
        # Keys and thresholds are rounded: a border strictly inside is what makes the bounds play no part in the
        # result. Of those outside none is then on the wrong side.
        if high < math.inf and (room < 0 or border >= high):
            # From 0, where all keys of the sample are, no factor leads away.
            bounds = Bounds(low, 1.5 * high if 0.0 < high < 1e30 else math.inf)
        elif low > 0.0 and border <= low:
            bounds = Bounds(low / 1.5 if low > 1e-30 else 0.0, high)
        else:
            break
        if guessed:
            bounds, guessed = _sampled_bounds(tensors, allowed), False
    keep = np.split(chosen, np.cumsum([len(window.key) for window in windows])[:-1])
    kept = [window.found.above + int(np.count_nonzero(k)) for window, k in zip(windows, keep, strict=True)]
    return Selection(border, bounds, keep, kept)


def set_thresholds_(tensors: Sequence[Ranked], selection: Selection | None) -> list[Thresholds]:
    """The thresholds of a selection; None keeps all weights.

    Ties among equal weights that share a threshold are parted by lowering the losers, raw and pruned, by one unit in
    the last place.
    """
    if selection is None:
        zeros = [torch.zeros_like(r.scale) for r in tensors]
        return [Thresholds(z, int(torch.count_nonzero(r.w)), z.clone()) for r, z in zip(tensors, zeros, strict=True)]
    stride, found = _stride(tensors), []
    for r, keep, kept in zip(tensors, selection.keep, selection.kept, strict=True):
        alpha = _exact(r, r.window(selection.bounds), keep, selection.border)
        crossing = density_at_border(r.rows, sample(r.rows, r.scales, stride), selection.border)
        if r.groups is not None:
            crossing = np.bincount(r.groups, crossing, minlength=r.scale.numel())
        like_scale = (torch.from_numpy(t).to(r.scale).view_as(r.scale) for t in (alpha, crossing))
        found.append(Thresholds(next(like_scale), kept, next(like_scale)))
        r.forget()
    return found


def _split(tensors: Sequence[Ranked], windows: Sequence[Window], room: float) -> tuple[float, Array]:
    """The largest key that does not fit any more (0 if all do), and which of the weights do."""
    key = np.concatenate([window.key for window in windows])
    # A weight costs what it adds to those of its tensor with larger keys, so a sum over the largest is their cost.
    cost = np.concatenate(
        [
            np.full(len(window.key), r.cost.each)
            if r.cost.linear
            else in_order(window.key, r.cost.steps(window.found.above, len(window.key)))
            for r, window in zip(tensors, windows, strict=True)
        ]
    )
    border = _first_out(key, cost, room)
    chosen = key > border
    # Equal keys fit in the order of the tensors and of memory.
    (tied,) = (key == border).nonzero()
    left = room - float(cost[chosen].sum())
    chosen[tied[: np.searchsorted(cost[tied].cumsum(), left, side="right")]] = True
    return border, chosen


def _first_out(key: Array, cost: Array, room: float) -> float:
    """The first key from the largest down with which the costs are more than there is room for; 0 if they never are."""
    if room < 0.0 or room >= float(cost.sum()):
        return float(key.max(initial=0.0)) if room < 0.0 else 0.0
    if (cost == 1.0).all():
        index = len(key) - 1 - math.floor(room)
        return float(np.partition(key, index)[index])
    order = np.argsort(-key)
    return float(key[order[np.searchsorted(cost[order].cumsum(), room, side="right")]])


def _exact(r: Ranked, window: Window, keep: Array, border: float) -> Array:
    """Thresholds for one tensor: the scale times the border, moved where rounding or ties would part it wrongly."""
    found = window.found
    scale: Array = r.scale.detach().flatten().cpu().numpy()
    alpha = (scale.astype(np.float64) * border).astype(scale.dtype)
    group = np.zeros(len(keep), np.int64) if window.row is None else window.row
    group = group if r.groups is None else r.groups[group]
    least = _extreme(np.minimum, found.size[keep], group[keep], np.full_like(scale, math.inf))
    # The largest threshold below a kept weight: after subtracting it the weight is still not zero in its own dtype.
    ceiling = np.minimum(np.nextafter(least, scale.dtype.type(0.0)), least - scale.dtype.type(r.slack))
    lost, lost_group, position = found.size[~keep], group[~keep], found.position[~keep]
    while (tied := lost > ceiling[lost_group]).any():
        lower_(r.w, torch.from_numpy(position[tied]).to(r.w.device))
        where = torch.from_numpy(position).to(r.w.device)
        lost = flat(r.w)[where].abs().to(r.scale.dtype).cpu().numpy()
    floor = _extreme(np.maximum, lost, lost_group, np.zeros_like(scale))
    exact: Array = np.minimum(np.maximum(alpha, floor), ceiling)
    return exact


def _extreme(better: np.ufunc, values: Array, group: Array, best: Array) -> Array:
    """The smallest or largest value of each group, or what was best before."""
    if len(best) == 1 and len(values):
        best[0] = better(best[0], better.reduce(values))
    else:
        better.at(best, group, values)
    return best


def spent(cost: Cost, count: float) -> float:
    """What this many weights cost; without a call where every weight costs the same, since every step asks for it."""
    return cost.each * count if cost.linear else cost.of(count)


def in_order(keys: Array, steps: Array) -> Array:
    """The steps of a cost for weights in the order of memory: the largest key takes the first, equal ones in order."""
    if len(steps) < 2 or steps.min() == steps.max():
        return steps
    placed = np.empty_like(steps)
    placed[np.argsort(-keys, kind="stable")] = steps
    return placed


# Samples: where the border most likely lies, and how many weights lie near it.


def _stride(tensors: Sequence[Ranked]) -> int:
    return max(1, math.ceil(sum(r.w.numel() for r in tensors) / SAMPLE))


def _sampled_bounds(tensors: Sequence[Ranked], allowed: float) -> Bounds:
    stride = _stride(tensors)
    samples = [sample(r.rows, r.scales, stride) for r in tensors]
    return sampled_bounds(samples, [r.w.numel() for r in tensors], [r.cost for r in tensors], allowed)


def sample(w: Rows, scale: Array, stride: int) -> Sample:
    """Of every `stride`-th weight, or of more in a small tensor; on the host."""
    step = max(1, min(stride, len(w.flat) // SAMPLE_OF_EACH))
    # Few numbers: on the host, and not by torch's threads, whose start costs more than the work.
    size = np.abs(numbers(w.flat[::step].cpu()))
    if w.count == 1:
        return Sample(size, scale, step, None)
    row = np.arange(0, len(w.flat), step) // w.columns
    return Sample(size, scale[row], step, row)


def sampled_bounds(samples: Sequence[Sample], lengths: Sequence[int], costs: Sequence[Cost], allowed: float) -> Bounds:
    """Three deviations of the sample around its own border; `lengths` are the numbers of weights of the tensors."""
    # Of a small model the sample is nearly all: what is sorted here and what is sorted later should be about as much.
    thin = max(1, round(sum(len(s.size) for s in samples) / (2 * sum(lengths) ** (2 / 3))))
    parts = [s.size[::thin] / (s.scale if s.row is None else s.scale[::thin]) for s in samples]
    stands_for = np.concatenate(
        [
            np.full(len(keys), cost.each * n / len(keys)) if cost.linear else in_order(keys, cost.sampled(n, len(keys)))
            for keys, n, cost in zip(parts, lengths, costs, strict=True)
        ]
    )
    key = np.nan_to_num(np.concatenate(parts), nan=0.0, posinf=math.inf)
    order = np.argsort(-key)
    key, cost = key[order], stands_for[order]
    cumulated = cost.cumsum()
    deviation = 0.0
    if thin > 1 or any(s.step > 1 for s in samples):
        inside = max(1, int(np.count_nonzero(cumulated <= allowed)))
        deviation = 3.0 * math.sqrt(float(np.square(cost[:inside]).sum()))
    margin = deviation + 2 * float(stands_for.max())
    most = int(np.count_nonzero(cumulated <= allowed - margin))
    least = int(np.count_nonzero(cumulated <= allowed + margin))
    return Bounds(float(key[least]) if least < len(key) else 0.0, float(key[most - 1]) if most > 0 else math.inf)


def density_at_border(w: Rows, s: Sample, border: float) -> Array:
    """How many weights of each row a threshold would meet per unit of log alpha, estimated on the sample."""
    number = s.scale.dtype.type
    half = math.exp(NEAR_BORDER / 2)
    inside = (s.size > s.scale * number(border / half)) & (s.size <= s.scale * number(border * half))
    if s.row is None:
        return np.array([np.count_nonzero(inside) * (s.step / NEAR_BORDER)])
    counts: Array = np.bincount(s.row[inside], minlength=w.count) * (s.step / NEAR_BORDER)
    return counts


def keep_largest(scores: Mapping[str, Tensor], total: int) -> dict[str, Tensor]:
    """Masks of the `total` largest scores, none negative; equal ones in the order of the tensors and of memory.

    Every process of DistributedDataParallel has the same scores and so the same masks.
    """
    # Ties are parted by lowering the losers, so a copy is needed.
    tensors = [Ranked(score.detach().clone(), score.new_ones(1)) for score in scores.values()]
    found = set_thresholds_(tensors, select(tensors, total))
    masks = {name: r.w > f.alpha for name, r, f in zip(scores, tensors, found, strict=True)}
    # No threshold has zeros above it: where they are needed, they are taken one by one.
    missing = total - sum(int(mask.sum()) for mask in masks.values())
    for mask in masks.values() if missing > 0 else ():
        places = (~mask).view(-1).nonzero().view(-1)[:missing]
        mask.view(-1)[places] = True
        missing -= len(places)
    return masks
