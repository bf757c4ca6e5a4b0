"""Tensors as vectors in the order of their memory, whatever their strides: channels-last weights need no copy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


@dataclass(frozen=True, eq=False)
class Rows:
    """A tensor as a matrix in the order of its memory, such that the weights of a row share a threshold.

    Args:
        flat: all weights as a vector.
        count: the number of rows.
        columns: the length of a row.
        group: which threshold each row has; None if the rows have the thresholds in their order.
    """

    flat: Tensor
    count: int
    columns: int
    group: Tensor | None = None

    def pieces(self, piece: int) -> Iterator[tuple[slice, slice]]:
        """Stretches of the vector, and the rows that they are of: several whole rows, or a part of one."""
        if self.columns < piece:
            step = piece // self.columns
            for row in range(0, self.count, step):
                last = min(row + step, self.count)
                yield slice(row * self.columns, last * self.columns), slice(row, last)
            return
        for row in range(self.count):
            end = (row + 1) * self.columns
            for start in range(row * self.columns, end, piece):
                yield slice(start, min(start + piece, end)), slice(row, row + 1)


def rows_of(w: Tensor, shape: Sequence[int]) -> Rows:
    """The rows of a tensor whose thresholds have this shape, which broadcasts to its own."""
    if math.prod(shape) == 1:
        return Rows(flat(w), 1, w.numel())
    shape = [1] * (w.ndim - len(shape)) + list(shape)
    dimensions = _dimensions(w)
    outer = list(dimensions)
    while outer and shape[outer[-1]] == 1:
        outer.pop()
    count = math.prod(w.shape[d] for d in outer)
    group = None
    if outer != sorted(outer) or any(shape[d] != w.shape[d] for d in outer):
        numbers = torch.arange(math.prod(shape)).view(shape)
        group = numbers.expand([n if d in outer else 1 for d, n in enumerate(w.shape)]).permute(dimensions).reshape(-1)
    return Rows(flat(w), count, w.numel() // max(1, count), group)


def flat(t: Tensor) -> Tensor:
    """The tensor as a vector in the order of its memory; a view where it is dense."""
    return flat_like(t, t)


def flat_like(t: Tensor, other: Tensor) -> Tensor:
    """A tensor as a vector in the memory order of another one of the same shape."""
    return t.reshape(-1) if other.is_contiguous() else t.permute(_dimensions(other)).reshape(-1)


def lower_(w: Tensor, places: Tensor) -> Tensor:
    """Bring the weights at these places in memory, none of them zero, one unit in the last place closer to zero."""
    dimensions = _dimensions(w)
    found: list[Tensor] = list(torch.unravel_index(places, [w.shape[d] for d in dimensions]))
    where = tuple(found[dimensions.index(d)] for d in range(w.ndim))
    # Sign and size are apart in a float: one less in its bits is one step closer to zero for either sign.
    w[where] = (w[where].view(_BITS[w.dtype]) - 1).view(w.dtype)
    return w


def _dimensions(t: Tensor) -> list[int]:
    """Its dimensions, that with the largest stride first."""
    strides: tuple[int, ...] = t.stride()
    return sorted(range(t.ndim), key=lambda d: (-strides[d], d))
