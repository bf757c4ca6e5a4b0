"""Prices: what the kept weights of a tensor add to a total."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from softprune.budget.curve import Curve
from softprune.core.goals.sweep import Array

# The slope of a curve is taken over this share of the kept weights to either side: about as far as thresholds look.
NEARBY = 0.1


@dataclass(frozen=True)
class Price:
    """The price of a number of weights; it never falls with it.

    Args:
        each: what every weight costs; 1 where a curve says it.
        curve: what this share of the tensor costs, where that is no multiple of the number of weights.
        size: the number of weights of the tensor, for the curve.
    """

    each: float = 1.0
    curve: Curve | None = None
    size: int = 0

    def of(self, count: float) -> float:
        """What this many weights cost."""
        if self.curve is None:
            return self.each * count
        return self.curve(min(1.0, count / self.size))

    def steps(self, first: int, count: int) -> Array:
        """What each of `count` more weights adds to the `first` ones."""
        if self.curve is None:
            return np.full(count, self.each)
        return np.diff(self._at(first + np.arange(count + 1)))

    def sampled(self, size: int, count: int) -> Array:
        """What each of `count` weights stands for that are a sample of `size`, in their order."""
        if self.curve is None:
            return np.full(count, self.each * size / count)
        return np.diff(self._at(np.linspace(0, size, count + 1)))

    def slope(self, count: int) -> float:
        """What one more weight adds at about this number, relative to `each`."""
        if self.curve is None:
            return 1.0
        reach = max(1.0, NEARBY * count)
        low, high = max(0.0, count - reach), min(float(self.size), count + reach)
        return (self.of(high) - self.of(low)) / (high - low)

    @property
    def most(self) -> float:
        """The most that one weight can add."""
        if self.curve is None:
            return self.each
        x, y = np.array(self.curve.densities), np.array(self.curve.seconds)
        return float((np.diff(y) / np.diff(x)).max()) / self.size

    def _at(self, counts: Array) -> Array:
        assert self.curve is not None
        values: Array = np.interp(counts / self.size, self.curve.densities, self.curve.seconds)
        return values


def in_order(keys: Array, steps: Array) -> Array:
    """The steps of a price for weights in the order of memory: the largest key takes the first, equal ones in order."""
    if len(steps) < 2 or steps.min() == steps.max():
        return steps
    placed = np.empty_like(steps)
    placed[np.argsort(-keys, kind="stable")] = steps
    return placed


def equal_density(total: Callable[[float], float], wanted: float, *, halvings: int = 60) -> float:
    """The density of all tensors at which a total that grows with it is what is wanted; found by halving."""
    low, high = 0.0, 1.0
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) < wanted else (low, middle)
    return high
