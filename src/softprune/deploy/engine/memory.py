"""Where the values of a graph lie: buffers that are used again as soon as nothing needs their content."""

from __future__ import annotations

import bisect
import ctypes
import math
import mmap
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.execution import BOUNDS, Program
from softprune.deploy.engine.grid import Geometry, Grid, Halo, strided
from softprune.deploy.engine.int8_layout import ByteBuffers, Layouts, Value8
from softprune.deploy.engine.library import Base, Facts, KernelLibrary
from softprune.deploy.format.graph import Array, Graph, Op, Weight
from softprune.deploy.format.shapes import Shape

Numbers = TypeVar("Numbers", bound=NDArray[Any])

MAX_BUFFER = 1 << 29
MAX_FLOATS = 1 << 31
# Sizes are rounded up to so many floats: values of nearly the same size can then take each other's place.
ROUND = 1 << 14


class Arena:
    """Buffers of one program."""

    def __init__(self, library: KernelLibrary) -> None:
        self._library = library
        self._starts: list[int] = []
        self._buffers: list[NDArray[Any]] = []
        self._slots: dict[int, int] = {}  # address of a stand-in -> slot
        self._layouts: dict[int, set[Hashable]] = {}  # address -> all layouts of what it holds in turn
        self._free: list[Array] = []
        self._scratch = library.zeros(0)
        # Grids with a halo in the order in which they were asked for, and how they are filled. The places that nobody
        # writes must be zero; a buffer may have held something else.
        self.grids: list[tuple[Array, Grid, Geometry | None]] = []
        self.floats = 0  # in all buffers

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
        return strided(buffer, 0, shape, [math.prod(shape[axis + 1 :]) for axis in range(len(shape))])

    def slot(self, number: int, shape: tuple[int, ...]) -> Array:
        """A stand-in for one of the caller's arrays: an address range that nobody ever touches."""
        reserve = np.frombuffer(mmap.mmap(-1, max(4 * math.prod(shape), 4096)), np.float32)
        self._insert(reserve)
        self._slots[reserve.ctypes.data] = number
        return reserve[: math.prod(shape)].reshape(shape)

    def base(self, array: NDArray[Any]) -> Base:
        """The address of an array as the kernels want it."""
        buffer = self.owner(array)
        start = buffer.ctypes.data
        if start in self._slots:
            return Base(array.ctypes.data - start, self._slots[start])
        return Base(array.ctypes.data, -1)

    def is_slot(self, array: Array) -> bool:
        """Whether an array is one of the caller's."""
        return self.owner(array).ctypes.data in self._slots

    def owner(self, array: NDArray[Any]) -> NDArray[Any]:
        return self._buffers[self._place(array) - 1]

    def holds(self, array: Array) -> bool:
        place = self._place(array) - 1
        return place >= 0 and array.ctypes.data < self._starts[place] + self._buffers[place].nbytes

    def adopt(self, array: Numbers) -> Numbers:
        """Make the arena know an array that lives elsewhere, such as a constant."""
        if array.size:
            self._insert(array)
        return array

    def release(self, array: Array) -> None:
        buffer = self.owner(array)
        if buffer.ctypes.data in self._layouts and not any(buffer is other for other in self._free):
            self._free.append(buffer)

    def scratch(self, count: int) -> Array:
        """At least `count` floats that steps use one after the other; their content is lost in between."""
        if self._scratch.size < count:
            self._scratch = self._library.zeros(count)
        return self._scratch

    def share_scratch(self, program: Program) -> None:
        """Let all steps use the same scratch, no larger than their present choices need.

        It grows while choices are tried, and those that asked early hold a smaller one of their own.
        """
        self._scratch = self._library.zeros(0)
        chosen = [(step, step.kernel, step.choice) for step in program.steps]
        users = [(kernel.scratch_size(choice), step) for step, kernel, choice in chosen if kernel and choice]
        for size, step in sorted(users, key=lambda user: -user[0]):
            if size and step.choice:
                step.choose(step.choice)

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

    def _insert(self, buffer: NDArray[Any]) -> None:
        place = self._place(buffer)
        self._starts.insert(place, buffer.ctypes.data)
        self._buffers.insert(place, buffer)

    def _place(self, array: NDArray[Any]) -> int:
        """How many buffers begin at an array or before it."""
        return bisect.bisect_right(self._starts, array.ctypes.data)


@dataclass
class Builder:
    """A graph that becomes a program for one batch size: what is made of it so far."""

    library: KernelLibrary
    threads: int
    graph: Graph
    weights: Mapping[str, Weight]
    shapes: Mapping[str, Shape]
    arena: Arena
    program: Program = field(default_factory=Program)
    # where each value lies: a view of a buffer, with the axes of its shape in any order
    arrays: dict[str, Array] = field(default_factory=dict)
    grids: dict[str, Grid] = field(default_factory=dict)  # of the values whose buffer a convolution may read directly
    halos: dict[str, Halo] = field(default_factory=dict)  # the halo that the readers of a value wish for
    # values of bytes, how they are to lie, and those that are free again after the present operation
    values8: dict[str, Value8] = field(default_factory=dict)
    layouts: Layouts = field(default_factory=Layouts)
    temporary8: list[Value8] = field(default_factory=list)
    _temporary: list[Array] = field(default_factory=list)

    def new(self, name: str) -> Array:
        """A place for a value: images in a grid, all else in the usual order."""
        shape = self.shapes[name]
        if len(shape) != 4 or 0 in shape or shape[2] * shape[3] == 1:
            self.arrays[name] = self.arena.contiguous(shape)
        else:
            self.grids[name] = grid = Grid(*shape[:2], 1, *shape[2:], self.halos.get(name, Halo()))
            self.arrays[name] = grid.view(self.arena.grid(grid))
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
        for array in self._temporary:
            self.arena.release(array)
        self._temporary.clear()
        for value in self.temporary8:
            self.bytes.give_back(value.key, value.buffer)
        self.temporary8.clear()

    @cached_property
    def readers(self) -> dict[str, list[Op]]:
        """The operations that read each value; asked for once, since a file may have very many."""
        return self.graph.users()

    @cached_property
    def makers(self) -> dict[str, Op]:
        """The operation that makes each value."""
        return {op.output: op for op in self.graph.ops}

    @cached_property
    def bytes(self) -> ByteBuffers:
        """The buffers of values of bytes."""
        return ByteBuffers(self.library.zeros)

    def residual(self, op: Op) -> Array | None:
        name = op.fields.get("residual")
        return None if name is None else self.arrays[name]

    def vector(self, name: str | None, length: int) -> Array:
        """A bias or the like; zeros if there is none."""
        if name is None:
            return np.zeros(length, np.float32)
        return np.ascontiguousarray(self.weights[name].dense().reshape(-1))

    def parts(self, op: Op, weight: Weight, outputs: int) -> tuple[Facts, Weight, Array, tuple[float, float]]:
        """What the kernels of all layers have: instruction set, weight, bias, and what the result is cut to."""
        # Nothing is cut if the activation is another step.
        bounds = BOUNDS.get(op.fields.get("activation"), BOUNDS[None])
        return self.library.facts, weight, self.vector(op.fields.get("bias"), outputs), bounds


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that an engine holds for one batch size."""

    tables: int  # weights in the order of the kernels, biases, and the tables that say what is stored where
    buffers: int  # values between the layers, with their halos, and scratch space
    nonzeros: int  # weights that are not zero
    # the largest sum of values that are needed at the same time, as the graph says; no part of `total`
    activations: int
    # the file where it was copied into memory, 0 where it is mapped; no part of `total`, since it is there once for all
    # batch sizes
    file: int

    @property
    def total(self) -> int:
        """Tables and buffers: what a batch of this size takes beside the file."""
        return self.tables + self.buffers


def measure_memory(builder: Builder, *, held: int) -> MemoryUse:
    """Count the arrays of a program, each once; `held` are the bytes of the file in memory."""
    tables: dict[int, int] = {}
    scratch: dict[int, int] = {}
    for array in _arrays([(step.keep, step.kernel) for step in builder.program.steps]):
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if isinstance(owner.base, bytes | mmap.mmap | memoryview) or builder.arena.holds(owner):
            continue  # bytes of the file or stand-ins for the caller's arrays; buffers, which are counted below
        # Only buffers and scratch space come from the library; NumPy owns all else.
        kind = tables if owner.base is None else scratch
        kind[owner.ctypes.data] = owner.nbytes
    records = sum(ctypes.sizeof(step.record) for step in builder.program.steps)
    nonzeros = sum(weight.count() for weight in builder.weights.values())
    buffers = 4 * builder.arena.floats + builder.bytes.taken + sum(scratch.values())
    peak = peak_activations(builder.graph, builder.shapes)
    return MemoryUse(sum(tables.values()) + records, buffers, nonzeros, peak, held)


def peak_activations(graph: Graph, shapes: Mapping[str, Shape]) -> int:
    """The largest number of bytes of values that are alive during one operation: read by it or later, or made by it."""
    last = graph.last_reads()
    alive = set(graph.inputs)
    peak = 0
    for place, op in enumerate(graph.ops):
        alive.add(op.output)
        peak = max(peak, sum(4 * math.prod(shapes[name]) for name in alive))
        alive = {name for name in alive if last.get(name, 0) > place}
    return peak


def _arrays(node: Any) -> Iterator[Any]:
    """All arrays in lists, tuples, dictionaries and dataclasses."""
    if isinstance(node, np.ndarray):
        yield node
    elif isinstance(node, list | tuple | dict):
        for part in node.values() if isinstance(node, dict) else node:
            yield from _arrays(part)
    elif is_dataclass(node) and not isinstance(node, type):
        for field in fields(node):
            yield from _arrays(getattr(node, field.name))
