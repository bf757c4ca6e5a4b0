"""A curve: the time of one layer as a function of its density. Needs no torch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

# How far up to the dense time the sparse kernel is taken to be the faster one.
BEND = 0.9


@dataclass(frozen=True)
class Curve:
    """A function that is linear between its knots and never falls; the first knot is at density 0, the last at 1.

    Args:
        densities: of the knots, rising.
        seconds: at each of them.
    """

    densities: tuple[float, ...]
    seconds: tuple[float, ...]

    @classmethod
    def through(cls, densities: Sequence[float], seconds: Sequence[float]) -> Curve:
        """The curve of measured points.

        A layer with more weights is not faster, so points that fall are noise: they are replaced by the rising ones
        that are closest in the mean of squares (isotonic regression). Beyond the outermost points the curve goes on
        with the slope that it has there, never below 0.

        An engine computes a layer with few zeros by a dense kernel, whose time does not depend on them. So where the
        last point is at density 1 and the curve rises more slowly before it, it goes on with the slope that it had
        for nine tenths of the way up to the dense time, and covers the rest slowly: a curve that still rises lets a
        total that falls bit by bit take weights bit by bit.

        Args:
            densities: rising, in (0, 1], two at least.
            seconds: as many.

        Example:
            >>> Curve.through((0.5, 1.0), (3.0, 4.0))
            Curve(densities=(0.0, 0.5, 1.0), seconds=(2.0, 3.0, 4.0))
            >>> Curve.through((0.1, 0.5, 1.0), (2.0, 1.0, 4.0)).seconds
            (1.5, 1.5, 1.5, 4.0)
            >>> Curve.through((0.2, 0.4, 1.0), (2.0, 4.0, 5.0))
            Curve(densities=(0.0, 0.2, 0.4, 0.49, 1.0), seconds=(0.0, 2.0, 4.0, 4.9, 5.0))
        """
        x, y = _with_bend(list(densities), isotonic(seconds))
        first = max(0.0, y[0] - x[0] * (y[1] - y[0]) / (x[1] - x[0]))
        x, y = [0.0, *x], [first, *y]
        if x[-1] < 1.0:
            y.append(y[-1] + (1.0 - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2]))
            x.append(1.0)
        return cls(tuple(x), tuple(y))

    def __call__(self, density: float) -> float:
        """The seconds at a density in [0, 1]."""
        place = min(max(bisect_right(self.densities, density), 1), len(self.densities) - 1)
        left, right = self.densities[place - 1 : place + 1]
        share = (density - left) / (right - left)
        return (1.0 - share) * self.seconds[place - 1] + share * self.seconds[place]


def _with_bend(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    """The points with one more, from which on the dense kernel is the faster one."""
    if len(x) < 3 or x[-1] < 1.0 or y[-1] <= y[-2]:
        return x, y
    slope = (y[-2] - y[-3]) / (x[-2] - x[-3])
    rise = BEND * (y[-1] - y[-2])
    bend = x[-2] + rise / slope if slope > 0 else 1.0
    # Without a clear bend it is a straight line.
    if not x[-2] < bend < x[-2] + BEND * (1.0 - x[-2]):
        return x, y
    return [*x[:-1], bend, 1.0], [*y[:-1], y[-2] + rise, y[-1]]


def isotonic(values: Sequence[float]) -> list[float]:
    """The rising sequence that is closest in the mean of squares: neighbours that fall are given their mean.

    Example:
        >>> isotonic([1.0, 4.0, 2.0, 3.0, 5.0])
        [1.0, 3.0, 3.0, 3.0, 5.0]
    """
    pools: list[tuple[float, int]] = []  # sum and number
    for value in values:
        pool = (value, 1)
        while pools and pools[-1][0] / pools[-1][1] >= pool[0] / pool[1]:
            total, count = pools.pop()
            pool = (total + pool[0], count + pool[1])
        pools.append(pool)
    return [total / count for total, count in pools for _ in range(count)]
