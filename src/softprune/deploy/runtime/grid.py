"""Grid: how the images of a convolution's input lie in memory.

Channel by channel, the images of the batch stand below each other in one plane; a row has `pitch` places, of which
the first `width` belong to the image and the others are zero; `top` and `bottom` rows of zeros surround each image.
So a kernel that reaches over an edge reads zeros, and a plane is one long row of output positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
LINE = 16  # floats per cache line


@dataclass(frozen=True)
class Halo:
    """Zeros that a convolution needs around its input, and the width of its output."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def union(self, other: Halo) -> Halo:
        """Enough for both."""
        return Halo(
            max(self.top, other.top),
            max(self.bottom, other.bottom),
            max(self.left, other.left),
            max(self.right, other.right),
        )


@dataclass(frozen=True)
class Grid:
    """The layout of `planes` planes per channel.

    Attributes:
        images: images per plane.
        channels: channels.
        planes: planes per channel (phases of a stride).
        height: rows of an image in a plane.
        width: columns of an image in a plane.
        halo: zeros around it.
    """

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
