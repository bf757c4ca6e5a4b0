"""Bytes that are made from floats, looked up, moved and compared; and how the builder finds room for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from softprune.deploy.engine.elementwise import merged_rows
from softprune.deploy.engine.grid import Geometry, view_as
from softprune.deploy.engine.int8_layout import (
    MANY_ROWS,
    TILE,
    Bytes,
    Numbering,
    Value8,
    number,
    rows_of,
    tile_bytes,
    up,
)
from softprune.deploy.engine.library import Mean8, Move8, Pool8, Side8
from softprune.deploy.engine.memory import Builder
from softprune.deploy.format.graph import Array, Op
from softprune.deploy.format.shapes import Shape

COPY, LOOKUP, QUANTIZE, DEQUANTIZE, TRANSPOSE = range(5)


def logical(shape: Shape) -> Shape:
    """Images, channels, rows and columns; rows of features are columns of one image."""
    rows = rows_of(shape)
    return (1, rows[1], 1, rows[0]) if rows else shape


def place(b: Builder, name: str, zero: int) -> Value8:
    """Room for a value of bytes; what lies around its pixels is ``zero``."""
    size = logical(b.shapes[name])
    if rows_of(b.shapes[name]) is None:
        found = room(b, size, b.layouts.numbering[name], zero, tiled=name in b.layouts.tiled)
    else:
        found = rows_room(b, size, zero)
    b.values8[name] = found
    return found


def rows_room(b: Builder, size: Shape, zero: int) -> Value8:
    """Room for rows of features: many are pixels in tiles, few lie one after the other."""
    _, features, _, rows = size
    if rows >= MANY_ROWS:
        return room(b, size, number(1, 1, rows, ()), zero, tiled=True)
    bytes_ = rows * up(features)
    key = ("rows", size)
    buffer, _ = b.bytes.take(key, bytes_, zero)
    b.arena.adopt(buffer)
    return Value8(buffer, key, None, size, tiled=False, around=zero)


def room(
    b: Builder,
    size: Shape,
    numbering: Numbering,
    zero: int,
    *,
    tiled: bool,
    planes: int = 1,
    filling: Geometry | None = None,
) -> Value8:
    """Room for images; ``filling`` tells how planes of phases are written, which leaves other places as they were."""
    channels = size[1]
    key = (numbering, channels, planes, tiled, zero, filling)
    wanted = numbering.tiles * tile_bytes(channels) if tiled else channels * planes * numbering.plane
    buffer, fresh = b.bytes.take(key, wanted, zero)
    if fresh:
        b.arena.adopt(buffer)
    return Value8(buffer, key, numbering, size, tiled=tiled, around=zero)


def temporary(b: Builder, value: Value8) -> Value8:
    """The value, whose buffer is free again after the present operation."""
    b.temporary8.append(value)
    return value


def side_of(b: Builder, value: Value8, **planes: int) -> Side8:
    return value.side(b.arena.base(value.buffer), **planes)


def add_move(
    b: Builder,
    path: str,
    what: str,
    out: Side8,
    source: Side8,
    size: Sequence[int],
    kind: int = COPY,
    *,
    scale: float = 0.0,
    zero: int = 0,
    table: Bytes | None = None,
) -> None:
    if math.prod(size):
        record = Move8(out, source, None if table is None else table.ctypes.data, *size, scale, zero, kind, 0)
        b.program.add(path, what, record, [table])


def float_side(b: Builder, path: str, array: Array, shape: Shape) -> Side8:
    """How a move finds the elements of a float value of that shape."""
    if rows_of(shape) is None:
        images, channels, rows, columns = (s // 4 for s in array.strides)
        return Side8(b.arena.base(array), images, channels, rows, columns, 0)
    if len(shape) == 4:
        array = view_as(array, shape[:2]) if array.size else array.reshape(shape[:2])  # type: ignore[assignment]
    flat = merged_rows(b, path, array)
    return Side8(b.arena.base(flat), 0, flat.strides[1] // 4, 0, flat.strides[0] // 4, 0)


def lower_quantize(b: Builder, op: Op) -> None:
    name, zero = op.inputs[0], op.fields["zero"]
    out = place(b, op.output, zero)
    rate = float(np.float32(1) / np.float32(op.fields["scale"]))
    source = float_side(b, op.path, b.arrays[name], b.shapes[name])
    add_move(b, op.path, "quantize", side_of(b, out), source, out.size, QUANTIZE, scale=rate, zero=zero)


def lower_dequantize(b: Builder, op: Op) -> None:
    if _only_mean(b, op):
        b.values8[op.output] = b.values8[op.inputs[0]]  # summed as it is
        return
    source, array = b.values8[op.inputs[0]], b.new(op.output)
    out = float_side(b, op.path, array, b.shapes[op.output])
    scale, zero = op.fields["scale"], op.fields["zero"]
    add_move(b, op.path, "dequantize", out, side_of(b, source), source.size, DEQUANTIZE, scale=scale, zero=zero)


def _only_mean(b: Builder, op: Op) -> bool:
    """Whether a mean over all pixels alone reads what a dequantization makes: bytes are summed exactly."""
    readers, shape = b.readers.get(op.output, []), b.shapes[op.output]
    if len(readers) != 1 or op.output in b.graph.outputs or rows_of(shape) is not None or 0 in shape:
        return False
    kind, fields = readers[0].kind, readers[0].fields
    if kind == "mean":
        return sorted(axis % 4 for axis in fields["axes"]) == [2, 3]
    return bool(kind == "adaptive_avg_pool2d" and fields["size"] == [1, 1])


def lower_mean(b: Builder, op: Op) -> None:
    """The mean over all pixels of what is dequantized."""
    source = b.values8[op.inputs[0]]
    made = b.makers[op.inputs[0]]
    out, n = b.new(op.output), source.numbering
    assert n is not None
    tiles, masks, start = [], [], [0]
    for image in n.pixels.reshape(n.images, -1):
        for tile in np.unique(image // TILE):
            tiles.append(tile)
            masks.append(np.isin(np.arange(TILE) + tile * TILE, image) * np.uint8(255))
        start.append(len(tiles))
    pixels = n.height * n.width
    tables = np.array(tiles, np.int32), np.array(start, np.int32), np.array(masks, np.uint8)
    factor = float(np.float32(made.fields["scale"]) / np.float32(pixels))
    record = Mean8(
        source.start, out.ctypes.data, *(table.ctypes.data for table in tables),
        *source.strides, out.strides[0] // 4, out.strides[1] // 4,
        n.images, source.channels, pixels, made.fields["zero"], factor,
    )  # fmt: skip
    b.program.add(op.path, op.kind, record, [*tables, source.buffer, out])


def zero_of(b: Builder, name: str) -> int:
    """The byte that stands for 0 to those that read a value in a kernel that reaches over its edges."""
    convs = (op for op in b.readers.get(name, ()) if op.kind == "conv2d_int8" and name in op.inputs)
    return next((op.fields["zero"] for op in convs), 0)


def lower_lookup(b: Builder, op: Op) -> None:
    source, out = b.values8[op.inputs[0]], place(b, op.output, zero_of(b, op.output))
    table = np.ascontiguousarray(b.weights[op.fields["table"]].dense().reshape(-1))
    sides, size = (side_of(b, out), side_of(b, source)), out.size
    if out.tiled and source.tiled and out.numbering is not None and out.numbering == source.numbering:
        # Nobody reads what lies between the pixels of tiles: each is one stretch.
        step, tiles = tile_bytes(out.channels), out.numbering.tiles
        sides = (Side8(side.base, 0, step, 0, 1, 0) for side in sides)  # type: ignore[assignment]
        size = (1, tiles, 1, TILE * out.channels)
    add_move(b, op.path, "lookup", *sides, size, LOOKUP, table=table)


# Operations that move bytes: by plain arrays in the usual order, of which NumPy makes views.


def _plain_room(b: Builder, shape: Shape) -> Bytes:
    key = ("plain", math.prod(shape))
    buffer, fresh = b.bytes.take(key, math.prod(shape), 0)
    if fresh:
        b.arena.adopt(buffer)
    temporary(b, Value8(buffer, key, None, logical(shape), tiled=False, around=0))
    return buffer[: math.prod(shape)].reshape(shape)


def _plain(b: Builder, path: str, name: str) -> Bytes:
    """The value in the usual order, for the present operation."""
    shape, value = b.shapes[name], b.values8[name]
    array = _plain_room(b, shape)
    add_move(b, path, "gather", _plain_side(b, array, shape), side_of(b, value), value.size)
    return array


def rows_value(b: Builder, path: str, name: str, rows: int) -> Value8:
    """The value as so many rows of features, its last axis."""
    value, shape = b.values8[name], b.shapes[name]
    if rows_of(shape) is not None and value.size[3] == rows:
        return value
    features = math.prod(shape) // rows
    array, size = _plain(b, path, name), (1, features, 1, rows)
    found = temporary(b, rows_room(b, size, value.around))
    add_move(b, path, "gather", side_of(b, found), Side8(b.arena.base(array), 0, 1, 0, features, 0), size)
    return found


def plain_rows(b: Builder, path: str, value: Value8) -> Bytes:
    """Rows of features one after the other, for the present operation."""
    _, features, _, rows = value.size
    array = _plain_room(b, (rows, features))
    add_move(b, path, "gather", Side8(b.arena.base(array), 0, 1, 0, features, 0), side_of(b, value), value.size)
    return array


def _plain_side(b: Builder, array: Bytes, shape: Shape) -> Side8:
    if rows_of(shape) is None:
        return Side8(b.arena.base(array), *array.strides, 0)
    features = shape[1] if len(shape) == 4 else shape[-1]
    return Side8(b.arena.base(array), 0, 1, 0, features, 0)


def _copy(b: Builder, op: Op, target: Bytes, source: Bytes) -> None:
    """Copy a view into another of the same shape: a move for each index of its first axes beyond four."""
    for index in np.ndindex(*target.shape[:-4]):
        parts = target[index], source[index]
        missing = (1,) * (4 - parts[0].ndim)
        sides = [Side8(b.arena.base(part), *(0 for _ in missing), *part.strides, 0) for part in parts]
        add_move(b, op.path, op.kind, sides[0], sides[1], (*missing, *parts[0].shape))


def scatter(b: Builder, op: Op, view: Bytes) -> None:
    """Put an array in the place of the operation's output."""
    if not view.flags.c_contiguous and view.size:
        whole = _plain_room(b, view.shape)
        _copy(b, op, whole, view)
        view = whole
    shape = b.shapes[op.output]
    out = place(b, op.output, zero_of(b, op.output))
    add_move(b, op.path, op.kind, side_of(b, out), _plain_side(b, view.reshape(shape), shape), out.size)


def lower_identity(b: Builder, op: Op) -> None:
    b.values8[op.output] = b.values8[op.inputs[0]]


def lower_reshape(b: Builder, op: Op) -> None:
    source, shape = b.values8[op.inputs[0]], b.shapes[op.output]
    if rows_of(shape) is not None and rows_of(shape) == rows_of(b.shapes[op.inputs[0]]):
        b.values8[op.output] = source
    else:
        scatter(b, op, _plain(b, op.path, op.inputs[0]))


def lower_permute(b: Builder, op: Op) -> None:
    scatter(b, op, _plain(b, op.path, op.inputs[0]).transpose(op.fields["axes"]))


def lower_slice(b: Builder, op: Op) -> None:
    source = _plain(b, op.path, op.inputs[0])
    index = [slice(None)] * source.ndim
    index[op.fields["axis"]] = slice(op.fields.get("start"), op.fields.get("stop"), op.fields["step"])
    scatter(b, op, source[tuple(index)])


def lower_concat(b: Builder, op: Op) -> None:
    shape = b.shapes[op.output]
    whole, axis, begin = _plain_room(b, shape), op.fields["axis"] % len(shape), 0
    for name in op.inputs:
        source = _plain(b, op.path, name)
        end = begin + source.shape[axis]
        _copy(b, op, whole[(slice(None),) * axis + (slice(begin, end),)], source)
        begin = end
    scatter(b, op, whole)


def lower_max_pool(b: Builder, op: Op) -> None:
    """The largest byte; zeros around the image are no larger than any."""
    shape, out_shape = b.shapes[op.inputs[0]], b.shapes[op.output]
    out = place(b, op.output, zero_of(b, op.output))
    if 0 in out_shape:
        return
    source = b.values8[op.inputs[0]]
    if rows_of(shape) is not None or source.tiled:
        images, _, height, width = shape
        plain = room(b, shape, number(images, height, width, ()), 0, tiled=False)
        add_move(b, op.path, "gather", side_of(b, plain), image_side(b, source, shape), shape)
        source = temporary(b, plain)
    kernel, stride, pad, dilation = (op.fields[key] for key in ("kernel", "stride", "padding", "dilation"))
    span = up(max(shape[3] + 2 * pad[1], (out_shape[3] - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1) + TILE)
    scratch = np.zeros((b.threads, 2, span), np.uint8)
    side, to = side_of(b, source), image_side(b, out, out_shape)
    addresses = side.base.data, to.base.data, scratch.ctypes.data
    strides = side.image, side.channel, side.row, to.image, to.channel, to.row, 2 * span
    record = Pool8(*addresses, *strides, *shape, *out_shape[2:], *kernel, *stride, *pad, *dilation)
    b.program.add(op.path, op.kind, record, [scratch, source.buffer, out.buffer])


def image_side(b: Builder, value: Value8, shape: Shape) -> Side8:
    """The same with images as images, also where they have one pixel and lie as rows of features."""
    side = side_of(b, value)
    if rows_of(shape) is None:
        return side
    # What is an image here is a column there.
    return Side8(side.base, side.column, side.channel, 0, 0, side.tile)
