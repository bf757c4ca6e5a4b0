"""Linear layers with few rows, matrix products, attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softprune.deploy.runtime.builder import Array, Builder
from softprune.deploy.runtime.graph import Op
from softprune.deploy.runtime.grid import view_as
from softprune.deploy.runtime.linear import LinearSite
from softprune.deploy.runtime.lowering.convolution import lower_conv, lower_linear_rows
from softprune.deploy.runtime.lowering.elementwise import (
    ADD,
    activate,
    add_maps,
    constant,
    copy,
    map_record,
)
from softprune.deploy.runtime.lowering.reduction import add_softmax
from softprune.deploy.runtime.records import Matmul
from softprune.deploy.runtime.shape import Shape
from softprune.deploy.runtime.site import BOUNDS
from softprune.deploy.runtime.tensorfile import product
from softprune.deploy.runtime.weight import Weight

# From so many rows on, rows are the lanes.
MANY_ROWS = 8


def _matrix(b: Builder, path: str, array: Array) -> Array:
    """All axes but the last merged, and the last one contiguous."""
    shape = (int(np.prod(array.shape[:-1], dtype=np.int64)), array.shape[-1])
    view = view_as(array, shape) if array.strides[-1] == 4 else None
    if view is not None:
        return view
    mine = b.temporary(array.shape)
    copy(b, path, mine, array)
    return mine.reshape(shape)


@dataclass(frozen=True)
class Job:
    """A linear layer: operation, input, weight (outputs, inputs), residual, and the shape of its output."""

    op: Op
    source: Array
    weight: Weight
    added: Array | None
    shape: Shape

    @property
    def rows(self) -> int:
        """Rows of the input."""
        return product(self.shape[:-1])


def lower_linear(b: Builder, op: Op) -> None:
    """A linear layer."""
    residual = op.fields.get("residual")
    added = None if residual is None else b.arrays[residual]
    weight = b.weights[op.fields["weight"]]
    b.arrays[op.output] = _linear(b, Job(op, b.arrays[op.inputs[0]], weight, added, b.shapes[op.output]))


def lower_conv2d(b: Builder, op: Op) -> None:
    """A convolution; on images of one pixel it is a linear layer."""
    shape, weight = b.shapes[op.output], b.weights[op.fields["weight"]]
    size = (*b.shapes[op.inputs[0]][2:], *weight.shape[2:], *op.fields["stride"], op.fields["groups"])
    if set(size) != {1} or set(op.fields["padding"]) != {0} or 0 in shape:
        lower_conv(b, op)
        return
    residual = op.fields.get("residual")
    added = None if residual is None else b.arrays[residual][:, :, 0, 0]
    flat = weight.reshaped(weight.shape[:2])
    out = _linear(b, Job(op, b.arrays[op.inputs[0]][:, :, 0, 0], flat, added, shape[:2]))
    b.arrays[op.output] = out[:, :, None, None]


def _linear(b: Builder, job: Job) -> Array:
    op = job.op
    if 0 in job.shape:
        return b.arena.contiguous(job.shape)
    if job.rows >= MANY_ROWS:
        return lower_linear_rows(b, op, _merge_rows(b, op.path, job.source), job.weight, job.added, job.shape)
    matrix = _matrix(b, op.path, job.source)
    out = b.arena.contiguous(job.shape)
    added = None if job.added is None else _matrix(b, op.path, job.added)
    flat = out.reshape(job.rows, job.shape[-1])
    activation = op.fields.get("activation")
    site = LinearSite(
        b.library.facts,
        job.weight,
        b.vector(op.fields.get("bias"), job.shape[-1]),
        BOUNDS.get(activation, BOUNDS[None]),
        (matrix, b.arena.base(matrix)),
        (flat, b.arena.base(flat)),
        None if added is None else (added, b.arena.base(added)),
    )
    b.program.add_site(op.path, "linear", site)
    if activation not in BOUNDS:
        activate(b, op.path, out, str(activation))
    return out


def _merge_rows(b: Builder, path: str, array: Array) -> Array:
    """All axes but the last merged."""
    shape = (int(np.prod(array.shape[:-1], dtype=np.int64)), array.shape[-1])
    view = view_as(array, shape)
    if view is not None:
        return view
    mine = b.temporary(array.shape)
    copy(b, path, mine, array)
    return mine.reshape(shape)


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
