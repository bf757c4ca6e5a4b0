"""Means, softmax and layer norms; pooling and resizing."""

from __future__ import annotations

import math

import numpy as np

from softprune.deploy.engine.elementwise import copied
from softprune.deploy.engine.library import Pool, Reduce, Resize
from softprune.deploy.engine.memory import Builder
from softprune.deploy.format.graph import Array, Op
from softprune.deploy.format.spatial import interpolation

MEAN, SOFTMAX, LAYER_NORM = range(3)


def _record(b: Builder, kind: int, out: Array, source: Array, axes: list[int]) -> Reduce:
    """The record with outer axes and reduced axes apart; both arrays have the same number of axes."""
    outer = [a for a in range(source.ndim) if a not in axes]
    record = Reduce(kind=kind, dims=len(outer), inner_dims=len(axes))
    record.out, record.input = b.arena.base(out), b.arena.base(source)
    for i, axis in enumerate(outer):
        record.shape[i] = source.shape[axis]
        record.out_stride[i], record.in_stride[i] = out.strides[axis] // 4, source.strides[axis] // 4
    for i, axis in enumerate(axes):
        record.inner[i] = source.shape[axis]
        record.inner_stride[i], record.inner_out_stride[i] = source.strides[axis] // 4, out.strides[axis] // 4
    return record


def lower_mean(b: Builder, op: Op) -> None:
    """The mean over some axes, of a pool with one window those of the image; the smallest stride comes last."""
    axes, keepdim = op.fields.get("axes", [2, 3]), op.fields.get("keepdim", True)
    source = b.arrays[op.inputs[0]]
    out = b.new(op.output)
    if not out.size:
        return
    inner = sorted((a % source.ndim for a in axes), key=lambda a: -source.strides[a])
    wide = out if keepdim else np.expand_dims(out, sorted(inner))
    record = _record(b, MEAN, wide, source, inner)
    _merge_inner(record)
    b.program.add(op.path, "mean", record, [], cost=source.size)


def _merge_inner(record: Reduce) -> None:
    """Merge reduced axes that lie in memory like one, so that rows are long."""
    while record.inner_dims > 1:
        last = record.inner_dims - 1
        if record.inner_stride[last - 1] != record.inner[last] * record.inner_stride[last]:
            return
        record.inner[last - 1] *= record.inner[last]
        record.inner_stride[last - 1] = record.inner_stride[last]
        record.inner_dims = last


def add_softmax(b: Builder, path: str, out: Array, source: Array, axis: int) -> None:
    if out.size:
        b.program.add(path, "softmax", _record(b, SOFTMAX, out, source, [axis % source.ndim]), [])


def lower_softmax(b: Builder, op: Op) -> None:
    source = b.arrays[op.inputs[0]]
    add_softmax(b, op.path, b.new(op.output), source, op.fields["axis"])


def lower_layer_norm(b: Builder, op: Op) -> None:
    source = b.arrays[op.inputs[0]]
    out = b.arrays[op.output] = b.arena.contiguous(b.shapes[op.output])
    if not out.size:
        return
    count = len(op.fields["axes"])
    inner = math.prod(source.shape[source.ndim - count :])
    shape = (*source.shape[: source.ndim - count], inner)
    if not source[0:1].flags.c_contiguous or not source.flags.c_contiguous:
        source = copied(b, op.path, source)
    record = _record(b, LAYER_NORM, out.reshape(shape), source.reshape(shape), [len(shape) - 1])
    record.epsilon = op.fields["eps"]
    keep = []
    for field in ("weight", "bias"):
        if op.fields.get(field) is not None:
            values = b.vector(op.fields[field], inner)
            setattr(record, field, values.ctypes.data)
            keep.append(values)
    b.program.add(op.path, "layer_norm", record, keep)


MAX, AVERAGE, ADAPTIVE = range(3)


def lower_pool(b: Builder, op: Op) -> None:
    fields, kind = op.fields, MAX if op.kind == "max_pool2d" else AVERAGE
    sizes = (*fields["kernel"], *fields["stride"], *fields["padding"], *fields.get("dilation", (1, 1)))
    _add_pool(b, op, kind, sizes, include_pad=bool(fields.get("count_include_pad")))


def lower_adaptive(b: Builder, op: Op) -> None:
    """Averages over windows that divide the image; one window is a mean."""
    if tuple(op.fields["size"]) == (1, 1):
        lower_mean(b, op)
    else:
        _add_pool(b, op, ADAPTIVE, (1,) * 8, include_pad=False)


def _add_pool(b: Builder, op: Op, kind: int, sizes: tuple[int, ...], *, include_pad: bool) -> None:
    source, out = b.arrays[op.inputs[0]], b.new(op.output)
    if not out.size:
        return
    numbers = (*source.shape, *out.shape[2:], *sizes, kind, int(include_pad))
    record = Pool(b.arena.base(out), b.arena.base(source), _strides(out), _strides(source), *numbers)
    b.program.add(op.path, op.kind, record, [])


def _strides(array: Array) -> tuple[int, int, int, int]:
    n, c, h, w = (s // 4 for s in array.strides)
    return n, c, h, w


def lower_resize(b: Builder, op: Op) -> None:
    """Nearest or bilinear interpolation with one table per axis."""
    source, out = b.arrays[op.inputs[0]], b.new(op.output)
    if not out.size:
        return
    (y0, y1, wy), (x0, x1, wx) = (interpolation(op.fields, a, source.shape[a + 2], out.shape[a + 2]) for a in (0, 1))
    tables = [*(index.astype(np.int32) for index in (y0, y1, x0, x1)), wy, wx]
    pointers = [table.ctypes.data for table in tables]
    record = Resize(b.arena.base(out), b.arena.base(source), _strides(out), _strides(source), *pointers, *out.shape)
    b.program.add(op.path, "resize", record, tables)
