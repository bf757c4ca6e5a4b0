"""Bills: what units cost together, where that is no price for each: as they are stored, or left after shrinking."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from torch import nn

from softprune.core.goals.price import NEARBY
from softprune.core.goals.sweep import Array


class Bill(ABC):
    """What the units of a part cost, in the unit of its goal.

    Units are given as one vector of bools for each tensor of the part, in order: whether each is alive. The more are,
    the higher the total; only for groups of convolutions, which stay equally wide, that is not strict.

    Args:
        sizes: the number of units of each tensor.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)

    @abstractmethod
    def total(self, alive: Sequence[Array]) -> float:
        """What these cost, with everything that the goal counts besides."""

    @abstractmethod
    def prices(self, alive: Sequence[Array]) -> list[float]:
        """For each tensor what one unit more or less changes about now; the learner weighs thresholds with it."""

    def full(self) -> float:
        """The total with all units."""
        return self.total([np.ones(size, np.bool_) for size in self.sizes])

    def least(self, floors: Sequence[int]) -> float:
        """The most that so many units of each tensor can cost: any total from here on can be reached."""
        return self.total([np.arange(size) < floor for size, floor in zip(self.sizes, floors, strict=True)])

    def at_density(self, density: float) -> float:
        """The total with this share of every tensor, at least one unit of each."""
        return self.total([np.arange(size) < max(1, round(density * size)) for size in self.sizes])

    def now(self) -> Bill:
        """The bill with the values that the network has now, where it depends on any."""
        return self

    def on(self, model: nn.Module) -> Bill:
        """The bill for a copy of the model."""
        return self


class Sum(Bill):
    """Every unit has a cost of its own: blocks, of which those at the edges are smaller.

    Args:
        costs: of the units of each tensor.
        fixed: what else the goal counts.
    """

    def __init__(self, costs: Sequence[Array], fixed: float) -> None:
        super().__init__([len(cost) for cost in costs])
        self._costs = costs
        self._fixed = fixed

    def total(self, alive: Sequence[Array]) -> float:
        return self._fixed + sum(float(cost[on].sum()) for cost, on in zip(self._costs, alive, strict=True))

    def prices(self, alive: Sequence[Array]) -> list[float]:
        return [float(cost.mean()) for cost in self._costs]

    def least(self, floors: Sequence[int]) -> float:
        dearest = [np.sort(cost)[::-1][:floor].sum() for cost, floor in zip(self._costs, floors, strict=True)]
        return self._fixed + float(sum(dearest))


class Stored(Bill):
    """Each tensor costs what its number of units is stored as: directions, of which many are stored as one matrix.

    Args:
        sizes: the number of units of each tensor.
        stored: for each tensor the cost of a number of them.
        fixed: what else the goal counts.
    """

    def __init__(self, sizes: Sequence[int], stored: Sequence[Callable[[int], float]], fixed: float) -> None:
        super().__init__(sizes)
        self._stored = stored
        self._fixed = fixed

    def total(self, alive: Sequence[Array]) -> float:
        counts = (int(np.count_nonzero(on)) for on in alive)
        return self._fixed + sum(stored(count) for stored, count in zip(self._stored, counts, strict=True))

    def prices(self, alive: Sequence[Array]) -> list[float]:
        """Slopes around the present ranks, as where one more direction is free the next one less is not."""
        found = []
        for stored, on in zip(self._stored, alive, strict=True):
            count = int(np.count_nonzero(on))
            reach = max(1, round(NEARBY * count))
            low, high = max(0, count - reach), min(len(on), count + reach)
            found.append((stored(high) - stored(low)) / (high - low))
        return found
