"""Affordable: how many units, the largest keys first, a bill allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from softprune.core.goals.bill import Bill
from softprune.core.goals.bracket import Bracket
from softprune.core.goals.candidate import Candidate
from softprune.core.goals.sweep import Array

# Units are few: all of their keys are looked at.
EVERYTHING = Bracket(0.0, math.inf)


@dataclass(frozen=True)
class Affordable:
    """How many units, and what one of each tensor costs about then."""

    units: int
    prices: list[float]


def affordable(
    bill: Bill, candidates: Sequence[Candidate], floors: Sequence[int], allowed: float, *, about: int
) -> Affordable:
    """The units that each tensor keeps in any case, and then the largest keys, as many as the bill allows.

    Found is a number of units that fit, while with the next one they do not. That holds also where the bill does not
    rise with every unit.

    Args:
        bill: what units cost.
        candidates: the importances.
        floors: the number of units that each of them keeps.
        allowed: the total.
        about: where the search begins: how many units there are now.
    """
    bill = bill.now()
    keys = [_keys(c) for c in candidates]
    starts = np.cumsum([0, *map(len, keys)])
    key = np.concatenate(keys)
    alive = np.zeros(len(key), np.bool_)
    for start, mine, floor in zip(starts, keys, floors, strict=False):
        alive[start + np.argsort(-mine, kind="stable")[:floor]] = True
    alive &= key > 0.0  # one that is 0 by itself cannot be kept
    more = np.argsort(-key, kind="stable")
    more = more[(key[more] > 0.0) & ~alive[more]]
    least = int(np.count_nonzero(alive))
    fits = most_that_fit(lambda n: bill.total(_parts(alive, more[:n], starts)) <= allowed, len(more), about - least)
    return Affordable(least + fits, bill.prices(_parts(alive, more[:fits], starts)))


def most_that_fit(fits: Callable[[int], bool], count: int, about: int) -> int:
    """A number from 0 to count that fits (0 does), while the next one does not: by growing steps from `about`, then
    by halving."""
    low, high, step = 0, count + 1, 1
    probe = min(max(about, 1), count)
    while high - low > 1:
        if fits(probe):
            low = probe
        else:
            high = probe
        if low == 0 or high == count + 1:
            probe = min(low + step, count) if low else max(high - step, 1)
            step *= 2
        else:
            probe = (low + high) // 2
    return low


def _parts(alive: Array, more: Array, starts: Array) -> list[Array]:
    both = alive.copy()
    both[more] = True
    return np.split(both, starts[1:-1])


def _keys(c: Candidate) -> Array:
    look = c.look(EVERYTHING)
    key = np.zeros(c.w.numel())
    key[look.found.place] = look.key
    return key
