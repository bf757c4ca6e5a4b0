"""Brackets: two keys that the border between kept and pruned weights most likely lies between.

A bracket decides how many weights must be looked at closely, and never what is selected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from softprune.core.goals.layout import Rows
from softprune.core.goals.price import Price, in_order
from softprune.core.goals.sweep import Array, numbers

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


def sampled(samples: Sequence[Sample], lengths: Sequence[int], prices: Sequence[Price], allowed: float) -> Bracket:
    """Three deviations of the sample around its own border.

    Args:
        samples: of each tensor.
        lengths: the number of weights of each.
        prices: what the kept weights of each add to the total.
        allowed: the total that may be kept.
    """
    # Of a small model the sample is nearly all: what is sorted here and what is sorted later should be about as much.
    thin = max(1, round(sum(len(s.size) for s in samples) / (2 * sum(lengths) ** (2 / 3))))
    parts = [s.size[::thin] / (s.scale if s.row is None else s.scale[::thin]) for s in samples]
    stands_for = np.concatenate(
        [in_order(keys, price.sampled(n, len(keys))) for keys, n, price in zip(parts, lengths, prices, strict=True)]
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


def crossing(w: Rows, s: Sample, border: float) -> Array:
    """How many weights of each row a threshold would meet per unit of log alpha, estimated on the sample."""
    number = s.scale.dtype.type
    half = math.exp(WINDOW / 2)
    inside = (s.size > s.scale * number(border / half)) & (s.size <= s.scale * number(border * half))
    if s.row is None:
        return np.array([np.count_nonzero(inside) * (s.step / WINDOW)])
    counts: Array = np.bincount(s.row[inside], minlength=w.count) * (s.step / WINDOW)
    return counts
