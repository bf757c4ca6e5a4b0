"""Geometry: where the taps of a convolution lie in a grid.

A stride s splits rows and columns into s phases: plane (py, px) holds the pixels (s*r + py, s*c + px), so that
neighbouring outputs read neighbouring places whatever the stride. Tap k reads at
k*dilation - padding = s*shift + phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.runtime.graph import Op
from softprune.deploy.runtime.grid import Grid, Halo

Pair = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """A convolution without its channels.

    Attributes:
        size: rows and columns of the input.
        out: rows and columns of the output.
        expanded: whether each column of the kernel has planes of its own, shifted so that all its taps are aligned;
            worth its copies when there are few input channels.
    """

    size: Pair
    out: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
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
        """Shift and phase of each column of the kernel; if expanded, no shift, and the tap instead of a phase."""
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


def conv_geometry(op: Op, size: Pair, out: Pair, kernel: Pair, *, channels: int) -> Geometry:
    """The geometry of a conv2d."""
    stride, padding, dilation = (tuple(op.fields[key]) for key in ("stride", "padding", "dilation"))
    expanded = channels <= 4 and kernel[1] > 1
    return Geometry(size, out, kernel, stride, padding, dilation, expanded)
