"""Grid: how the images of a convolution's input lie in memory.

Channel by channel, the images of the batch stand below each other in one plane; a row has `pitch` places, of which
the first `width` belong to the image and the others are zero; `top` and `bottom` rows of zeros surround each image.
So a kernel that reaches over an edge reads zeros, and a plane is one long row of output positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format.graph import Array

Longs = NDArray[np.int64]
LINE = 16  # floats per cache line


@dataclass(frozen=True)
class Halo:
    """Zeros that a convolution needs around its input, and the width of its output."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def union(self, other: Halo) -> Halo:
        return Halo(*map(max, astuple(self), astuple(other)))


@dataclass(frozen=True)
class Grid:
    """The layout of `planes` planes per channel, one for each phase of a stride; sizes are those of an image in one."""

    images: int
    channels: int
    planes: int
    height: int
    width: int
    halo: Halo

    @property
    def pitch(self) -> int:
        """Places per row."""
        if self.halo == Halo():
            return self.width
        needed = self.width + max(self.halo.left, self.halo.right)
        # Rows that begin at a cache line make most taps aligned; short rows pay too much for it.
        return -(-needed // LINE) * LINE if needed > 8 else 8

    @property
    def image(self) -> int:
        """Places per image."""
        return (self.halo.top + self.height + self.halo.bottom) * self.pitch

    @property
    def plane(self) -> int:
        """Places per plane: an odd number of cache lines, so that planes do not fall into the same cache sets."""
        lines = -(-self.images * self.image // LINE) + (self.halo != Halo())
        return (lines | 1) * LINE if lines > 8 else lines * LINE

    @property
    def size(self) -> int:
        """Floats of a buffer for it, with room before and behind that careless lanes may read."""
        return self.channels * self.planes * self.plane + 2 * self.margin

    @property
    def margin(self) -> int:
        """Zeros before the first plane and behind the last."""
        reach = (self.halo.left + self.halo.right + 2 * LINE) // LINE + 1
        return reach * LINE

    def view(self, buffer: Array, plane: int = 0) -> Array:
        """One plane of each channel as an array (images, channels, rows, columns) without the halo."""
        start = self.margin + plane * self.plane + self.halo.top * self.pitch
        strides = (self.image, self.planes * self.plane, self.pitch, 1)
        shape = (self.images, self.channels, self.height, self.width)
        return strided(buffer, start, shape, strides)

    def reaches(self, halo: Halo) -> bool:
        """Whether there are enough zeros for a convolution."""
        return self.halo.union(halo) == self.halo


def strided(buffer: Array, start: int, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """A view of a flat buffer; start and strides in elements."""
    steps = tuple(4 * s for s in strides)
    return np.ndarray(tuple(shape), np.float32, buffer, offset=4 * start, strides=steps)


def view_as(array: Array, shape: Sequence[int]) -> Array | None:
    """The array in another shape, without a copy; None where its strides do not allow that.

    reshape() would make a copy then, of memory that stands in for the caller's and is never to be touched.
    """
    if not array.size:
        return array.reshape(shape)
    # Axes that are walked through in one step, as (numbers, bytes from one to the next).
    runs: list[tuple[int, int]] = []
    for size, stride in zip(array.shape, array.strides, strict=True):
        if size != 1 and runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        elif size != 1:
            runs.append((size, stride))
    left, step, strides = 1, array.itemsize, []
    for size in reversed(shape):
        if left == 1 and size != 1:
            left, step = runs.pop()
        if left % size:
            return None
        strides.append(step)
        left, step = left // size, step * size
    return np.lib.stride_tricks.as_strided(array, shape, strides[::-1])


Pair = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """A convolution without its channels: where its taps lie in a grid.

    A stride s splits rows and columns into s phases: plane (py, px) holds the pixels (s*r + py, s*c + px), so that
    neighbouring outputs read neighbouring places whatever the stride. Tap k reads at k*dilation - padding =
    s*shift + phase.
    """

    size: Pair  # rows and columns of the input
    out: Pair  # rows and columns of the output
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    # whether each column of the kernel has planes of its own, shifted so that all its taps are aligned; worth its
    # copies when there are few input channels
    expanded: bool = False

    def _taps(self, axis: int) -> list[Pair]:
        """Shift and phase of each tap."""
        stride = self.stride[axis]
        return [divmod(k * self.dilation[axis] - self.padding[axis], stride) for k in range(self.kernel[axis])]

    @cached_property
    def rows(self) -> list[Pair]:
        """Shift and phase of each row of the kernel."""
        return self._taps(0)

    @cached_property
    def columns(self) -> list[Pair]:
        """The same of each column; if expanded, no shift, and the tap instead of a phase."""
        if self.expanded:
            return [(0, k * self.dilation[1] - self.padding[1]) for k in range(self.kernel[1])]
        return self._taps(1)

    @cached_property
    def phases(self) -> list[Pair]:
        """The planes: first row and first column of the input that each holds."""
        return sorted({(py, px) for _, py in self.rows for _, px in self.columns})

    @property
    def plain(self) -> bool:
        """Whether the one plane is the image itself, so that its producer can write it."""
        return self.stride == (1, 1) and not self.expanded

    @cached_property
    def plane_size(self) -> Pair:
        """Rows and columns of a plane."""
        height = -(-self.size[0] // self.stride[0])
        return height, self.out[1] if self.expanded else -(-self.size[1] // self.stride[1])

    @cached_property
    def halo(self) -> Halo:
        """The zeros that the taps reach."""
        (height, width), (rows, columns) = self.plane_size, self.out
        up, down = min(s for s, _ in self.rows), max(s for s, _ in self.rows)
        left, right = min(s for s, _ in self.columns), max(s for s, _ in self.columns)
        top = max(0, -up)
        # The output may be larger than the input: its positions need room as well.
        bottom = max(0, rows + down - height, rows - height - top)
        return Halo(top, bottom, max(0, -left), max(0, columns + right - width, columns - width))

    def grid(self, images: int, channels: int) -> Grid:
        """The smallest grid for it."""
        return Grid(images, channels, len(self.phases), *self.plane_size, self.halo)

    def offsets(self, grid: Grid) -> NDArray[np.int64]:
        """How far each tap of the kernel lies from the output position, in floats; one channel."""
        index = {phase: i for i, phase in enumerate(self.phases)}
        table = [
            [index[py, px] * grid.plane + (sy + grid.halo.top) * grid.pitch + sx for sx, px in self.columns]
            for sy, py in self.rows
        ]
        return np.array(table, np.int64)

    def source(self, phase: Pair) -> tuple[slice, slice, slice, slice]:
        """Which rows and columns of a plane come from which of the input: (rows, columns, from rows, from columns)."""
        found = []
        for axis in (0, 1):
            stride, first, size = self.stride[axis], phase[axis], self.size[axis]
            begin = max(0, -(first // stride))
            end = max(begin, min(self.plane_size[axis], (size - 1 - first) // stride + 1))
            start = begin * stride + first
            found.append((slice(begin, end), slice(start, start + (end - begin) * stride, stride)))
        (rows, from_rows), (columns, from_columns) = found
        return rows, columns, from_rows, from_columns


# Output positions: vectors of neighbouring positions, tiles of neighbouring vectors.

PIECE = np.dtype([("offset", "<i4"), ("residual", "<i4"), ("mask", "<u2"), ("more", "<u2")])
TILE = np.dtype([("vector", "<i4"), ("count", "<i4"), ("position", "<i8")])


@dataclass(frozen=True)
class Pieces:
    """The vectors that hold an output pixel, the pieces in which they are stored, and the first piece of each."""

    vectors: Longs
    pieces: NDArray[np.void]
    start: NDArray[np.int32]


def make_pieces(grid: Grid, out: Array, residual: Array | None, *, width: int) -> Pieces:
    """Follow every output pixel from its position in the input's grid to its places in the output and the residual.

    A position counts image, row and column in the grid. Outputs are (images, channels, rows, columns) with columns side
    by side; `width` is the number of lanes of a vector.
    """
    images, _, rows, columns = out.shape
    index = np.arange(images)[:, None, None], np.arange(rows)[:, None], np.arange(columns)
    position = _places(index, grid.image, grid.pitch)
    target = _places(index, out.strides[0] // 4, out.strides[2] // 4)
    source = target if residual is None else _places(index, residual.strides[0] // 4, residual.strides[2] // 4)
    vector, lane = position // width, position % width
    # A piece ends where the vector ends, where the lanes skip the halo between two rows, or where neighbours in the
    # grid are no neighbours in the output.
    key = np.stack([vector, target - lane, source - lane])
    ends = (np.diff(key, axis=1) != 0).any(axis=0) | (np.diff(position) != 1)
    first = np.flatnonzero(np.concatenate([[True], ends]))
    count = np.diff(np.append(first, len(position)))
    pieces = np.zeros(len(first), PIECE)
    pieces["offset"], pieces["residual"] = key[1, first], key[2, first]
    pieces["mask"] = ((1 << count) - 1) << lane[first]
    owner = vector[first]
    pieces["more"][:-1] = owner[1:] == owner[:-1]
    vectors, start = np.unique(owner, return_index=True)
    return Pieces(vectors, pieces, np.append(start, len(first)).astype(np.int32))


def _places(index: tuple[Longs, ...], image: int, row: int) -> Longs:
    return (index[0] * image + index[1] * row + index[2]).reshape(-1)


def make_tiles(vectors: Longs, count: int, *, width: int) -> NDArray[np.void]:
    """Tiles of at most `count` neighbouring vectors, as equal as possible."""
    breaks = np.flatnonzero(np.diff(vectors) != 1) + 1
    rows = []
    for begin, end in zip([0, *breaks], [*breaks, len(vectors)], strict=True):
        tiles = -(-(end - begin) // count)
        edges = begin + np.arange(tiles + 1) * (end - begin) // tiles
        rows += [(a, b - a, vectors[a] * width) for a, b in pairwise(edges)]
    return np.array(rows, TILE)


def has_padded_channels(array: Array) -> bool:
    """Whether each channel has room for whole vectors behind its last pixel."""
    images, _, rows, columns = array.shape
    used = images * rows * columns
    room = array.strides[1] // 4
    return room % 16 == 0 and room >= -(-used // 16) * 16 and array.ctypes.data % 64 == 0 and array.strides[3] == 4
