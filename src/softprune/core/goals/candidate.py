"""A candidate: one tensor that takes part in a selection, and what was seen of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from softprune.core.goals.bracket import Bracket
from softprune.core.goals.layout import Rows, rows_of
from softprune.core.goals.price import Price
from softprune.core.goals.sweep import Array, Found, find

# Where float16 ends: a weight that is this much larger than its threshold is not zero after subtracting it.
_LEAST_HALF = 2.0**-24


@dataclass
class Candidate:
    """One tensor that takes part.

    Args:
        w: the raw weights.
        scale: t, positive, of a shape that broadcasts to that of w.
        price: what its kept weights add to the total.
    """

    w: Tensor
    scale: Tensor
    price: Price = Price()  # noqa: RUF009
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
