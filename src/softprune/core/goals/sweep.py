"""One sweep over the weights of a tensor: everything that reads all of them is here.

On a CPU a sweep goes in pieces, so that what is made from the weights stays in the cache, and by numpy: its comparisons
and counts are several times as fast as torch's, they leave no threads to wait for, and their sums do not depend on the
number of threads. On other devices a tensor is one piece, and only what was found comes to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softprune.core.goals.layout import Rows

# Weights per piece: they and what is made from them fit the second cache.
PIECE = 1 << 17
# From this many weights on it pays to start threads, each of which takes one tensor after the other.
WORTH_THREADS = 1 << 22

T = TypeVar("T")
Result = TypeVar("Result")

Array = NDArray[Any]


class Found(NamedTuple):
    """The weights of a tensor between two thresholds, in the order of memory, and the number of those above both."""

    place: Array
    size: Array
    above: int


def for_each(work: Callable[[T], Result], items: Sequence[T], weights: int) -> list[Result]:
    """What `work` makes of each item, in order. Items must not touch each other's data: they may run side by side.

    Args:
        work: sweeps over a tensor.
        items: that it is done for.
        weights: how many there are in all of them.
    """
    threads = torch.get_num_threads()
    if weights < WORTH_THREADS or threads == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def find(w: Rows, bottom: Array, top: Array) -> Found:
    """The weights with bottom < |w| <= top.

    Args:
        w: the weights.
        bottom: one number per row; its dtype is that of the sizes.
        top: one number per row, nowhere below `bottom`.
    """
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
        return Found(np.empty(0, np.int64), np.empty(0, bottom.dtype), above)
    return Found(np.concatenate(places), np.concatenate(found), above)


def count_nonzero(w: Rows, *, enough: int) -> int:
    """How many weights are not 0; at `enough` of them it stops."""
    count = 0
    for start in range(0, len(w.flat), PIECE):
        count += int(torch.count_nonzero(w.flat[start : start + PIECE]))
        if count >= enough:
            return enough
    return count


def signed_sums(w: Rows, grad: Tensor, alpha: Array) -> Array:
    """The sums over each row of grad * sign(w) * 1[|w| > alpha].

    Args:
        w: the weights.
        grad: as a vector in the same order.
        alpha: one threshold per row.
    """
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


def _find_at_once(w: Rows, bottom: Array, top: Array) -> Found:
    low, high = (torch.from_numpy(t).to(w.flat.device).unsqueeze(1) for t in (bottom, top))
    size = w.flat.to(low.dtype).abs().view(w.count, w.columns)
    over = size > high
    (place,) = torch.nonzero(((size > low) ^ over).view(-1), as_tuple=True)
    return Found(place.cpu().numpy(), size.view(-1)[place].cpu().numpy(), int(torch.count_nonzero(over)))


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
