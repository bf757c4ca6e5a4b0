"""Brackets: two keys that the border between kept and pruned weights most likely lies between.

A bracket decides how many weights must be looked at closely, and never what is selected.
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

from softprune.goals.cost import Cost, PerWeight
from softprune.goals.scan import Array, Found, Rows, find, flat, for_each, lower_, numbers, rows_of

# Keys looked at to guess where the border lies, and how many weights a moving threshold would meet (of all tensors,
# and at least of each).
SAMPLE, SAMPLE_OF_EACH = 1 << 17, 1 << 10
# Weights within this much of the border, in units of log key, tell how many a moving threshold would meet.
WINDOW = 0.1
# A guess is widened to this multiple of how far the last ones were off, and a miss counts half as much at each step: it
# costs one more sweep, and so do many weights to look at.
CAUTION, FORGET = 4.0, 0.5
# A guess that would have more weights looked at than this multiple of the usual number is no better than a sample.
TOO_MANY = 8.0


class Bracket(NamedTuple):
    low: float
    high: float


class Sample(NamedTuple):
    """The sizes of every n-th weight of a tensor in memory, the scales that they have, and n."""

    size: Array
    scale: Array
    step: int
    row: Array | None


@dataclass
class Trail:
    """Where the last borders of a part lay, to guess the next. Only a hint: it is in no checkpoint.

    Attributes:
        place: log of the last border; None before the first.
        stride: how far it moved in the last step.
        miss: how far the guesses were off lately.
        crowd: weights per unit of log key near it.
    """

    place: float | None = None
    stride: float = 0.0
    miss: float = 0.0
    crowd: float = 0.0

    def guess(self, total: int) -> Bracket | None:
        """Where the next border lies if it goes on as it went; so wide that total^(2/3) / 4 weights are inside."""
        if self.place is None or self.crowd <= 0.0:
            return None
        few = total ** (2 / 3) / 4
        width = max(few / (2 * self.crowd), CAUTION * self.miss)
        if 2 * width * self.crowd > TOO_MANY * few:
            return None
        middle = self.place + self.stride
        return Bracket(math.exp(middle - width), math.exp(middle + width))

    def note(self, border: float, crowd: float) -> None:
        """Take in where the border came to lie."""
        if border <= 0.0:
            self.place = None
            return
        place = math.log(border)
        if self.place is not None:
            self.miss = max(abs(place - self.place - self.stride), FORGET * self.miss)
            self.stride = place - self.place
        self.place, self.crowd = place, crowd


def sample(w: Rows, scale: Array, stride: int) -> Sample:
    """Of every `stride`-th weight, or of more in a small tensor; on the host."""
    step = max(1, min(stride, len(w.flat) // SAMPLE_OF_EACH))
    # Few numbers: on the host, and not by torch's threads, whose start costs more than the work.
    size = np.abs(numbers(w.flat[::step].cpu()))
    if w.count == 1:
        return Sample(size, scale, step, None)
    row = np.arange(0, len(w.flat), step) // w.columns
    return Sample(size, scale[row], step, row)


def sampled(samples: Sequence[Sample], lengths: Sequence[int], costs: Sequence[Cost], allowed: float) -> Bracket:
    """Three deviations of the sample around its own border.

    Args:
        samples: of each tensor.
        lengths: the number of weights of each.
        costs: what the kept weights of each add to the total.
        allowed: the total that may be kept.
    """
    # Of a small model the sample is nearly all: what is sorted here and what is sorted later should be about as much.
    thin = max(1, round(sum(len(s.size) for s in samples) / (2 * sum(lengths) ** (2 / 3))))
    parts = [s.size[::thin] / (s.scale if s.row is None else s.scale[::thin]) for s in samples]
    stands_for = np.concatenate(
        [in_order(keys, cost.sampled(n, len(keys))) for keys, n, cost in zip(parts, lengths, costs, strict=True)]
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
    return Bracket(
        float(key[least]) if least < len(key) else 0.0,
        float(key[most - 1]) if most > 0 else math.inf,
    )


def in_order(keys: Array, steps: Array) -> Array:
    """The steps of a cost for weights in the order of memory: the largest key takes the first, equal ones in order."""
    if len(steps) < 2 or steps.min() == steps.max():
        return steps
    placed = np.empty_like(steps)
    placed[np.argsort(-keys, kind="stable")] = steps
    return placed


def density_at_border(w: Rows, s: Sample, border: float) -> Array:
    """How many weights of each row a threshold would meet per unit of log alpha, estimated on the sample."""
    number = s.scale.dtype.type
    half = math.exp(WINDOW / 2)
    inside = (s.size > s.scale * number(border / half)) & (s.size <= s.scale * number(border * half))
    if s.row is None:
        return np.array([np.count_nonzero(inside) * (s.step / WINDOW)])
    counts: Array = np.bincount(s.row[inside], minlength=w.count) * (s.step / WINDOW)
    return counts


# A candidate: one tensor that takes part in a selection, and what was seen of it.


# Where float16 ends: a weight that is this much larger than its threshold is not zero after subtracting it.
_LEAST_HALF = 2.0**-24


@dataclass
class Candidate:
    """One tensor that takes part.

    Args:
        w: the raw weights.
        scale: t, positive, of a shape that broadcasts to that of w.
        cost: what its kept weights add to the total.
    """

    w: Tensor
    scale: Tensor
    cost: Cost = PerWeight()  # noqa: RUF009
    _looks: dict[Bracket, Look] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def rows(self) -> Rows:
        return rows_of(self.w, self.scale.shape)

    @cached_property
    def scales(self) -> Array:
        """One per row."""
        scale: Array = self.scale.detach().flatten().cpu().numpy()
        return scale if self.groups is None else scale[self.groups]

    @property
    def slack(self) -> float:
        return _LEAST_HALF if self.w.dtype == torch.float16 else 0.0

    @cached_property
    def groups(self) -> Array | None:
        """The place of each row's scale among the scales; None where it is the row's own."""
        return None if self.rows.group is None else self.rows.group.numpy()

    def look(self, bracket: Bracket) -> Look:
        """The weights whose keys are in the bracket; those that have just been seen are not read again."""
        if bracket not in self._looks:
            self.forget()
            self._looks[bracket] = _look(self, bracket)
        return self._looks[bracket]

    def forget(self) -> None:
        """What was seen does not hold for weights that have changed."""
        self._looks.clear()


@dataclass
class Look:
    """The weights of one tensor whose keys are close to the border.

    Args:
        found: these, and how many lie above.
        row: of each.
        key: of each. In double precision different weights with one scale have different keys.
    """

    found: Found
    row: Array | None
    key: Array


def _look(c: Candidate, bracket: Bracket) -> Look:
    bottom, top = _thresholds(c, bracket)
    found = find(c.rows, bottom, top + bottom.dtype.type(c.slack))
    row = None if c.rows.count == 1 else found.place // c.rows.columns
    return Look(found, row, found.size / (c.scales[0] if row is None else c.scales[row]).astype(np.float64))


def _thresholds(c: Candidate, bracket: Bracket) -> tuple[Array, Array]:
    """The sizes that the keys of a bracket mean, rounded outwards, one per row."""
    exact = c.scales.astype(np.float64)
    low, high = ((exact * key).astype(c.scales.dtype) for key in bracket)
    zero, infinity = low.dtype.type(0.0), low.dtype.type(math.inf)
    return np.nextafter(low, zero), np.nextafter(high, infinity)


# Selection: the largest of many scaled weights, as many as a total allows, and the thresholds that part them exactly.
#
# A weight w of a group with scale t (one per tensor, filter or weight) has the key |w| / t. Selected are the largest
# keys; equal ones are taken in the order of the tensors and, within one, of memory. What comes out are thresholds
# alpha, one per group, with |w| > alpha for exactly the selected weights.


@dataclass
class Choice:
    """Which weights are selected.

    Args:
        border: the largest key that is not (0 if everything is).
        bracket: that the border lies in.
        keep: of those close to the border, per candidate, whether they are selected.
        kept: how many are selected of each candidate.
    """

    border: float
    bracket: Bracket
    keep: list[Array]
    kept: list[int]

    @property
    def crowd(self) -> float:
        """Weights per unit of log key near the border."""
        low, high = self.bracket
        return sum(map(len, self.keep)) / math.log(high / low) if 0.0 < low < high < math.inf else 0.0


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


def select(
    candidates: Sequence[Candidate], allowed: float, *, guess: Bracket | None = None
) -> tuple[list[Selected], float]:
    """Keep the largest keys whose costs add up to at most `allowed`.

    Ties among equal weights that share a threshold are parted by lowering the losers, raw and pruned, by one unit in
    the last place.

    Args:
        candidates: the tensors.
        allowed: the total cost that may be kept.
        guess: where the border may lie. A good one saves time; none changes the result.

    Returns:
        What was selected of each tensor, and the key of the border (0 if everything is kept).
    """
    choice = choose(candidates, allowed, guess=guess)
    return part_(candidates, choice), 0.0 if choice is None else choice.border


def choose(candidates: Sequence[Candidate], allowed: float, *, guess: Bracket | None = None) -> Choice | None:
    """The selection without its thresholds: no weight is touched. None if all weights fit."""
    if allowed >= sum(c.cost.of(c.w.numel()) for c in candidates):
        return None
    total = sum(c.w.numel() for c in candidates)
    bracket = guess or _sampled(candidates, allowed)
    guessed = guess is not None
    while True:
        looks = for_each(partial(Candidate.look, bracket=bracket), candidates, total)
        room = allowed - sum(c.cost.of(look.found.above) for look, c in zip(looks, candidates, strict=True))
        border, chosen = _split(candidates, looks, room)
        low, high = bracket
        # Keys and thresholds are rounded: a border strictly inside is what makes the bracket play no part in the
        # result. Of those outside none is then on the wrong side.
        if high < math.inf and (room < 0 or border >= high):
            # From 0, where all keys of the sample are, no factor leads away.
            bracket = Bracket(low, 1.5 * high if 0.0 < high < 1e30 else math.inf)
        elif low > 0.0 and border <= low:
            bracket = Bracket(low / 1.5 if low > 1e-30 else 0.0, high)
        else:
            break
        if guessed:
            bracket, guessed = _sampled(candidates, allowed), False
    keep = np.split(chosen, np.cumsum([len(look.key) for look in looks])[:-1])
    kept = [look.found.above + int(np.count_nonzero(k)) for look, k in zip(looks, keep, strict=True)]
    return Choice(border, bracket, keep, kept)


def part_(candidates: Sequence[Candidate], choice: Choice | None) -> list[Selected]:
    """The thresholds of a selection (None keeps all weights); losing ties are lowered."""
    if choice is None:
        return [_all_of(c) for c in candidates]
    stride = _stride(candidates)
    found = []
    for c, keep, kept in zip(candidates, choice.keep, choice.kept, strict=True):
        alpha = _exact(c, c.look(choice.bracket), keep, choice.border)
        crossing = density_at_border(c.rows, sample(c.rows, c.scales, stride), choice.border)
        if c.groups is not None:
            crossing = np.bincount(c.groups, crossing, minlength=c.scale.numel())
        found.append(Selected(_like(c, alpha), kept, _like(c, crossing)))
        c.forget()
    return found


def _all_of(c: Candidate) -> Selected:
    return Selected(torch.zeros_like(c.scale), int(torch.count_nonzero(c.w)), torch.zeros_like(c.scale))


def _stride(candidates: Sequence[Candidate]) -> int:
    return max(1, math.ceil(sum(c.w.numel() for c in candidates) / SAMPLE))


def _sampled(candidates: Sequence[Candidate], allowed: float) -> Bracket:
    stride = _stride(candidates)
    samples: list[Sample] = [sample(c.rows, c.scales, stride) for c in candidates]
    return sampled(samples, [c.w.numel() for c in candidates], [c.cost for c in candidates], allowed)


def _split(candidates: Sequence[Candidate], looks: Sequence[Look], room: float) -> tuple[float, Array]:
    """The largest key that does not fit any more (0 if all do), and which of the weights do."""
    key = np.concatenate([look.key for look in looks])
    # A weight costs what it adds to those of its tensor with larger keys, so a sum over the largest is their price.
    steps = [c.cost.steps(look.found.above, len(look.key)) for c, look in zip(candidates, looks, strict=True)]
    cost = np.concatenate([in_order(look.key, step) for look, step in zip(looks, steps, strict=True)])
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
        place = len(key) - 1 - math.floor(room)
        return float(np.partition(key, place)[place])
    order = np.argsort(-key)
    return float(key[order[np.searchsorted(cost[order].cumsum(), room, side="right")]])


def _exact(c: Candidate, look: Look, keep: Array, border: float) -> Array:
    """Thresholds for one tensor: the scale times the border, moved where rounding or ties would part it wrongly."""
    scale: Array = c.scale.detach().flatten().cpu().numpy()
    alpha = (scale.astype(np.float64) * border).astype(scale.dtype)
    group = np.zeros(len(keep), np.int64) if look.row is None else look.row
    group = group if c.groups is None else c.groups[group]
    least = _extreme(np.minimum, look.found.size[keep], group[keep], np.full_like(scale, math.inf))
    # The largest threshold below a kept weight: after subtracting it the weight is still not zero in its own dtype.
    ceiling = np.minimum(np.nextafter(least, scale.dtype.type(0.0)), least - scale.dtype.type(c.slack))
    lost, lost_group, place = look.found.size[~keep], group[~keep], look.found.place[~keep]
    while (tied := lost > ceiling[lost_group]).any():
        lower_(c.w, torch.from_numpy(place[tied]).to(c.w.device))
        where = torch.from_numpy(place).to(c.w.device)
        lost = flat(c.w)[where].abs().to(c.scale.dtype).cpu().numpy()
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


def _like(c: Candidate, values: Array) -> Tensor:
    return torch.from_numpy(values).to(dtype=c.scale.dtype, device=c.scale.device).view_as(c.scale)


# The largest of many scores over all tensors of a model, to the weight.


def keep_largest(scores: Mapping[str, Tensor], total: int) -> dict[str, Tensor]:
    """Masks of the `total` largest scores, none negative; equal ones in the order of the tensors and of memory.

    Every process of DistributedDataParallel has the same scores and so the same masks.
    """
    # Ties are parted by lowering the losers, so a copy is needed.
    candidates = [Candidate(score.detach().clone(), score.new_ones(1)) for score in scores.values()]
    found, _ = select(candidates, total)
    masks = {name: c.w > f.alpha for name, c, f in zip(scores, candidates, found, strict=True)}
    # No threshold has zeros above it: where they are needed, they are taken one by one.
    missing = total - sum(int(mask.sum()) for mask in masks.values())
    for mask in masks.values() if missing > 0 else ():
        places = (~mask).view(-1).nonzero().view(-1)[:missing]
        mask.view(-1)[places] = True
        missing -= len(places)
    return masks
