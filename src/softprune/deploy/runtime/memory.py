"""Memory: what a plan of the engine holds, counted from the arrays themselves."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from softprune.deploy.runtime.arena import Arena
from softprune.deploy.runtime.program import Plan
from softprune.deploy.runtime.shape import Shape
from softprune.deploy.runtime.spx import Model
from softprune.deploy.runtime.tensorfile import product


@dataclass(frozen=True)
class Memory:
    """Bytes that an engine holds for one batch size.

    Attributes:
        tables: weights in the order of the kernels, biases, and the tables that say what is stored where.
        buffers: values between the layers, with their halos, and scratch space.
        nonzeros: weights that are not zero.
        activations: the largest sum of values that are needed at the same time, as the graph says; no part of `total`.
        file: the file where it was copied into memory, 0 where it is mapped; no part of `total`, since it is there once
            for all batch sizes.
    """

    tables: int
    buffers: int
    nonzeros: int
    activations: int
    file: int

    @property
    def total(self) -> int:
        """Tables and buffers: what a batch of this size takes beside the file."""
        return self.tables + self.buffers


def measure_memory(model: Model, plan: Plan, arena: Arena, shapes: dict[str, Shape]) -> Memory:
    """Count the arrays of a plan, each once."""
    steps = plan.program.steps
    tables: dict[int, int] = {}
    scratch: dict[int, int] = {}
    for array in _arrays([(step.keep, step.site) for step in steps]):
        owner = _owner(array)
        if isinstance(owner.base, bytes | mmap.mmap | memoryview) or arena.holds(owner):
            continue  # bytes of the file or stand-ins for the caller's arrays; buffers, which are counted below
        # Only buffers and scratch space come from the library; NumPy owns all else.
        kind = tables if owner.base is None else scratch
        kind[owner.ctypes.data] = owner.nbytes
    records = sum(ctypes.sizeof(step.record) for step in steps)
    nonzeros = sum(weight.count() for weight in model.weights.values())
    buffers = 4 * arena.floats + sum(scratch.values())
    peak = peak_activations(model, shapes)
    return Memory(sum(tables.values()) + records, buffers, nonzeros, peak, model.file.held)


def peak_activations(model: Model, shapes: dict[str, Shape]) -> int:
    """The largest number of bytes of values that are alive during one operation: read by it or later, or made by it."""
    last = {name: len(model.graph.ops) for name in model.graph.outputs}
    for place, op in enumerate(model.graph.ops):
        for name in op.reads:
            last[name] = max(place, last.get(name, 0))
    alive = set(model.graph.inputs)
    peak = 0
    for place, op in enumerate(model.graph.ops):
        alive.add(op.output)
        peak = max(peak, sum(4 * product(shapes[name]) for name in alive))
        alive = {name for name in alive if last.get(name, 0) > place}
    return peak


def _owner(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _arrays(node: Any) -> Iterator[Any]:
    """All arrays in lists, tuples, dictionaries and plain records."""
    if isinstance(node, np.ndarray):
        yield node
    elif isinstance(node, list | tuple):
        for part in node:
            yield from _arrays(part)
    elif isinstance(node, dict):
        yield from _arrays(list(node.values()))
    elif is_dataclass(node) and not isinstance(node, type):
        for field in fields(node):
            yield from _arrays(getattr(node, field.name))
