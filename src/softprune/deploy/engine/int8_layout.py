"""Where the bytes of an integer network lie: planes or tiles of 64 places, with the zero of the value around them.

Pixels are numbered image by image, row by row; a row is followed by places that hold the value's zero, so that a
kernel that reaches over an edge finds what padding means. Layers that read and write pixels of one size share the
numbering: the output has the number of the input below the kernel's middle. Channels lie one after the other
(planes), or the 64 places of a tile for all channels side by side (tiles), which 1 x 1 convolutions read in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.grid import Geometry
from softprune.deploy.engine.library import Base, Side8
from softprune.deploy.format.graph import Array, Graph, Op, Weight
from softprune.deploy.format.shapes import Shape

Bytes = NDArray[np.uint8]
TILE = 64
# From so many rows on, the rows of a linear layer are its pixels.
MANY_ROWS = 8
# A buffer of more bytes is an error or an attack.
MAX_BYTES = 1 << 31


def up(number: int, step: int = TILE) -> int:
    """The number rounded up to a multiple of `step`."""
    return -(-number // step) * step


@dataclass(frozen=True)
class Numbering:
    """The places of pixels: height and width are those of the output, rows of zeros follow each image."""

    images: int
    height: int
    width: int
    pitch: int  # places from row to row
    image: int  # places from image to image
    gap: int

    @property
    def tiles(self) -> int:
        pixels = self.images * self.height * self.width
        return up((self.images - 1) * self.image + (self.height - 1) * self.pitch + self.width) // TILE if pixels else 0

    @property
    def margin(self) -> int:
        """Bytes before the first place and behind the last tile that a kernel may reach.

        It may do so where nothing lies between the pixels: of an output that its padding has made wider.
        """
        return up((self.gap + 1) * self.pitch)

    @property
    def apart(self) -> bool:
        """Whether there are places between pixels."""
        return self.gap > 0 or self.pitch > self.width

    @property
    def plane(self) -> int:
        """Bytes per channel: an odd number of cache lines, so that planes do not fall into the same cache sets."""
        lines = (2 * self.margin + max(self.tiles * TILE, up(self.images * self.image))) // TILE
        return (lines | 1) * TILE if lines > 8 else lines * TILE

    @cached_property
    def pixels(self) -> NDArray[np.int64]:
        """The number of every pixel, (images, height, width)."""
        image, row = np.arange(self.images)[:, None, None], np.arange(self.height)[:, None]
        return image * self.image + row * self.pitch + np.arange(self.width)

    @cached_property
    def mask(self) -> Bytes:
        """255 where a place is a pixel."""
        found = np.zeros(self.tiles * TILE, np.uint8)
        found[self.pixels.reshape(-1)] = 255
        return found


@dataclass
class Value8:
    """A value of bytes, (images, channels, rows, columns); rows of features are columns of one image."""

    buffer: Bytes
    key: Hashable  # of the buffer among those that can hold the same kind of value
    numbering: Numbering | None  # None: few rows of features, each row contiguous and padded to whole tiles
    size: Shape
    tiled: bool
    around: int  # the byte between and around the pixels

    @property
    def channels(self) -> int:
        return self.size[1]

    @property
    def start(self) -> int:
        """The address of the first pixel."""
        margin = 0 if self.tiled or self.numbering is None else self.numbering.margin
        return int(self.buffer.ctypes.data) + margin

    @property
    def strides(self) -> tuple[int, int]:
        """Bytes from channel to channel and from tile to tile."""
        assert self.numbering is not None
        return (TILE, tile_bytes(self.channels)) if self.tiled else (self.numbering.plane, TILE)

    def side(self, base: Base, *, plane: int = 0, planes: int = 1) -> Side8:
        """How a move finds its elements; of several planes per channel one."""
        if self.numbering is None:
            return Side8(base, 0, 1, 0, up(self.channels), 0)
        n = self.numbering
        if self.tiled:
            return Side8(base, n.image, TILE, n.pitch, 1, tile_bytes(self.channels))
        at = Base((base.data or 0) + n.margin + plane * n.plane, base.slot)
        return Side8(at, n.image, planes * n.plane, n.pitch, 1, 0)


def tile_bytes(channels: int) -> int:
    """Bytes of a tile of all channels: an odd number of cache lines."""
    return TILE * (channels | 1)


@dataclass
class ByteBuffers:
    """Buffers of bytes: what lies around the pixels stays as it was filled, since only like values share one."""

    zeros: Callable[[int], Array]  # makes an array of so many floats
    taken: int = 0  # bytes in all
    _free: dict[Hashable, list[Bytes]] = field(default_factory=dict)

    def take(self, key: Hashable, size: int, zero: int) -> tuple[Bytes, bool]:
        """A buffer of ``size`` bytes filled with ``zero``, and whether it is new."""
        if self._free.get(key):
            return self._free[key].pop(), False
        if size + self.taken > MAX_BYTES:
            raise ValueError(f"the network needs a buffer of {size} bytes: too large, or the batch is too large")
        count = up(size + 2 * TILE) // 4
        buffer: Bytes = self.zeros(count).view(np.uint8)
        buffer[:] = zero
        self.taken += buffer.nbytes
        return buffer, True

    def give_back(self, key: Hashable, buffer: Bytes) -> None:
        free = self._free.setdefault(key, [])
        if not any(buffer is other for other in free):
            free.append(buffer)


def rows_of(shape: Shape) -> tuple[int, int] | None:
    """Rows and features of a value that is no image of several pixels; None for images."""
    if len(shape) == 4 and shape[2] * shape[3] != 1:
        return None
    return (shape[0], shape[1]) if len(shape) == 4 else (math.prod(shape[:-1]), shape[-1])


def geometry_of(op: Op, shapes: Mapping[str, Shape], weights: Mapping[str, Weight]) -> Geometry:
    kernel = weights[op.fields["weight"]].shape[2:]
    stride, padding, dilation = (tuple(op.fields[key]) for key in ("stride", "padding", "dilation"))
    return Geometry(shapes[op.inputs[0]][2:], shapes[op.output][2:], kernel, stride, padding, dilation)  # type: ignore[arg-type]


def in_place(geometry: Geometry) -> bool:
    """Whether an output pixel may have the number of an input pixel."""
    return geometry.plain and geometry.size == geometry.out


def is_depthwise(op: Op, shapes: Mapping[str, Shape]) -> bool:
    return 1 < op.fields["groups"] == shapes[op.inputs[0]][1]


@dataclass
class Layouts:
    """The numbering of every image of bytes, and which of them lie in tiles."""

    numbering: dict[str, Numbering] = field(default_factory=dict)
    tiled: set[str] = field(default_factory=set)


def plan_layouts(
    graph: Graph, shapes: Mapping[str, Shape], kinds: Mapping[str, str], weights: Mapping[str, Weight]
) -> Layouts:
    """Images that a layer reads in place, adds and writes have one numbering, with room for all kernels."""
    images = [name for name, kind in kinds.items() if kind == "uint8" and rows_of(shapes[name]) is None]
    leader = {name: name for name in images}

    def find(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    def join(names: Iterable[str]) -> None:
        for first, second in pairwise(names):
            leader[find(second)] = find(first)

    convs = [op for op in graph.ops if op.kind == "conv2d_int8"]
    geometries = {op.output: geometry_of(op, shapes, weights) for op in convs}
    for op in convs:
        residual = op.fields.get("residual")
        same = [op.output, *([residual] if residual is not None and kinds[residual] == "uint8" else [])]
        same += [op.inputs[0]] if in_place(geometries[op.output]) else []
        join(name for name in same if name in leader)
    wanted: dict[str, list[Geometry]] = {}
    for op in convs:
        geometry = geometries[op.output]
        # An output of floats has the numbers of its input.
        for name in (op.output, *([op.inputs[0]] if in_place(geometry) else [])):
            if name in leader:
                wanted.setdefault(find(name), []).append(geometry)
                break
    numbering = {}
    for name in images:
        count, _, height, width = shapes[name]
        numbering[name] = number(count, height, width, wanted.get(find(name), ()))
    return Layouts(numbering, _tiled(graph, images, shapes, geometries))


def number(images: int, height: int, width: int, readers: Iterable[Geometry]) -> Numbering:
    """The numbering of pixels with room for the kernels of all readers."""
    pitch, tall, gap = width, height, 0
    for geometry in readers:
        halo, (rows, columns) = geometry.halo, geometry.plane_size
        pitch = max(pitch, columns + max(halo.left, halo.right))
        tall, gap = max(tall, rows), max(gap, halo.top, halo.bottom)
    return Numbering(images, height, width, pitch, (tall + gap) * pitch, gap)


def _tiled(
    graph: Graph, images: Iterable[str], shapes: Mapping[str, Shape], geometries: Mapping[str, Geometry]
) -> set[str]:
    """Images that nobody needs in planes: kernels larger than one pixel, depthwise ones and pools do."""
    found = set(images)
    for op in graph.ops:
        if op.kind == "conv2d_int8":
            geometry = geometries[op.output]
            pixel = geometry.kernel == (1, 1) and in_place(geometry) and not is_depthwise(op, shapes)
            # A larger stride than one deals out planes.
            if not pixel:
                found.discard(op.inputs[0])
        elif op.kind == "max_pool2d":
            found -= {op.inputs[0], op.output}
    return found
