"""Copies, activations, sums and products; operations that move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import addressof

import numpy as np

from softprune.deploy.engine.execution import BOUNDS, Kernel
from softprune.deploy.engine.grid import view_as
from softprune.deploy.engine.library import Base, Map, Maps
from softprune.deploy.engine.memory import Builder
from softprune.deploy.format.graph import Array, Op

COPY, ADD, MUL, AFFINE = range(4)
# In the order of the kernels' enumeration.
ACTIVATIONS: tuple[str | None, ...] = (
    *(None, "relu", "relu6", "hardswish", "hardsigmoid", "silu", "gelu", "gelu_tanh", "sigmoid", "tanh"),
    *("mish", "elu", "softplus"),
)
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
    record = Map(dims=len(sizes), kind=kind, activation=ACTIVATIONS.index(activation))
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
    if out.size:
        add_maps(b, path, what, [map_record(b, COPY, out, [source])])


def add_layer(b: Builder, op: Op, kernel: Kernel, out: Array, what: str | None = None) -> None:
    """Append a layer with weights, and in place the activation that its kernel cannot apply while it stores."""
    b.program.add_kernel(op.path, what or op.kind, kernel)
    activation = op.fields.get("activation")
    if activation not in BOUNDS and out.size:
        add_maps(b, op.path, str(activation), [map_record(b, COPY, out, [out], activation=activation)])


def copied(b: Builder, path: str, array: Array) -> Array:
    """A contiguous copy that lives until the end of the present operation."""
    mine = b.temporary(array.shape)
    copy(b, path, mine, array)
    return mine


def owned(b: Builder, path: str, array: Array) -> Array:
    """The array itself, or a copy if it belongs to the caller: some kernels need a fixed address."""
    return copied(b, path, array) if b.arena.is_slot(array) else array


def merged_rows(b: Builder, path: str, array: Array, *, contiguous: bool = False) -> Array:
    """All axes but the last merged, if wanted with the last one contiguous: a view where that is possible."""
    shape = (math.prod(array.shape[:-1]), array.shape[-1])
    view = None if contiguous and array.strides[-1] != 4 else view_as(array, shape)
    return copied(b, path, array).reshape(shape) if view is None else view


def constant(b: Builder, array: Array) -> Array:
    """An array of the program's own, known to the arena."""
    return b.arena.adopt(np.ascontiguousarray(array, np.float32))


def lower_activation(b: Builder, op: Op) -> None:
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
    source = b.arrays[op.inputs[0]]
    shape = (source.shape[1],) + (1,) * (source.ndim - 2)
    scale, shift = (
        constant(b, b.vector(op.fields[key], source.shape[1]).copy()).reshape(shape) for key in ("scale", "shift")
    )
    out = b.new(op.output)
    if out.size:
        add_maps(b, op.path, op.kind, [map_record(b, AFFINE, out, [source, scale, shift])])


# Operations that move elements: mostly views, sometimes copies.


def lower_identity(b: Builder, op: Op) -> None:
    source = op.inputs[0]
    b.arrays[op.output] = b.arrays[source]
    if source in b.grids:
        b.grids[op.output] = b.grids[source]


def reshaped(b: Builder, path: str, array: Array, shape: tuple[int, ...]) -> Array:
    """The array in another shape: a view where the strides allow it, else a copy that lives as long as needed."""
    view = view_as(array, shape)
    if view is not None:
        return view
    whole = b.arena.contiguous(array.shape)
    copy(b, path, whole, array)
    return whole.reshape(shape)


def lower_reshape(b: Builder, op: Op) -> None:
    b.arrays[op.output] = reshaped(b, op.path, b.arrays[op.inputs[0]], b.shapes[op.output])


def lower_permute(b: Builder, op: Op) -> None:
    b.arrays[op.output] = b.arrays[op.inputs[0]].transpose(op.fields["axes"])


def lower_slice(b: Builder, op: Op) -> None:
    source = b.arrays[op.inputs[0]]
    index = [slice(None)] * source.ndim
    index[op.fields["axis"]] = slice(op.fields.get("start"), op.fields.get("stop"), op.fields["step"])
    b.arrays[op.output] = source[tuple(index)]


def lower_concat(b: Builder, op: Op) -> None:
    out, axis, records, begin = b.new(op.output), op.fields["axis"] % len(b.shapes[op.output]), [], 0
    for name in op.inputs:
        source = b.arrays[name]
        end = begin + source.shape[axis]
        part = out[tuple(slice(begin, end) if a == axis else slice(None) for a in range(out.ndim))]
        if part.size:
            records.append(map_record(b, COPY, part, [source]))
        begin = end
    add_maps(b, op.path, "concat", records)


def lower_pad(b: Builder, op: Op) -> None:
    """An image and what lies around it: nine parts, each a copy of a view of the image."""
    source, out, mode = b.arrays[op.inputs[0]], b.new(op.output), op.fields["mode"]
    top, bottom, left, right = op.fields["padding"]
    records = []
    for to_rows, from_rows in _stretches(source.shape[2], top, bottom, mode):
        for to_columns, from_columns in _stretches(source.shape[3], left, right, mode):
            part = out[:, :, to_rows, to_columns]
            if part.size:
                records.append(map_record(b, COPY, part, [source[:, :, from_rows, from_columns]]))
    add_maps(b, op.path, "pad", records)


def _stretches(size: int, before: int, behind: int, mode: str) -> list[tuple[slice, slice]]:
    """Where the front, the image and the back lie along one axis, and what is read there; one pixel is spread."""
    front, back = slice(0, before), slice(before + size, before + size + behind)
    if mode == "circular":
        sources = slice(size - before, size), slice(0, behind)
    elif mode == "replicate":
        sources = slice(0, 1), slice(size - 1, size)
    else:
        # Backwards from the pixel behind the edge; a stop of -1 would mean the last one.
        end = size - 2 - behind
        sources = slice(before, 0, -1), slice(size - 2, end if end >= 0 else None, -1)
    return [(front, sources[0]), (slice(before, before + size), slice(0, size)), (back, sources[1])]


def lower_constant(b: Builder, op: Op) -> None:
    b.arrays[op.output] = constant(b, np.array(b.weights[op.fields["weight"]].dense()))
