"""Layers of bytes: every way to compute one, and how an operation becomes one."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.elementwise import ADD, add_maps, map_record
from softprune.deploy.engine.execution import Kernel, KernelChoice
from softprune.deploy.engine.grid import Geometry, Grid, Halo
from softprune.deploy.engine.int8_layout import (
    MANY_ROWS,
    TILE,
    Numbering,
    Value8,
    geometry_of,
    in_place,
    is_depthwise,
    number,
    rows_of,
    up,
)
from softprune.deploy.engine.int8_moves import (
    TRANSPOSE,
    add_move,
    image_side,
    place,
    plain_rows,
    room,
    rows_room,
    rows_value,
    scatter,
    side_of,
    temporary,
)
from softprune.deploy.engine.library import Conv8, Depthwise8, Linear8, Side8, Split8
from softprune.deploy.engine.memory import Arena, Builder
from softprune.deploy.format.graph import Array, Op, Weight

QUAD = np.dtype([("offset", "<u2", 4), ("weights", "i1", 4)])
WIDE_QUAD = np.dtype([("offset", "<i4", 4), ("weights", "i1", 4)])
CHANNEL = np.dtype([("channel", "<i4"), ("bias", "<i4"), ("factor", "<f4")])
RUN = np.dtype([("lane", "<i4"), ("count", "<i4"), ("offset", "<i8")])
# Rows per block that are worth a measurement; offsets within a block have 16 bits.
BLOCKS = (1023, 768, 576, 384, 288, 192)
# Rows of pixels that a block of several vectors may have in all: more leave the first-level cache.
MOST_ROWS = 1200


@dataclass(frozen=True)
class Requantizing:
    """How the sums of a layer become its output."""

    factor: NDArray[np.float32]
    bias: NDArray[np.int64]  # with the part of the input's zero
    zero: int = 0
    low: int = 0
    high: int = 255
    residual_factor: float = 0.0
    residual_zero: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        names = ("zero", "low", "high", "residual_factor", "residual_zero")
        return {name: getattr(self, name) for name in names}


def requantizing(b: Builder, op: Op, weight: Weight) -> Requantizing:
    outputs, f = weight.shape[0], op.fields
    places, values = weight.nonzeros()
    sums = np.bincount(places // (int(np.prod(weight.shape)) // outputs), values.astype(np.float64), outputs)
    bias = np.zeros(outputs, np.int64)
    if f.get("bias") is not None:
        bias += b.weights[f["bias"]].dense().reshape(-1)
    factor = np.ascontiguousarray(b.weights[f["factor"]].dense().reshape(-1), np.float32)
    rest = {} if f.get("out_zero") is None else {"zero": f["out_zero"], "low": f["low"], "high": f["high"]}
    if rest and f.get("residual") is not None:
        rest |= {key: f[key] for key in ("residual_factor", "residual_zero")}
    return Requantizing(factor, bias - f["zero"] * sums.astype(np.int64), **rest)


@dataclass(frozen=True)
class FloatOutput:
    """Where a layer puts floats: an array (images, channels, rows, columns) with columns side by side."""

    array: Array
    runs: NDArray[np.void]
    start: NDArray[np.int32]


def float_output(array: Array, numbering: Numbering) -> FloatOutput:
    """The pixels of each tile as runs of neighbours."""
    images, _, rows, columns = array.shape
    index = np.arange(images)[:, None, None], np.arange(rows)[:, None], np.arange(columns)
    strides = [s // 4 for s in array.strides]
    target = (index[0] * strides[0] + index[1] * strides[2] + index[2] * strides[3]).reshape(-1)
    position = numbering.pixels.reshape(-1)
    ends = (np.diff(position) != 1) | (np.diff(target) != 1) | (np.diff(position // TILE) != 0)
    first = np.flatnonzero(np.concatenate([[True], ends])) if len(position) else np.zeros(0, np.int64)
    runs = np.zeros(len(first), RUN)
    runs["lane"], runs["offset"] = position[first] % TILE, target[first]
    runs["count"] = np.diff(np.append(first, len(position)))
    start = np.searchsorted(position[first] // TILE, np.arange(numbering.tiles + 1))
    return FloatOutput(array, runs, start.astype(np.int32))


@dataclass
class Conv8Kernel(Kernel):
    """A convolution of bytes; its weight is (outputs, inputs per group, rows, columns)."""

    runs_in_bands = False
    threads: int
    arena: Arena  # for scratch, which the layers of a program share
    numbering: Numbering
    source: Value8
    offsets: NDArray[
        np.int64
    ]  # bytes from a pixel to each tap of an input channel, (groups, inputs, taps); tiled: none
    out: Value8 | FloatOutput
    residual: Value8 | None
    to: Requantizing
    depthwise: bool
    _tables: dict[Any, Any] = field(default_factory=dict)

    @property
    def _rows(self) -> int:
        """Rows of pixels: pairs of an input channel and a tap."""
        groups, inputs, taps = self.offsets.shape
        return groups * inputs * taps

    @property
    def macs(self) -> int:
        n = self.numbering
        return self.nonzeros * n.images * n.height * n.width

    @property
    def _vectors(self) -> int:
        return self.numbering.tiles * TILE // self.facts.lanes

    def _kinds(self) -> tuple[str, ...]:
        if self.depthwise:
            return ("depthwise",)
        return ("tiles",) if self.source.tiled else ("copied", "direct")

    def default(self) -> KernelChoice:
        kind, vectors = self._kinds()[0], min(2, max(1, self._vectors))
        return self._shared(kind, vectors, 1 if kind == "depthwise" else -(-self._rows // (MOST_ROWS // 3)))

    def choices(self) -> list[KernelChoice]:
        if self.depthwise:
            return [self.default()]
        found = []
        for kind in self._kinds():
            for vectors in range(1, min(4, max(1, self._vectors)) + 1):
                if kind == "direct":
                    found.append(self._shared(kind, vectors, 1))
                    continue
                for block in BLOCKS:
                    rows = min(block, self._rows)
                    if rows * vectors <= MOST_ROWS and (rows == self._rows or rows * vectors >= 384):
                        found.append(self._shared(kind, vectors, -(-self._rows // rows)))
        return list(dict.fromkeys([*found, self.default()]))

    def _shared(self, kind: str, vectors: int, blocks: int) -> KernelChoice:
        groups = -(-self._vectors // vectors)
        by_channel = self.threads > 1 and groups < 3 * self.threads and kind != "depthwise"
        return KernelChoice(kind, vectors, by_channel=by_channel, blocks=blocks)

    def keep_only(self, choice: KernelChoice) -> None:
        self._tables = {
            key: found for key, found in self._tables.items() if key == (choice.kind, choice.blocks, choice.by_channel)
        }

    def _block(self, choice: KernelChoice) -> int:
        return -(-self._rows // choice.blocks)

    def _room(self, choice: KernelChoice) -> tuple[int, int]:
        """Bytes of one thread for sums that wait and for rows that are copied."""
        lanes = choice.vectors * self.facts.lanes
        waiting = 4 * self.weight.shape[0] * lanes if choice.blocks > 1 else 0
        return waiting, up(self._block(choice) * lanes) if choice.kind == "copied" else 0

    def scratch_size(self, choice: KernelChoice) -> int:
        return self.threads * sum(self._room(choice)) // 4

    def record(self, choice: KernelChoice) -> tuple[ctypes.Structure, list[Any]]:
        key = (choice.kind, choice.blocks, choice.by_channel)
        if key not in self._tables:
            self._tables[key] = self._stream(choice)
        quads, start, rows, taps = self._tables[key]
        n, mask = self.numbering, None
        fields: dict[str, Any] = dict(self.to.fields)
        out, keep = self.out, [quads, start, rows, taps, self.source.buffer]
        if isinstance(out, FloatOutput):
            fields |= {"real": out.array.ctypes.data, "real_channel": out.array.strides[1] // 4}
            fields |= {"runs": out.runs.ctypes.data, "run_start": out.start.ctypes.data}
        else:
            # Only kernels that reach over an edge read what lies between the pixels.
            mask = n.mask if n.apart and not out.tiled else None
            fields |= {"out": out.start, "out_channel": out.strides[0], "out_tile": out.strides[1]}
            keep.append(out.buffer)
        if self.residual is not None:
            channel, tile = self.residual.strides
            fields |= {"residual": self.residual.start, "residual_channel": channel, "residual_tile": tile}
            keep.append(self.residual.buffer)
        waiting, copied = self._room(choice)
        if waiting + copied:
            scratch = self.arena.scratch(self.scratch_size(choice))
            fields |= {"waiting": scratch.ctypes.data, "waiting_stride": waiting // 4, "scratch_stride": copied}
            fields["scratch"] = scratch.ctypes.data + self.threads * waiting
            keep.append(scratch)
        record = (Depthwise8 if self.depthwise else Conv8)(
            input=self.source.start,
            taps=taps.ctypes.data if choice.kind == "copied" else None,
            quads=quads.ctypes.data,
            start=start.ctypes.data,
            rows=rows.ctypes.data,
            mask=None if mask is None else mask.ctypes.data,
            in_tile=self.source.strides[1],
            in_row=TILE if choice.kind == "tiles" else 0,
            row_count=self._rows,
            block=self._block(choice),
            blocks=choice.blocks,
            channels=self.weight.shape[0],
            tiles=n.tiles,
            vectors=choice.vectors,
            wide=int(choice.kind in ("direct", "depthwise")),
            by_channel=int(choice.by_channel),
            **fields,
        )
        return record, [*keep, mask, out]

    def _stream(self, choice: KernelChoice) -> tuple[Any, ...]:
        """Quads, where each run of them begins, the output channel of each run, and where each row is found.

        Runs are ordered by blocks of rows, in each by their number of quads, so that branches are predicted.
        """
        outputs, blocks = self.weight.shape[0], choice.blocks
        places, values = self.weight.nonzeros()
        columns = int(np.prod(self.weight.shape[1:]))
        channel = places // columns
        row = channel // (outputs // len(self.offsets)) * columns + places % columns
        block, within = np.divmod(row, self._block(choice))
        counts = np.bincount(block * outputs + channel, minlength=blocks * outputs).reshape(blocks, outputs)
        # Channels of a depthwise convolution stay in order: their planes are read one after the other.
        lengths = np.zeros_like(counts) if self.depthwise else (counts + 3) // 4
        # Threads that share the channels take turns; those of one lie together.
        turn = np.arange(outputs) % self.threads * 2**32 if choice.by_channel else 0
        order = np.argsort(lengths + turn, axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.broadcast_to(np.arange(outputs), order.shape).copy(), axis=1)
        run = block * outputs + rank[block, channel]
        sorting = np.argsort(run, kind="stable")
        run = run[sorting]
        sizes = np.bincount(run, minlength=blocks * outputs)
        quads = (sizes + 3) // 4
        first, first_quad = np.cumsum(sizes) - sizes, np.cumsum(quads) - quads
        index = np.arange(len(run)) - first[run]
        at, slot = first_quad[run] + index // 4, index % 4
        wide = choice.kind in ("direct", "depthwise")
        stream = np.zeros(int(quads.sum()), WIDE_QUAD if wide else QUAD)
        unit = TILE if choice.kind == "tiles" else self.facts.lanes
        offset = (self.offsets.reshape(-1)[row] if wide else within * unit)[sorting]
        # Places without a weight read what the first one reads.
        stream["offset"][at[slot == 0]] = offset[slot == 0][:, None]
        stream["offset"][at, slot], stream["weights"][at, slot] = offset, values[sorting]
        ends = np.concatenate(
            [np.zeros((blocks, 1), np.int64), np.cumsum(quads.reshape(blocks, outputs), axis=1)], axis=1
        )
        start = ends + (np.cumsum(ends[:, -1]) - ends[:, -1])[:, None]
        rows = np.zeros((blocks, outputs), CHANNEL)
        rows["channel"], rows["bias"], rows["factor"] = order, self.to.bias[order], self.to.factor[order]
        return stream, start.astype(np.int32), rows, self.offsets.reshape(-1).astype(np.int32)


def lower_conv(b: Builder, op: Op) -> None:
    """A convolution: it reads its input in place, or a copy in planes, one for each phase of a stride."""
    source, shape, out_shape = b.values8[op.inputs[0]], b.shapes[op.inputs[0]], b.shapes[op.output]
    weight, floats = b.weights[op.fields["weight"]], op.fields.get("out_zero") is None
    geometry, depthwise = geometry_of(op, b.shapes, b.weights), is_depthwise(op, b.shapes)
    if 0 in out_shape:
        b.new(op.output) if floats else place(b, op.output, op.fields["out_zero"])
        return
    simple = rows_of(shape) is not None and rows_of(out_shape) is not None and op.fields["groups"] == 1
    if simple and geometry.kernel == (1, 1) and set(op.fields["padding"]) == {0}:
        _add_linear(b, op, Weight(weight.shape[:2], weight.values, weight.storage, weight.index))
        return
    numbering = b.layouts.numbering.get(op.output)
    if numbering is None and in_place(geometry) and source.numbering is not None and rows_of(shape) is None:
        numbering = source.numbering
    if numbering is None:
        numbering = number(shape[0], out_shape[2], out_shape[3], [geometry])
    reaches = geometry.halo != Halo() and source.around != op.fields["zero"]
    pixel = geometry.kernel == (1, 1) and not depthwise and op.fields["groups"] == 1
    direct = in_place(geometry) and source.numbering == numbering and rows_of(shape) is None and not reaches
    if not direct or (source.tiled and not pixel):
        source = _planes(b, op, source, geometry, numbering)
        offsets = _offsets(geometry, numbering, shape[1])
    elif source.tiled:
        offsets = np.zeros((1, shape[1], 1), np.int64)
    else:
        offsets = _offsets(geometry, numbering, shape[1])
    offsets = offsets.reshape(op.fields["groups"], -1, offsets.shape[-1])
    if np.abs(offsets).max(initial=0) > np.iinfo(np.int32).max:
        raise ValueError(f"an input of {source.buffer.nbytes} bytes is too large for one convolution: reduce the batch")
    if floats:
        target: Value8 | FloatOutput = float_output(b.new(op.output), numbering)
    elif rows_of(out_shape) is None:
        target = place(b, op.output, op.fields["out_zero"])
    else:
        target = temporary(b, room(b, out_shape, numbering, op.fields["out_zero"], tiled=True))
    residual = _residual(b, op, numbering)
    to = requantizing(b, op, weight)
    parts = (b.library.facts, weight, np.zeros(0, np.float32), (0.0, 0.0), b.threads, b.arena)
    b.program.add_kernel(
        op.path, op.kind, Conv8Kernel(*parts, numbering, source, offsets, target, residual, to, depthwise)
    )
    if isinstance(target, Value8) and op.output not in b.values8:
        out = place(b, op.output, op.fields["out_zero"])
        add_move(b, op.path, "gather", image_side(b, out, out_shape), side_of(b, target), out_shape)
    _add_float_residual(b, op)


def _residual(b: Builder, op: Op, numbering: Numbering) -> Value8 | None:
    """What is added before the rounding, with the numbering of the output."""
    name = op.fields.get("residual")
    if name is None or op.fields.get("out_zero") is None:
        return None
    value, shape = b.values8[name], b.shapes[name]
    if value.numbering == numbering and rows_of(shape) is None:
        return value
    moved = temporary(b, room(b, shape, numbering, 0, tiled=True))
    add_move(b, op.path, "gather", side_of(b, moved), image_side(b, value, shape), shape)
    return moved


def _add_float_residual(b: Builder, op: Op) -> None:
    if op.fields.get("residual") is not None and op.fields.get("out_zero") is None:
        out, added = b.arrays[op.output], b.arrays[op.fields["residual"]]
        add_maps(b, op.path, "add", [map_record(b, ADD, out, [out, added])] if out.size else [])


def _planes(b: Builder, op: Op, source: Value8, geometry: Geometry, numbering: Numbering) -> Value8:
    """A copy of an image, a plane for each phase of the stride."""
    shape, phases = b.shapes[op.inputs[0]], geometry.phases
    size = (shape[0], shape[1], *geometry.plane_size)
    copy = room(b, size, numbering, op.fields["zero"], tiled=False, planes=len(phases), filling=geometry)
    side = image_side(b, source, shape)
    if _splits(source, geometry):
        _add_split(b, op, source, geometry, copy)
        return temporary(b, copy)
    for plane, phase in enumerate(phases):
        rows, columns, from_rows, from_columns = geometry.source(phase)
        count = (rows.stop - rows.start, columns.stop - columns.start)
        if min(count) <= 0:
            continue
        target = side_of(b, copy, plane=plane, planes=len(phases))
        target.first = rows.start * target.row + columns.start
        begin = side.first + from_rows.start * side.row + from_columns.start * side.column
        steps = (side.image, side.channel, side.row * geometry.stride[0], side.column * geometry.stride[1], side.tile)
        part = Side8(side.base, *steps, begin)
        add_move(b, op.path, "planes", target, part, (*shape[:2], *count))
    return temporary(b, copy)


def _splits(source: Value8, geometry: Geometry) -> bool:
    """Whether a stride of two deals out the pixels of a plane: those of odd rows and columns begin at 1."""
    planes = source.numbering is not None and not source.tiled
    return planes and geometry.stride == (2, 2) and set(geometry.phases) <= {(y, x) for y in (0, 1) for x in (0, 1)}


def _add_split(b: Builder, op: Op, source: Value8, geometry: Geometry, copy: Value8) -> None:
    side, planes = side_of(b, source), dict.fromkeys([(y, x) for y in (0, 1) for x in (0, 1)])
    count = len(geometry.phases)
    for plane, phase in enumerate(geometry.phases):
        target = side_of(b, copy, plane=plane, planes=count)
        planes[phase] = target.base.data
    strides = side.image, side.channel, side.row, target.image, target.channel, target.row
    record = Split8(side.base.data, *planes.values(), *strides, *b.shapes[op.inputs[0]], copy.around)
    b.program.add(op.path, "planes", record, [source.buffer, copy.buffer])


def _offsets(geometry: Geometry, n: Numbering, channels: int) -> NDArray[np.int64]:
    """Bytes from a pixel's place to each tap of each input channel, (channels, 1, taps)."""
    index = {phase: i for i, phase in enumerate(geometry.phases)}
    table = [[index[py, px] * n.plane + sy * n.pitch + sx for sx, px in geometry.columns] for sy, py in geometry.rows]
    step = len(geometry.phases) * n.plane
    return (np.arange(channels) * step)[:, None, None] + np.array(table, np.int64).reshape(1, 1, -1)


@dataclass
class Linear8Kernel(Kernel):
    """A linear layer with few rows of bytes: all weights, padded to whole tiles of inputs."""

    runs_in_bands = False
    source: Value8
    out: Value8 | Array
    residual: Value8 | None
    to: Requantizing

    @property
    def macs(self) -> int:
        return self.nonzeros * self.source.size[3]

    def default(self) -> KernelChoice:
        return KernelChoice("dense", 0)

    def choices(self) -> list[KernelChoice]:
        return [self.default()]

    def record(self, choice: KernelChoice) -> tuple[ctypes.Structure, list[Any]]:
        outputs, inputs = self.weight.shape
        weights = np.zeros((outputs, up(inputs)), np.int8)
        weights[:, :inputs] = self.weight.dense()
        bias, factor = self.to.bias.astype(np.int32), self.to.factor
        fields: dict[str, Any] = dict(self.to.fields)
        if isinstance(self.out, Value8):
            fields |= {"out": self.out.start, "out_row": up(outputs)}
        else:
            fields |= {"real": self.out.ctypes.data, "out_row": self.out.strides[0] // 4}
        if self.residual is not None:
            fields |= {"residual": self.residual.start, "residual_row": up(outputs)}
        record = Linear8(
            input=self.source.start,
            weights=weights.ctypes.data,
            bias=bias.ctypes.data,
            factor=factor.ctypes.data,
            rows=self.source.size[3],
            inputs=up(inputs),
            outputs=outputs,
            in_row=up(inputs),
            **fields,
        )
        return record, [weights, bias, factor, self.source.buffer, self.out, self.residual]


def lower_linear(b: Builder, op: Op) -> None:
    _add_linear(b, op, b.weights[op.fields["weight"]])


def _add_linear(b: Builder, op: Op, weight: Weight) -> None:
    """Few rows lie one after the other; many are the pixels of a 1 x 1 convolution, whose output stays transposed."""
    shape, floats = b.shapes[op.output], op.fields.get("out_zero") is None
    if 0 in shape:
        b.new(op.output) if floats else place(b, op.output, op.fields["out_zero"])
        return
    # The features of a convolution of images of one pixel are the second axis.
    lead, features = (shape[:1], shape[1:]) if op.kind == "conv2d_int8" else (shape[:-1], shape[-1:])
    rows, outputs = math.prod(lead), weight.shape[0]
    source = rows_value(b, op.path, op.inputs[0], rows)
    residual = (
        None if floats or op.fields.get("residual") is None else rows_value(b, op.path, op.fields["residual"], rows)
    )
    to, base = requantizing(b, op, weight), (b.library.facts, weight, np.zeros(0, np.float32), (0.0, 0.0))
    out: Value8 | Array
    if not floats:
        direct = rows_of(shape) == (rows, outputs)
        size = (1, outputs, 1, rows)
        out = place(b, op.output, to.zero) if direct else temporary(b, rows_room(b, size, to.zero))
    elif rows < MANY_ROWS:
        b.arrays[op.output] = b.arena.contiguous(shape)
        out = b.arrays[op.output].reshape(rows, outputs)
    else:
        grid = Grid(1, outputs, 1, 1, rows, Halo())
        added = op.fields.get("residual") is not None
        out = grid.view(b.temporary_grid(grid) if added else b.arena.grid(grid))
        if added:  # what is added lies row by row
            b.arrays[op.output] = b.arena.contiguous(shape)
        else:
            leading = [4 * math.prod(lead[axis + 1 :]) for axis in range(len(lead))]
            strides = (*leading, out.strides[1], *(4 for _ in features[1:]))
            b.arrays[op.output] = np.ndarray(shape, np.float32, b.arena.owner(out), 4 * grid.margin, strides)
    if source.numbering is None:
        b.program.add_kernel(op.path, "linear_int8", Linear8Kernel(*base, source, out, residual, to))
    else:
        pixels = Weight((*weight.shape, 1, 1), weight.values, weight.storage, weight.index)
        offsets = np.zeros((1, weight.shape[1], 1), np.int64)
        target = out if isinstance(out, Value8) else float_output(out, source.numbering)
        parts = (b.library.facts, pixels, *base[2:], b.threads, b.arena, source.numbering, source)
        kernel = Conv8Kernel(*parts, offsets, target, residual, to, depthwise=False)
        b.program.add_kernel(op.path, "linear_int8", kernel)
        if not isinstance(out, Value8) and op.fields.get("residual") is not None:
            turned = Side8(b.arena.base(b.arrays[op.output]), 0, 1, 0, outputs, 0)
            made = Side8(b.arena.base(out), 0, out.strides[1] // 4, 0, 1, 0)
            add_move(b, op.path, "transpose", turned, made, (1, outputs, 1, rows), TRANSPOSE)
    if isinstance(out, Value8) and op.output not in b.values8:
        scatter(b, op, plain_rows(b, op.path, out).reshape(shape))
    _add_float_residual(b, op)
