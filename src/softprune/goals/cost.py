"""Costs: what the kept weights of one tensor add to a total. Needs no torch, and numpy only for arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from softprune.budget.latency import Curve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

# The slope of a curve is taken over this share of the kept weights to either side: about as far as thresholds look.
NEARBY = 0.1


class Cost(ABC):
    """What a number of weights of one tensor costs; it never falls with the number.

    Attributes:
        size: the number of weights of the tensor.
        each: what every weight costs; 1 where a curve says it.
        linear: whether every weight costs the same.
    """

    size: int
    linear: ClassVar[bool]

    @property
    @abstractmethod
    def each(self) -> float: ...

    @property
    @abstractmethod
    def most(self) -> float:
        """The most that one weight can add."""

    @abstractmethod
    def of(self, count: float) -> float:
        """What this many weights cost."""

    @abstractmethod
    def at(self, density: float) -> float:
        """What this share of the tensor costs."""

    @abstractmethod
    def exact(self, count: int) -> Fraction:
        """What this many weights cost, without rounding."""

    @abstractmethod
    def slope(self, count: int) -> float:
        """What one more weight adds at about this number, relative to `each`."""

    @abstractmethod
    def steps(self, first: int, count: int) -> Array:
        """What each of `count` more weights adds to the `first` ones."""

    @abstractmethod
    def sampled(self, size: int, count: int) -> Array:
        """What each of `count` weights stands for that are a sample of `size`, in their order."""


@dataclass(frozen=True)
class PerWeight(Cost):
    """Every weight costs the same: all `size` of them `total`."""

    total: float = 1.0
    size: int = 1
    linear = True

    @cached_property
    def each(self) -> float:
        return self.total / self.size if self.size else 0.0

    @property
    def most(self) -> float:
        return self.each

    def of(self, count: float) -> float:
        return self.each * count

    def at(self, density: float) -> float:
        return density * self.total

    def exact(self, count: int) -> Fraction:
        return Fraction(self.total) * count / self.size

    def slope(self, count: int) -> float:
        return 1.0

    def steps(self, first: int, count: int) -> Array:
        import numpy as np

        return np.full(count, self.each)

    def sampled(self, size: int, count: int) -> Array:
        import numpy as np

        return np.full(count, self.each * size / count)


@dataclass(frozen=True)
class AlongCurve(Cost):
    """A share of the tensor costs what a curve says: seconds, which are no multiple of the number of weights."""

    curve: Curve
    size: int
    linear = False
    each = 1.0

    @property
    def most(self) -> float:
        x, y = self.curve.densities, self.curve.seconds
        slopes = [(d - b) / (c - a) for a, b, c, d in zip(x, y, x[1:], y[1:], strict=False)]
        return max(slopes) / self.size

    def of(self, count: float) -> float:
        return self.curve(min(1.0, count / self.size))

    def at(self, density: float) -> float:
        return self.curve(min(1.0, density))

    def exact(self, count: int) -> Fraction:
        return Fraction(self.of(count))

    def slope(self, count: int) -> float:
        reach = max(1.0, NEARBY * count)
        low, high = max(0.0, count - reach), min(float(self.size), count + reach)
        return (self.of(high) - self.of(low)) / (high - low)

    def steps(self, first: int, count: int) -> Array:
        import numpy as np

        return np.diff(self._at(first + np.arange(count + 1)))

    def sampled(self, size: int, count: int) -> Array:
        import numpy as np

        return np.diff(self._at(np.linspace(0, size, count + 1)))

    def _at(self, counts: Array) -> Array:
        import numpy as np

        values: Array = np.interp(counts / self.size, self.curve.densities, self.curve.seconds)
        return values


def equal_density(total: Callable[[float], float], wanted: float, *, halvings: int = 60) -> float:
    """The density of all tensors at which a total that grows with it is what is wanted; found by halving."""
    low, high = 0.0, 1.0
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) < wanted else (low, middle)
    return high
