"""Copies, activations, sums and products."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.runtime.builder import Builder
from softprune.deploy.runtime.graph import Op
from softprune.deploy.runtime.records import Base, Map, Maps

Array = NDArray[np.float32]
COPY, ADD, MUL, AFFINE = range(4)
ACTIVATIONS = {
    name: number
    for number, name in enumerate(
        (
            *(None, "relu", "relu6", "hardswish", "hardsigmoid", "silu", "gelu", "gelu_tanh", "sigmoid", "tanh"),
            *("mish", "elu", "softplus"),
        )
    )
}
# The fields that are an activation's numbers.
NUMBERS = {"elu": ("alpha",), "softplus": ("beta", "threshold")}


def _merged(shape: Sequence[int], strides: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Sort axes by the output's strides and merge those that every array walks through in one step."""
    order = sorted((a for a in range(len(shape)) if shape[a] != 1), key=lambda a: -abs(strides[0][a]))
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis in order:
        if sizes and all(s[-1] == shape[axis] * old[axis] for s, old in zip(steps, strides, strict=True)):
            sizes[-1] *= shape[axis]
            for s, old in zip(steps, strides, strict=True):
                s[-1] = old[axis]
        else:
            sizes.append(shape[axis])
            for s, old in zip(steps, strides, strict=True):
                s.append(old[axis])
    if not sizes:
        return [1], [[1] for _ in strides]
    return sizes, steps


def map_record(b: Builder, kind: int, out: Array, args: Sequence[Array], *, activation: str | None = None) -> Map:
    """The record of one element-wise operation; arguments are broadcast to the output."""
    wide = [np.broadcast_to(array, out.shape) for array in args]
    sizes, steps = _merged(out.shape, [[s // 4 for s in array.strides] for array in (out, *wide)])
    record = Map(dims=len(sizes), kind=kind, activation=ACTIVATIONS[activation])
    bases = [b.arena.base(array) for array in (out, *args)]
    bases += [Base(None, -1)] * (4 - len(bases))
    record.out, record.a, record.b, record.c = bases
    for field, values in zip(("out_stride", "a_stride", "b_stride", "c_stride"), steps, strict=False):
        getattr(record, field)[: len(values)] = values
    record.shape[: len(sizes)] = sizes
    return record


def add_maps(b: Builder, path: str, what: str, records: Sequence[Map]) -> None:
    """Append element-wise operations that do not depend on each other, as one step."""
    if records:
        items = (Map * len(records))(*records)
        b.program.add(path, what, Maps(addressof(items), len(records)), [items])


def copy(b: Builder, path: str, out: Array, source: Array, what: str = "copy") -> None:
    """Copy between layouts."""
    if out.size:
        add_maps(b, path, what, [map_record(b, COPY, out, [source])])


def activate(b: Builder, path: str, array: Array, activation: str) -> None:
    """Apply an activation in place."""
    if array.size:
        add_maps(b, path, activation, [map_record(b, COPY, array, [array], activation=activation)])


def owned(b: Builder, path: str, array: Array) -> Array:
    """The array itself, or a copy if it belongs to the caller: some kernels need a fixed address."""
    if not b.arena.is_slot(array):
        return array
    mine = b.temporary(array.shape)
    copy(b, path, mine, array)
    return mine


def constant(b: Builder, array: Array) -> Array:
    """An array of the program's own, known to the arena."""
    return b.arena.adopt(np.ascontiguousarray(array, np.float32))


def lower_activation(b: Builder, op: Op) -> None:
    """An activation as an operation of its own."""
    name = "gelu_tanh" if op.fields.get("approximate") == "tanh" else op.kind
    source = b.arrays[op.inputs[0]]
    out = b.new(op.output)
    if out.size:
        record = map_record(b, COPY, out, [source], activation=name)
        for place, field in zip(("first", "second"), NUMBERS.get(op.kind, ()), strict=False):
            setattr(record, place, float(op.fields[field]))
        add_maps(b, op.path, op.kind, [record])


def lower_binary(b: Builder, op: Op) -> None:
    """Sum or product of two values, or of a value and a number."""
    args = [b.arrays[name] for name in op.inputs]
    if len(args) == 1:
        args.append(constant(b, np.array([op.fields["value"]], np.float32)))
    if args[0].strides and 0 in np.broadcast_to(args[0], b.shapes[op.output]).strides:
        args.reverse()  # the kernels like the broadcast argument second; both operations commute
    out = b.new(op.output)
    if out.size:
        add_maps(b, op.path, op.kind, [map_record(b, ADD if op.kind == "add" else MUL, out, args)])


def lower_scale_shift(b: Builder, op: Op) -> None:
    """scale * x + shift per channel."""
    source = b.arrays[op.inputs[0]]
    shape = (source.shape[1],) + (1,) * (source.ndim - 2)
    scale, shift = (
        constant(b, b.vector(op.fields[key], source.shape[1]).copy()).reshape(shape) for key in ("scale", "shift")
    )
    out = b.new(op.output)
    if out.size:
        add_maps(b, op.path, op.kind, [map_record(b, AFFINE, out, [source, scale, shift])])
