"""Arena: buffers of a plan, used again as soon as nothing needs their content."""

from __future__ import annotations

import bisect
import math
import mmap
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.grid import Geometry, Grid, Halo, strided
from softprune.deploy.engine.library import Base, Library

Array = NDArray[np.float32]
MAX_BUFFER = 1 << 29
MAX_FLOATS = 1 << 31
# Sizes are rounded up to so many floats: values of nearly the same size can then take each other's place.
ROUND = 1 << 14


class Arena:
    """Memory of one plan.

    Attributes:
        grids: grids with a halo in the order in which they were asked for, and how they are filled. The places that
            nobody writes must be zero; a buffer may have held something else.
        floats: numbers in all buffers.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._starts: list[int] = []
        self._buffers: list[Array] = []
        self._slots: dict[int, int] = {}  # address of a stand-in -> slot
        self._layouts: dict[int, set[Hashable]] = {}  # address -> all layouts of what it holds in turn
        self._free: list[Array] = []
        self.grids: list[tuple[Array, Grid, Geometry | None]] = []
        self.floats = 0

    def grid(self, grid: Grid, filling: Geometry | None = None) -> Array:
        """A buffer for a grid; `filling` says which of its places are written, if not all of each image."""
        if grid.halo == Halo() and grid.planes == 1:
            return self._take(grid.size, None)
        buffer = self._take(grid.size, (grid, filling))
        self.grids.append((buffer, grid, filling))
        return buffer

    def shared(self, buffer: Array) -> bool:
        """Whether a buffer holds values of several layouts in turn."""
        return len(self._layouts[buffer.ctypes.data]) > 1

    def private(self, grid: Grid) -> Array:
        """A buffer for a grid that no other value will ever use."""
        free, self._free = self._free, []
        buffer = self._take(grid.size, (grid, "private"))
        self._free = free
        del self._layouts[buffer.ctypes.data]  # so it is never given back
        return buffer

    def contiguous(self, shape: tuple[int, ...]) -> Array:
        """An array in the usual order, with a margin behind it."""
        buffer = self._take(math.prod(shape) + 64, None)
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return strided(buffer, 0, shape, strides)

    def slot(self, number: int, shape: tuple[int, ...]) -> Array:
        """A stand-in for one of the caller's arrays: an address range that nobody ever touches."""
        reserve = np.frombuffer(mmap.mmap(-1, max(4 * math.prod(shape), 4096)), np.float32)
        self._insert(reserve)
        self._slots[reserve.ctypes.data] = number
        return reserve[: math.prod(shape)].reshape(shape)

    def base(self, array: Array) -> Base:
        """The address of an array as the kernels want it."""
        buffer = self.owner(array)
        start = buffer.ctypes.data
        if start in self._slots:
            return Base(array.ctypes.data - start, self._slots[start])
        return Base(array.ctypes.data, -1)

    def is_slot(self, array: Array) -> bool:
        """Whether it belongs to the caller."""
        return self.owner(array).ctypes.data in self._slots

    def owner(self, array: Array) -> Array:
        """The buffer that an array lies in."""
        return self._buffers[bisect.bisect_right(self._starts, array.ctypes.data) - 1]

    def holds(self, array: Array) -> bool:
        """Whether an array lies in one of its buffers."""
        place = bisect.bisect_right(self._starts, array.ctypes.data) - 1
        return place >= 0 and array.ctypes.data < self._starts[place] + self._buffers[place].nbytes

    def adopt(self, array: Array) -> Array:
        """Make the arena know an array that lives elsewhere, such as a constant."""
        if array.size:
            self._insert(array)
        return array

    def release(self, array: Array) -> None:
        """Give a buffer back."""
        buffer = self.owner(array)
        if buffer.ctypes.data in self._layouts and not any(buffer is other for other in self._free):
            self._free.append(buffer)

    def _take(self, count: int, layout: Hashable) -> Array:
        count = -(-count // ROUND) * ROUND if count > ROUND else count
        # A file may ask for halos or values that no memory holds.
        if count > MAX_BUFFER or self.floats + count > MAX_FLOATS:
            raise ValueError(f"the network needs a buffer of {4 * count} bytes: too large, or the batch is too large")
        fitting = [buffer for buffer in self._free if count <= buffer.size]
        if fitting:
            # Of equal ones the last that was given back: the caches still know it.
            best = min(reversed(fitting), key=lambda buffer: buffer.size)
            self._free = [buffer for buffer in self._free if buffer is not best]
            self._layouts[best.ctypes.data].add(layout)
            return best
        buffer = self._library.zeros(count)
        self.floats += count
        self._insert(buffer)
        self._layouts[buffer.ctypes.data] = {layout}
        return buffer

    def _insert(self, buffer: Array) -> None:
        place = bisect.bisect_right(self._starts, buffer.ctypes.data)
        self._starts.insert(place, buffer.ctypes.data)
        self._buffers.insert(place, buffer)
