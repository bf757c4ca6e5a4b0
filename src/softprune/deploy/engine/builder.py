"""Builder: turns a graph into a program for one batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.arena import Arena
from softprune.deploy.engine.conv import Scratch
from softprune.deploy.engine.depthwise import fits
from softprune.deploy.engine.grid import Geometry, Grid, Halo, conv_geometry
from softprune.deploy.engine.library import Library
from softprune.deploy.engine.plan import Program
from softprune.deploy.format.graph import Graph, Op, Weight
from softprune.deploy.format.shapes import Shape

Array = NDArray[np.float32]


@dataclass
class Builder:
    """What the lowering of operations shares.

    Attributes:
        arrays: where each value lies: a view of a buffer, with the axes of its shape in any order.
        grids: of the values whose buffer a convolution may read directly.
        wanted: the halo that the readers of a value wish for.
    """

    library: Library
    threads: int
    graph: Graph
    weights: Mapping[str, Weight]
    shapes: Mapping[str, Shape]
    arena: Arena
    scratch: Scratch
    program: Program = field(default_factory=Program)
    arrays: dict[str, Array] = field(default_factory=dict)
    grids: dict[str, Grid] = field(default_factory=dict)
    wanted: dict[str, Halo] = field(default_factory=dict)
    _temporary: list[Array] = field(default_factory=list)

    def geometry(self, op: Op) -> Geometry:
        """Of a conv2d."""
        shape, out = self.shapes[op.inputs[0]], self.shapes[op.output]
        kernel = self.weights[op.fields["weight"]].shape
        return conv_geometry(op, (shape[2], shape[3]), (out[2], out[3]), (kernel[2], kernel[3]), channels=shape[1])

    def is_depthwise(self, op: Op) -> bool:
        """Whether the kernel for depthwise convolutions does a conv2d: it needs no halo and no phases."""
        shape, groups = self.shapes[op.inputs[0]], op.fields["groups"]
        alone = groups > 1 and groups == shape[1] and op.fields.get("residual") is None
        return alone and fits(self.geometry(op), shape[0], width=self.library.facts.width)

    def reads_producer(self, op: Op) -> bool:
        """Whether an operation is a convolution that reads the grid which its producer writes."""
        return op.kind == "conv2d" and (self.geometry(op).plain or self.is_depthwise(op))

    def collect_halos(self) -> None:
        """Ask every convolution that can do without a copy for the halo of its input."""
        for op in self.graph.ops:
            if op.kind == "conv2d":
                geometry = self.geometry(op)
                if geometry.plain and not self.is_depthwise(op):
                    name = op.inputs[0]
                    self.wanted[name] = self.wanted.get(name, Halo()).union(geometry.halo)

    def new(self, name: str) -> Array:
        """A place for a value: images in a grid, all else in the usual order."""
        shape = self.shapes[name]
        if len(shape) != 4 or 0 in shape or shape[2] * shape[3] == 1:
            self.arrays[name] = self.arena.contiguous(shape)
            return self.arrays[name]
        grid = Grid(shape[0], shape[1], 1, shape[2], shape[3], self.wanted.get(name, Halo()))
        self.arrays[name] = grid.view(self.arena.grid(grid))
        self.grids[name] = grid
        return self.arrays[name]

    def temporary(self, shape: Shape) -> Array:
        """A contiguous array that is free again after the present operation."""
        array = self.arena.contiguous(shape)
        self._temporary.append(array)
        return array

    def temporary_grid(self, grid: Grid, filling: Geometry | None = None) -> Array:
        """A buffer for a grid that is free again after the present operation."""
        buffer = self.arena.grid(grid, filling)
        self._temporary.append(buffer)
        return buffer

    def end_op(self) -> None:
        """Give the temporary arrays back."""
        for array in self._temporary:
            self.arena.release(array)
        self._temporary.clear()

    def vector(self, name: str | None, length: int, default: float = 0.0) -> Array:
        """A bias or the like; a constant if there is none."""
        if name is None:
            return np.full(length, default, np.float32)
        return np.ascontiguousarray(self.weights[name].dense().reshape(-1))
