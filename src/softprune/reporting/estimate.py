"""What several runs of one kind measured: a mean, how far they scatter, and differences of pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

NAN = float("nan")
# Half the width of a 95 % interval in standard errors (Student's t), by degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_STUDENT_LATER = ((20, 2.131), (30, 2.086), (60, 2.042), (120, 2.0))


@dataclass(frozen=True)
class Estimate:
    """A mean and what it rests on.

    Args:
        mean: NaN if nothing was measured.
        deviation: the standard deviation of single values; NaN for fewer than two.
        n: how many values.
    """

    mean: float
    deviation: float
    n: int


def estimate(values: Iterable[float | None]) -> Estimate:
    """The estimate from some values; None and what is not finite are left out.

    Example:
        >>> estimate([0.9, None, 0.92])
        Estimate(mean=0.91, deviation=0.014142135623730963, n=2)
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    return Estimate(fmean(known) if known else NAN, stdev(known) if len(known) > 1 else NAN, len(known))


@dataclass(frozen=True)
class Difference:
    """A mean of differences of pairs.

    Args:
        mean: NaN without pairs.
        half: half the width of its 95 % interval (Student's t); NaN for fewer than two pairs.
        pairs: how many.
    """

    mean: float
    half: float
    pairs: int


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """First minus second, paired by seed.

    Args:
        first: values by seed.
        second: values by seed; seeds that only one of them has are left out.

    Example:
        >>> paired({0: 0.91, 1: 0.93}, {0: 0.90, 1: 0.90, 2: 0.5}).pairs
        2
    """
    gaps = [first[seed] - second[seed] for seed in sorted(set(first) & set(second))]
    if len(gaps) < 2:
        return Difference(gaps[0] if gaps else NAN, NAN, len(gaps))
    return Difference(fmean(gaps), _student(len(gaps) - 1) * stdev(gaps) / math.sqrt(len(gaps)), len(gaps))


def _student(freedom: int) -> float:
    """The factor of the next smaller number of degrees in the table: never too narrow."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    return next((factor for end, factor in _STUDENT_LATER if freedom < end), 1.98)
