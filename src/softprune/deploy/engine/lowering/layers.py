"""Convolutions, linear layers, matrix products and attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from softprune.deploy.engine.builder import Array, Builder
from softprune.deploy.engine.conv import BOUNDS, ConvKernel
from softprune.deploy.engine.depthwise import DepthwiseKernel
from softprune.deploy.engine.grid import Geometry, Grid, Halo, view_as
from softprune.deploy.engine.library import Matmul
from softprune.deploy.engine.linear import LinearKernel
from softprune.deploy.engine.lowering.elementwise import (
    ADD,
    COPY,
    activate,
    add_maps,
    constant,
    copy,
    map_record,
    owned,
)
from softprune.deploy.engine.lowering.reduction import add_softmax
from softprune.deploy.format.graph import Op, Weight
from softprune.deploy.format.shapes import Shape


def lower_conv(b: Builder, op: Op) -> None:
    """A convolution: its input goes into a grid unless it lies in a fitting one."""
    name, geometry = op.inputs[0], b.geometry(op)
    images, channels = b.shapes[name][:2]
    if 0 in b.shapes[op.output]:
        b.new(op.output)
        return
    if b.is_depthwise(op):
        _lower_depthwise(b, op, geometry)
        return
    grid = b.grids.get(name)
    if grid is not None and geometry.plain and grid.reaches(geometry.halo):
        start = _start(grid, b.arena.owner(b.arrays[name]))
    else:
        grid = geometry.grid(images, channels)
        start = _fill(b, op.path, b.arrays[name], geometry, grid)
    weight = b.weights[op.fields["weight"]]
    _finish(b, op, geometry, grid, start, weight, op.fields["groups"])


def _lower_depthwise(b: Builder, op: Op, geometry: Geometry) -> None:
    """A depthwise convolution: it reads whatever grid its input lies in."""
    name = op.inputs[0]
    images, channels, rows, columns = b.shapes[name]
    grid = b.grids.get(name)
    if grid is not None:
        buffer = b.arena.owner(b.arrays[name])
    else:
        grid = Grid(images, channels, 1, rows, columns, Halo())
        buffer = b.temporary_grid(grid)
        copy(b, op.path, grid.view(buffer), b.arrays[name], "planes")
    activation = op.fields.get("activation")
    bounds = BOUNDS.get(activation, BOUNDS[None])
    out = b.new(op.output)
    bias = b.vector(op.fields.get("bias"), out.shape[1])
    weight = b.weights[op.fields["weight"]]
    kernel = DepthwiseKernel(
        b.library.facts, b.threads, geometry, grid, _start(grid, buffer), out, weight, bias, bounds
    )
    b.program.add_kernel(op.path, op.kind, kernel)
    if activation not in BOUNDS:
        activate(b, op.path, out, str(activation))


def _start(grid: Grid, buffer: Array) -> Array:
    return buffer[grid.margin :]


def _fill(b: Builder, path: str, source: Array, geometry: Geometry, grid: Grid) -> Array:
    """Copy an image into the planes of a grid."""
    # An odd size leaves places of some planes empty, which a grid of the same size for an even one fills.
    buffer = b.temporary_grid(grid, geometry)
    records = []
    for plane, phase in enumerate(geometry.phases):
        rows, columns, from_rows, from_columns = geometry.source(phase)
        target = grid.view(buffer, plane)[:, :, rows, columns]
        if target.size:
            records.append(map_record(b, COPY, target, [source[:, :, from_rows, from_columns]]))
    add_maps(b, path, "planes", records)
    return _start(grid, buffer)


def _finish(b: Builder, op: Op, geometry: Geometry, grid: Grid, start: Array, weight: Weight, groups: int) -> None:
    """Append the convolution, its residual and its activation."""
    residual = op.fields.get("residual")
    added = None if residual is None else _rows(b, op.path, owned(b, op.path, b.arrays[residual]))
    activation = op.fields.get("activation")
    bounds = BOUNDS.get(activation, BOUNDS[None])
    out = b.new(op.output)
    bias = b.vector(op.fields.get("bias"), out.shape[1])
    facts = b.library.facts
    kernel = ConvKernel(facts, b.threads, geometry, grid, start, out, added, weight, bias, groups, bounds, b.scratch)
    b.program.add_kernel(op.path, op.kind, kernel)
    if activation not in BOUNDS:
        activate(b, op.path, out, str(activation))


def _rows(b: Builder, path: str, array: Array) -> Array:
    """An image whose columns lie side by side."""
    if array.strides[3] == 4 or array.shape[3] == 1:
        return array
    mine = b.temporary(array.shape)
    copy(b, path, mine, array)
    return mine


def lower_conv_transpose(b: Builder, op: Op) -> None:
    """A transposed convolution: the pixels are set apart by the stride, then convolved with the turned kernel."""
    shape, out = b.shapes[op.inputs[0]], b.shapes[op.output]
    if 0 in out:
        b.new(op.output)
        return
    weight, groups = b.weights[op.fields["weight"]], op.fields["groups"]
    (sh, sw), (ph, pw), (dh, dw) = (op.fields[key] for key in ("stride", "padding", "dilation"))
    kh, kw = weight.shape[2:]
    apart = ((shape[2] - 1) * sh + 1, (shape[3] - 1) * sw + 1)
    padding = (dh * (kh - 1) - ph, dw * (kw - 1) - pw)
    geometry = Geometry(apart, (out[2], out[3]), (kh, kw), (1, 1), padding, (dh, dw))
    grid = geometry.grid(shape[0], shape[1])
    # The pixels in between stay zero like the halo, so this buffer is not shared with other grids.
    buffer = b.arena.private(grid)
    target = grid.view(buffer)[:, :, ::sh, ::sw]
    copy(b, op.path, target, b.arrays[op.inputs[0]], "planes")
    _finish(b, op, geometry, grid, _start(grid, buffer), _turned(weight, groups), groups)


def _turned(weight: Weight, groups: int) -> Weight:
    """The kernel of the convolution that a transposed one amounts to: (outputs, inputs per group, rows, columns)."""
    inputs, per_group, kh, kw = weight.shape
    grouped = weight.dense().reshape(groups, inputs // groups, per_group, kh, kw)
    turned = grouped.transpose(0, 2, 1, 3, 4)[..., ::-1, ::-1]
    shape = (groups * per_group, inputs // groups, kh, kw)
    return Weight(shape, np.ascontiguousarray(turned).reshape(shape))


def lower_linear_rows(
    b: Builder, op: Op, source: Array, weight: Weight, added: Array | None, shape: tuple[int, ...]
) -> Array:
    """A linear layer with many rows: rows are the pixels of a 1 x 1 convolution, its output stays transposed."""
    rows, inputs = source.shape
    outputs = weight.shape[0]
    geometry = Geometry((1, rows), (1, rows), (1, 1), (1, 1), (0, 0), (1, 1))
    grid = Grid(1, inputs, 1, 1, rows, Halo())
    buffer = b.temporary_grid(grid)
    copy(b, op.path, grid.view(buffer)[0, :, 0, :].T, source, "transpose")
    out_grid = Grid(1, outputs, 1, 1, rows, Halo())
    out = out_grid.view(b.arena.grid(out_grid))
    flat = out[0, :, 0, :].T
    whole, margin = b.arena.owner(out), 4 * out_grid.margin
    target = np.ndarray(shape, np.float32, whole, offset=margin, strides=_strides(flat, shape))
    activation = op.fields.get("activation")
    plain = added is None and activation in BOUNDS
    bounds = BOUNDS[activation] if plain else BOUNDS[None]
    kernel = ConvKernel(
        b.library.facts,
        b.threads,
        geometry,
        grid,
        _start(grid, buffer),
        out,
        None,
        weight.reshaped((outputs, inputs, 1, 1)),
        b.vector(op.fields.get("bias"), outputs),
        1,
        bounds,
        b.scratch,
    )
    b.program.add_kernel(op.path, op.kind, kernel)
    if not plain:
        args = [target] if added is None else [target, added]
        add_maps(b, op.path, "finish", [map_record(b, len(args) - 1, target, args, activation=activation)])
    return target


def _strides(flat: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of the rows of `flat` seen as all axes of `shape` but the last."""
    strides, step = [flat.strides[1]], flat.strides[0]
    for size in reversed(shape[:-1]):
        strides.insert(0, step)
        step *= size
    return tuple(strides)


# Linear layers with few rows, matrix products, attention.

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
        return math.prod(self.shape[:-1])


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
    kernel = LinearKernel(
        b.library.facts,
        job.weight,
        b.vector(op.fields.get("bias"), job.shape[-1]),
        BOUNDS.get(activation, BOUNDS[None]),
        (matrix, b.arena.base(matrix)),
        (flat, b.arena.base(flat)),
        None if added is None else (added, b.arena.base(added)),
    )
    b.program.add_kernel(op.path, "linear", kernel)
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
