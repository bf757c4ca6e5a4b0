"""Depthwise convolutions: each channel by itself, read straight from the image."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.elementwise import add_layer, copy
from softprune.deploy.engine.execution import NONZERO, Kernel, KernelChoice, RowProgress
from softprune.deploy.engine.grid import Geometry, Grid, Halo, Longs, has_padded_channels, make_tiles
from softprune.deploy.engine.library import Depthwise
from softprune.deploy.engine.memory import Builder
from softprune.deploy.format.graph import Array, Op

SPAN = np.dtype([("in", "<i4"), ("out", "<i4"), ("mask", "<u4")])
# Tiles worth a measurement; the kernel has no larger ones.
SIZES = (1, 2, 4, 6, 7, 8)
# Masks of a layer, at most: taps times vectors.
MAX_MASKS = 1 << 20


def fits(geometry: Geometry, images: int, *, width: int) -> bool:
    """Whether columns are at most two apart and the masks take a bearable size."""
    rows, columns = geometry.out
    taps = geometry.kernel[0] * geometry.kernel[1]
    return geometry.stride[1] <= 2 and taps * images * rows * -(-columns // width) <= MAX_MASKS


@dataclass(frozen=True)
class Lanes:
    """The output pixel of each lane of each vector; `valid` lanes are stored."""

    image: Longs
    row: Longs
    column: Longs
    valid: NDArray[np.bool_]


@dataclass
class DepthwiseKernel(Kernel):
    """A depthwise convolution; its weight is (outputs, 1, rows, columns)."""

    threads: int
    geometry: Geometry
    grid: Grid  # of the input, one plane per channel
    start: Array  # the input's first plane
    out: Array  # the output, columns side by side

    @property
    def macs(self) -> int:
        return self.nonzeros * self.out.shape[0] * self.out.shape[2] * self.out.shape[3]

    def default(self) -> KernelChoice:
        return self._choice(min(SIZES[-1], len(self._spans)))[0]

    def choices(self) -> list[KernelChoice]:
        return [choice for size in SIZES if size <= len(self._spans) for choice in self._choice(size)]

    def _choice(self, vectors: int) -> list[KernelChoice]:
        plain = KernelChoice("depthwise", vectors)
        if self.threads == 1:
            return [plain]
        shared = KernelChoice("depthwise", vectors, by_channel=True)
        return [shared, plain] if self.out.shape[1] >= 4 * self.threads else [plain, shared]

    @cached_property
    def _flat(self) -> bool:
        """Whether input and output positions are the same and whole vectors can be stored."""
        same = self.geometry.stride == (1, 1) and self.geometry.out == self.geometry.size
        alike = (self.grid.image, self.grid.pitch) == (self.out.strides[0] // 4, self.out.strides[2] // 4)
        return same and alike and self.grid.halo == Halo() and has_padded_channels(self.out)

    @cached_property
    def _lanes(self) -> Lanes:
        images, _, rows, columns = self.out.shape
        width = self.facts.width
        if self._flat:
            place = np.arange(-(-images * rows * columns // width) * width).reshape(-1, width)
            image, rest = np.divmod(place, rows * columns)
            return Lanes(image, *np.divmod(rest, columns), image < images)
        pieces = -(-columns // width)
        image, rest = np.divmod(np.arange(images * rows * pieces)[:, None], rows * pieces)
        row, piece = np.divmod(rest, pieces)
        column = piece * width + np.arange(width)
        spread = [np.broadcast_to(axis, column.shape) for axis in (image, row)]
        return Lanes(spread[0], spread[1], column, column < columns)

    @cached_property
    def _spans(self) -> NDArray[np.void]:
        lanes, (down, across) = self._lanes, self.geometry.stride
        image, row, column = lanes.image[:, 0], lanes.row[:, 0], lanes.column[:, 0]
        spans = np.zeros(len(image), SPAN)
        top = self.grid.halo.top * self.grid.pitch
        place = top + image * self.grid.image + row * down * self.grid.pitch + column * across
        self._check(int(place.max()))
        spans["in"] = place
        spans["out"] = image * (self.out.strides[0] // 4) + row * (self.out.strides[2] // 4) + column
        spans["mask"] = _bits(lanes.valid, 1)
        return spans

    @cached_property
    def _taps(self) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
        """Of each tap of the kernel, how far it lies from the output position, and which lanes it has pixels for."""
        geometry, lanes = self.geometry, self._lanes
        (down, across), (height, width) = geometry.stride, geometry.size
        reach, masks = [], []
        for ky in range(geometry.kernel[0]):
            for kx in range(geometry.kernel[1]):
                y = ky * geometry.dilation[0] - geometry.padding[0]
                x = kx * geometry.dilation[1] - geometry.padding[1]
                row, column = lanes.row * down + y, lanes.column * across + x
                inside = lanes.valid & (row >= 0) & (row < height) & (column >= 0) & (column < width)
                reach.append(y * self.grid.pitch + x)
                masks.append(_bits(inside, across))
        self._check(max(map(abs, reach)))
        return np.array(reach, np.int32), np.stack(masks)

    def _check(self, distance: int) -> None:
        """Padding and dilation may reach far outside of the image; distances must fit into the kernel's tables."""
        limit = np.iinfo(np.int32).max
        if distance > limit:
            padding, dilation = self.geometry.padding, self.geometry.dilation
            raise ValueError(
                f"a depthwise convolution with padding {padding} and dilation {dilation} reaches {distance} places "
                f"far in rows of {self.grid.pitch}, at most {limit} are possible: reduce them"
            )

    @cached_property
    def _stream(self) -> tuple[NDArray[np.void], NDArray[np.int32]]:
        """The nonzeros of each output channel with the numbers of their taps."""
        places, values = self.weight.nonzeros()
        channel, tap = np.divmod(places, self.weight.shape[2] * self.weight.shape[3])
        stream = np.empty(len(places), NONZERO)
        stream["offset"], stream["value"] = tap, values
        counts = np.bincount(channel, minlength=self.weight.shape[0])
        return stream, np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    def _tiles(self, choice: KernelChoice) -> NDArray[np.void]:
        return make_tiles(np.arange(len(self._spans)), choice.vectors, width=self.facts.width)

    def record(self, choice: KernelChoice) -> tuple[ctypes.Structure, list[Any]]:
        """All choices share the tables."""
        tiles, spans = self._tiles(choice), self._spans
        (stream, start), (reach, masks) = self._stream, self._taps
        tables = [tiles, spans, stream, start, reach, masks]
        record = Depthwise(
            *(array.ctypes.data for array in (self.start, *tables, self.out, self.bias)),
            self.grid.plane,
            self.out.strides[1] // 4,
            len(spans),
            len(tiles),
            self.out.shape[1],
            self.out.shape[1] // self.grid.channels,
            self.geometry.stride[1],
            int(self._flat),
            int(choice.by_channel),
            *self.bounds,
        )
        return record, [*tables, self.start, self.out, self.bias]

    def progress(self, choice: KernelChoice) -> RowProgress:
        lanes, tiles = self._lanes, self._tiles(choice)
        images, _, rows, _ = self.out.shape
        height = self.geometry.size[0]
        first = tiles["vector"]
        begun = lanes.image[first, 0] * rows + lanes.row[first, 0]
        done = np.append(begun[1:], images * rows)
        # Lanes behind the last pixel belong to no image.
        last = np.minimum(lanes.image * rows + lanes.row, images * rows - 1)[first + tiles["count"] - 1, -1]
        image, row = np.divmod(last, rows)
        reach = (self.geometry.kernel[0] - 1) * self.geometry.dilation[0] - self.geometry.padding[0]
        needed = image * height + np.clip(row * self.geometry.stride[0] + reach + 1, 0, height)
        return RowProgress(done, np.maximum.accumulate(needed))


def _bits(lanes: NDArray[np.bool_], step: int) -> NDArray[np.uint32]:
    """One mask per vector: bit l * step for lane l."""
    places = np.arange(lanes.shape[1], dtype=np.uint32) * np.uint32(step)
    return (lanes.astype(np.uint32) << places).sum(axis=1, dtype=np.uint32)


def add_depthwise(b: Builder, op: Op, geometry: Geometry) -> None:
    """Append a depthwise convolution: it reads whatever grid its input lies in."""
    name = op.inputs[0]
    images, channels, rows, columns = b.shapes[name]
    grid = b.grids.get(name)
    if grid is not None:
        buffer = b.arena.owner(b.arrays[name])
    else:
        grid = Grid(images, channels, 1, rows, columns, Halo())
        buffer = b.temporary_grid(grid)
        copy(b, op.path, grid.view(buffer), b.arrays[name], "planes")
    out, start = b.new(op.output), buffer[grid.margin :]
    parts = b.parts(op, b.weights[op.fields["weight"]], out.shape[1])
    kernel = DepthwiseKernel(*parts, b.threads, geometry, grid, start, out)
    add_layer(b, op, kernel, out)
