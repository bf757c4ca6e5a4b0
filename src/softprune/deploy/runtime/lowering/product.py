"""Linear layers with few rows, matrix products, attention."""

from __future__ import annotations

import numpy as np

from softprune.deploy.runtime.builder import Array, Builder
from softprune.deploy.runtime.graph import Op
from softprune.deploy.runtime.lowering.convolution import BOUNDS, lower_linear_rows
from softprune.deploy.runtime.lowering.elementwise import (
    ADD,
    activate,
    add_maps,
    constant,
    copy,
    map_record,
)
from softprune.deploy.runtime.lowering.reduction import add_softmax
from softprune.deploy.runtime.records import Base, Linear, Matmul
from softprune.deploy.runtime.site import DENSE_FROM

# From so many rows on, rows are the lanes.
MANY_ROWS = 8


def _matrix(b: Builder, path: str, array: Array) -> Array:
    """All axes but the last merged, and the last one contiguous."""
    shape = (int(np.prod(array.shape[:-1], dtype=np.int64)), array.shape[-1])
    if array.strides[-1] == 4:
        try:
            view = array[...]
            view.shape = shape
            return view
        except AttributeError:
            pass
    mine = b.temporary(array.shape)
    copy(b, path, mine, array)
    return mine.reshape(shape)


def lower_linear(b: Builder, op: Op) -> None:
    """A linear layer."""
    shape = b.shapes[op.output]
    if 0 in shape:
        b.new(op.output)
        return
    source = b.arrays[op.inputs[0]]
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    if rows >= MANY_ROWS:
        lower_linear_rows(b, op, _merge_rows(b, op.path, source))
        return
    matrix = _matrix(b, op.path, source)
    out = b.arena.contiguous(shape)
    b.arrays[op.output] = out
    activation, residual = op.fields.get("activation"), op.fields.get("residual")
    added = None if residual is None else _matrix(b, op.path, b.arrays[residual])
    record, keep = _few_rows(b, op, matrix, out.reshape(rows, shape[-1]), added)
    b.program.add(op.path, "linear", record, keep, cost=rows * b.weights[op.fields["weight"]].count())
    if activation not in BOUNDS:
        activate(b, op.path, out, activation)


def _merge_rows(b: Builder, path: str, array: Array) -> Array:
    """All axes but the last merged."""
    shape = (int(np.prod(array.shape[:-1], dtype=np.int64)), array.shape[-1])
    try:
        view = array[...]
        view.shape = shape
        return view
    except AttributeError:
        mine = b.temporary(array.shape)
        copy(b, path, mine, array)
        return mine.reshape(shape)


def _few_rows(b: Builder, op: Op, source: Array, out: Array, added: Array | None) -> tuple[Linear, list[Array]]:
    weight = b.weights[op.fields["weight"]]
    outputs, inputs = weight.shape
    bias = b.vector(op.fields.get("bias"), outputs)
    low, high = BOUNDS.get(op.fields.get("activation"), BOUNDS[None])
    record = Linear(rows=source.shape[0], inputs=inputs, outputs=outputs, low=low, high=high)
    record.out, record.input = b.arena.base(out), b.arena.base(source)
    record.residual = Base(None, -1) if added is None else b.arena.base(added)
    record.out_row, record.in_row = out.strides[0] // 4, source.strides[0] // 4
    record.residual_row = 0 if added is None else added.strides[0] // 4
    record.bias = bias.ctypes.data
    places, values = weight.nonzeros()
    if len(places) > DENSE_FROM * 2 * outputs * inputs:
        dense = np.ascontiguousarray(weight.dense())
        record.values, record.kind = dense.ctypes.data, 0
        return record, [bias, dense]
    row, column = places // inputs, (places % inputs).astype(np.int32)
    start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=outputs))]).astype(np.int32)
    values = np.append(values, np.zeros(16, np.float32))
    record.values, record.start, record.kind = values.ctypes.data, start.ctypes.data, 1
    if not b.library.facts.expands:
        record.index = column.ctypes.data
        return record, [bias, values, start, column]
    bits = np.zeros((outputs, -(-inputs // 16) * 16), bool)
    bits[row, column] = True
    masks = np.packbits(bits, axis=1, bitorder="little").view("<u2")
    record.masks, record.kind = masks.ctypes.data, 2
    return record, [bias, values, start, masks]


def add_matmul(b: Builder, path: str, out: Array, left: Array, right: Array, scale: float = 1.0) -> None:
    """Append a batch of matrix products."""
    lead = out.shape[:-2]
    left, right = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (left, right))
    k = left.shape[-1]
    panel = 2 * b.library.facts.width * max(k, 1)
    scratch = b.temporary((b.threads, panel))
    record = Matmul(scratch=scratch.ctypes.data, scratch_stride=panel, scale=scale)
    record.out, record.a, record.b = (b.arena.base(x) for x in (out, left, right))
    record.m, record.n, record.k = out.shape[-2], out.shape[-1], k
    record.out_m, record.out_n = (s // 4 for s in out.strides[-2:])
    record.a_m, record.a_k = (s // 4 for s in left.strides[-2:])
    record.b_k, record.b_n = (s // 4 for s in right.strides[-2:])
    pad = 4 - len(lead)
    record.batch[:] = [1] * pad + list(lead)
    for field, array in (("out_batch", out), ("a_batch", left), ("b_batch", right)):
        getattr(record, field)[:] = [0] * pad + [s // 4 for s in array.strides[:-2]]
    if out.size:
        cost = out.size * k
        b.program.add(path, "matmul", record, [scratch], cost=cost)


def lower_matmul(b: Builder, op: Op) -> None:
    """A batch of matrix products."""
    left, right = (b.arrays[name] for name in op.inputs)
    add_matmul(b, op.path, b.new(op.output), left, right)


def lower_attention(b: Builder, op: Op) -> None:
    """softmax(scale q k' + mask) v, in three steps."""
    q, k, v = (b.arrays[name] for name in op.inputs)
    scores = b.temporary((*q.shape[:-1], k.shape[-2]))
    add_matmul(b, op.path, scores, q, np.swapaxes(k, -1, -2), op.fields["scale"])
    if op.fields.get("mask") is not None and scores.size:
        mask = constant(b, np.array(b.weights[op.fields["mask"]].dense()))
        add_maps(b, op.path, "mask", [map_record(b, ADD, scores, [scores, mask])])
    add_softmax(b, op.path, scores, scores, -1)
    add_matmul(b, op.path, b.new(op.output), scores, v)
