"""Convolutions, transposed convolutions, and linear layers with many rows, on grids."""

from __future__ import annotations

import numpy as np

from softprune.deploy.runtime.builder import Array, Builder
from softprune.deploy.runtime.depthwise import DepthwiseSite
from softprune.deploy.runtime.geometry import Geometry
from softprune.deploy.runtime.graph import Op
from softprune.deploy.runtime.grid import Grid, Halo
from softprune.deploy.runtime.lowering.elementwise import COPY, activate, add_maps, copy, map_record, owned
from softprune.deploy.runtime.site import BOUNDS, Site
from softprune.deploy.runtime.weight import Weight


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
    site = DepthwiseSite(b.library.facts, b.threads, geometry, grid, _start(grid, buffer), out, weight, bias, bounds)
    b.program.add_site(op.path, op.kind, site)
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
    site = Site(facts, b.threads, geometry, grid, start, out, added, weight, bias, groups, bounds, b.scratch)
    b.program.add_site(op.path, op.kind, site)
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
    site = Site(
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
    b.program.add_site(op.path, op.kind, site)
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
