"""Scans over all weights of a tensor, as a vector in the order of memory: channels-last weights need no copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T")
Result = TypeVar("Result")
Array = NDArray[Any]

# Weights per piece: they and what is made from them fit the second cache.
PIECE = 1 << 17
# From this many weights on it pays to start threads, each of which takes one tensor after the other.
WORTH_THREADS = 1 << 22
_BITS = {
    **{torch.float64: torch.int64, torch.float32: torch.int32},
    **{torch.float16: torch.int16, torch.bfloat16: torch.int16},
}


@dataclass(frozen=True, eq=False)
class Rows:
    """A tensor as a matrix in the order of its memory, such that the weights of a row share a threshold."""

    flat: Tensor  # all weights as a vector
    count: int  # the number of rows
    columns: int  # the length of a row
    group: Tensor | None = None  # which threshold each row has; None if the rows have the thresholds in their order

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


# On a CPU a scan goes in pieces, so that what is made from the weights stays in the cache, and by numpy: its
# comparisons and counts are several times as fast as torch's, they leave no threads to wait for, and their sums do not
# depend on the number of threads. On other devices a tensor is one piece, and only what was found comes to the host.


class InRange(NamedTuple):
    """The weights of a tensor between two thresholds, in the order of memory, and the number of those above both."""

    position: Array
    size: Array
    above: int


def for_each(work: Callable[[T], Result], items: Sequence[T], weights: int) -> list[Result]:
    """What `work`, a scan, makes of each item, in order; they may run side by side, on data that they do not share.

    `weights` is how many there are in all items.
    """
    threads = torch.get_num_threads()
    if weights < WORTH_THREADS or threads == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def find(w: Rows, bottom: Array, top: Array) -> InRange:
    """The weights with bottom < |w| <= top, which have one number per row and the dtype of the sizes."""
    if w.flat.device.type != "cpu":
        return _find_at_once(w, bottom, top)
    longest = min(PIECE, len(w.flat))
    sizes = np.empty(longest, bottom.dtype)
    nears, overs = np.empty(longest, np.bool_), np.empty(longest, np.bool_)
    places, found, above = [], [], 0
    for here, rows in w.pieces(PIECE):
        length = here.stop - here.start
        size, near, over = sizes[:length], nears[:length], overs[:length]
        np.abs(numbers(w.flat[here]), out=size)
        np.greater(_grid(size, rows), _column(bottom, rows), out=_grid(near, rows))
        np.greater(_grid(size, rows), _column(top, rows), out=_grid(over, rows))
        above += int(np.count_nonzero(over))
        np.not_equal(near, over, out=near)
        (inside,) = near.nonzero()
        if len(inside):
            places.append(inside + here.start)
            found.append(size[inside])
    if not places:
        return InRange(np.empty(0, np.int64), np.empty(0, bottom.dtype), above)
    return InRange(np.concatenate(places), np.concatenate(found), above)


def count_nonzero(w: Rows, *, enough: int) -> int:
    """How many weights are not 0; at `enough` of them it stops."""
    count = 0
    for start in range(0, len(w.flat), PIECE):
        count += int(torch.count_nonzero(w.flat[start : start + PIECE]))
        if count >= enough:
            return enough
    return count


def signed_sums(w: Rows, grad: Tensor, alpha: Array) -> Array:
    """The sums over each row of grad * sign(w) * 1[|w| > alpha], with one threshold per row; grad is a vector."""
    if w.flat.device.type != "cpu":
        return _signed_sums_at_once(w, grad, alpha)
    longest = min(PIECE, len(w.flat))
    ups, downs = np.empty(longest, np.bool_), np.empty(longest, np.bool_)
    signs = np.empty(longest, alpha.dtype)
    # A sum of many pieces is made in double precision.
    sums = np.zeros(w.count, np.float64 if w.columns > PIECE else alpha.dtype)
    for here, rows in w.pieces(PIECE):
        length = here.stop - here.start
        up, down, sign = ups[:length], downs[:length], signs[:length]
        weight, slope = numbers(w.flat[here]), numbers(grad[here])
        threshold = _column(alpha, rows)
        np.greater(_grid(weight, rows), threshold, out=_grid(up, rows))
        np.less(_grid(weight, rows), -threshold, out=_grid(down, rows))
        np.subtract(up.view(np.int8), down.view(np.int8), out=sign, casting="unsafe")
        if rows.stop - rows.start == 1:
            sums[rows.start] += float(np.einsum("i,i->", slope, sign))
        elif w.columns == 1:
            sums[rows] = slope * sign
        else:
            sums[rows] = np.einsum("ij,ij->i", _grid(slope, rows), _grid(sign, rows))
    return sums


def numbers(t: Tensor) -> Array:
    """A tensor on the CPU for numpy: the same memory, or a copy where numpy has no such numbers."""
    # It has float16, but is slow with it.
    array: Array = (t if t.dtype in (torch.float32, torch.float64) else t.to(torch.float32)).numpy()
    return array


def _find_at_once(w: Rows, bottom: Array, top: Array) -> InRange:
    low, high = (torch.from_numpy(t).to(w.flat.device).unsqueeze(1) for t in (bottom, top))
    size = w.flat.to(low.dtype).abs().view(w.count, w.columns)
    over = size > high
    (position,) = torch.nonzero(((size > low) ^ over).view(-1), as_tuple=True)
    return InRange(position.cpu().numpy(), size.view(-1)[position].cpu().numpy(), int(torch.count_nonzero(over)))


def _signed_sums_at_once(w: Rows, grad: Tensor, alpha: Array) -> Array:
    threshold = torch.from_numpy(alpha).to(w.flat.device).unsqueeze(1)
    weight = w.flat.to(threshold.dtype).view(w.count, w.columns)
    sign = torch.where(weight.abs() > threshold, weight.sign(), 0.0)
    sums: Array = (grad.to(threshold.dtype).view_as(sign) * sign).sum(1).cpu().numpy()
    return sums


def _grid(values: Array, rows: slice) -> Array:
    """A piece as a matrix of its rows; as it is where it is of one row."""
    count = rows.stop - rows.start
    return values if count == 1 else values.reshape(count, -1)


def _column(values: Array, rows: slice) -> Array:
    """One number per row, to be compared with a piece."""
    column: Array = values[rows.start] if rows.stop - rows.start == 1 else values[rows, None]
    return column
