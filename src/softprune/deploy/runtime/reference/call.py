"""Call: what one operation of the graph is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Call:
    """One operation with its inputs.

    Args:
        op: the operation as the graph has it.
        inputs: the values that it reads.
        residual: the value that is added before the activation, if there is one.
        weights: all weights of the network, dense, by name.
        batch: the size of the first axis of the network's inputs.
    """

    op: Mapping[str, Any]
    inputs: tuple[Array, ...]
    residual: Array | None
    weights: Mapping[str, Array]
    batch: int

    def weight(self, field: str) -> Array | None:
        """The weight that a field names; None where the field is null or absent."""
        name = self.op.get(field)
        return None if name is None else self.weights[name]

    def needed(self, field: str) -> Array:
        """The weight that a field must name."""
        return self.weights[self.op[field]]

    def pair(self, field: str) -> tuple[int, int]:
        """Two whole numbers, of the rows and of the columns."""
        rows, columns = self.op[field]
        return int(rows), int(columns)
