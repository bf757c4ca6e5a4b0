"""Linear layers with few rows: inputs are the lanes, and zeros are skipped in one of three ways."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.conv import DENSE_FROM
from softprune.deploy.engine.library import Base, Choice, Facts, Linear
from softprune.deploy.format.graph import Weight

Array = NDArray[np.float32]
# With a smaller share of nonzeros than this they are looked up one by one, unless a measurement says otherwise.
INDEX_BELOW = 0.15
# So many weights, a megabyte, stay in the second-level cache.
SMALL = 1 << 18


def likely_kind(nonzeros: int, size: int, *, expands: bool) -> str:
    """The way that is most likely the fastest.

    A nonzero by its index takes about as long as seven weights of a dense row. Masks take less memory than dense
    weights and, once these do not fit into a cache, less time.
    """
    if nonzeros < INDEX_BELOW * size:
        return "index"
    if nonzeros > DENSE_FROM * 2 * size or size <= SMALL:
        return "dense"
    if expands:
        return "masks"
    return "index" if nonzeros < 2 * INDEX_BELOW * size else "dense"


@dataclass
class LinearKernel:
    """A linear layer with few rows and everything that its kernels need.

    Attributes:
        facts: of the instruction set.
        weight: (outputs, inputs).
        bias: one number per output.
        bounds: what the result is cut to.
        source: rows of inputs, side by side in memory, and where the kernel finds them.
        out: the same for the outputs.
        residual: the same for what is added before the cut, or None.
    """

    facts: Facts
    weight: Weight
    bias: Array
    bounds: tuple[float, float]
    source: tuple[Array, Base]
    out: tuple[Array, Base]
    residual: tuple[Array, Base] | None

    @cached_property
    def nonzeros(self) -> int:
        """Weights that are not zero."""
        return self.weight.count()

    @property
    def macs(self) -> int:
        """Multiply-adds on nonzeros."""
        return self.nonzeros * len(self.out[0])

    @property
    def _size(self) -> int:
        return self.weight.shape[0] * self.weight.shape[1]

    def default(self) -> Choice:
        """A good choice without a measurement."""
        return Choice(likely_kind(self.nonzeros, self._size, expands=self.facts.expands), 0)

    def choices(self) -> list[Choice]:
        """All choices worth a measurement: zeros are stored only where they do not take much memory."""
        kinds = {self.default().kind: None, "index": None}
        if self.facts.expands:
            kinds["masks"] = None
        if self._size <= SMALL or 2 * self.nonzeros >= self._size:
            kinds["dense"] = None
        return [Choice(kind, 0) for kind in kinds]

    def keep_only(self, choice: Choice) -> None:
        """Nothing is kept between choices."""

    def record(self, choice: Choice) -> tuple[ctypes.Structure, list[Any]]:
        """The record of the kernel, and what must stay alive with it."""
        outputs, inputs = self.weight.shape
        source, out = self.source[0], self.out[0]
        low, high = self.bounds
        record = Linear(rows=source.shape[0], inputs=inputs, outputs=outputs, low=low, high=high)
        record.out, record.input = self.out[1], self.source[1]
        record.out_row, record.in_row = out.strides[0] // 4, source.strides[0] // 4
        record.residual, record.residual_row = Base(None, -1), 0
        if self.residual is not None:
            record.residual, record.residual_row = self.residual[1], self.residual[0].strides[0] // 4
        record.bias = self.bias.ctypes.data
        if choice.kind == "dense":
            dense = np.ascontiguousarray(self.weight.dense())
            record.values, record.kind = dense.ctypes.data, 0
            return record, [self.bias, dense]
        places, values = self.weight.nonzeros()
        row, column = places // inputs, (places % inputs).astype(np.int32)
        start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=outputs))]).astype(np.int32)
        # The kernel for masks loads a whole vector of values at a time.
        values = np.append(values, np.zeros(16, np.float32))
        record.values, record.start = values.ctypes.data, start.ctypes.data
        if choice.kind == "index":
            record.index, record.kind = column.ctypes.data, 1
            return record, [self.bias, values, start, column]
        bits = np.zeros((outputs, -(-inputs // 16) * 16), bool)
        bits[row, column] = True
        masks = np.packbits(bits, axis=1, bitorder="little").view("<u2")
        record.masks, record.kind = masks.ctypes.data, 2
        return record, [self.bias, values, start, masks]
