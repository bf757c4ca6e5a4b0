"""Convolutions: every way to compute one, and how an operation becomes one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.depthwise import add_depthwise, fits
from softprune.deploy.engine.elementwise import COPY, add_layer, add_maps, copied, copy, map_record, owned
from softprune.deploy.engine.execution import DENSE_FROM, NONZERO, Kernel, KernelChoice, RowProgress
from softprune.deploy.engine.grid import Geometry, Grid, Halo, Pieces, has_padded_channels, make_pieces, make_tiles
from softprune.deploy.engine.library import Dense, OutputTiles, Sparse
from softprune.deploy.engine.memory import Arena, Builder
from softprune.deploy.format.graph import Array, Op, Weight

# What a tile may read of a block of input channels; most processors have 32 to 48 KB of first-level cache.
L1 = 24 << 10
# Vectors per tile that are worth a measurement.
TILE_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)


@dataclass
class ConvKernel(Kernel):
    """A convolution; its weight is (outputs, inputs per group, rows, columns)."""

    threads: int
    geometry: Geometry
    grid: Grid  # of the input
    start: Array  # the input's first plane
    out: Array
    residual: Array | None  # what is added before the activation, or None
    groups: int
    arena: Arena  # for scratch, which the convolutions of a program share
    _tables: dict[str, Any] = field(default_factory=dict)

    @property
    def density(self) -> float:
        return self.nonzeros / max(1, int(np.prod(self.weight.shape)))

    @property
    def macs(self) -> int:
        return self.nonzeros * self.out.shape[0] * self.out.shape[2] * self.out.shape[3]

    def record(self, choice: KernelChoice) -> tuple[ctypes.Structure, list[Any]]:
        output, keep = self._output(choice)
        if choice.kind == "dense":
            taps, weights = self._once("dense", self._dense)
            record: ctypes.Structure = Dense(output, taps.ctypes.data, weights.ctypes.data, taps.shape[1], self.groups)
            return record, [*keep, taps, weights]
        tables = self._once(f"sparse{choice.blocks}", lambda: self._sparse(choice.blocks))
        sets = {1: 4, 2: 4, 3: 2, 4: 2}.get(choice.vectors, 1)
        record = Sparse(output, *(table.ctypes.data for table in tables), sets, int(choice.shifted), choice.blocks)
        keep += tables
        if choice.blocks > 1:
            scratch = self.arena.scratch(self.scratch_size(choice))
            record.scratch, record.scratch_stride = scratch.ctypes.data, self._sums(choice)
            keep.append(scratch)
        return record, keep

    def scratch_size(self, choice: KernelChoice) -> int:
        return self._sums(choice) * self.threads if choice.blocks > 1 else 0

    def _sums(self, choice: KernelChoice) -> int:
        """Sums that one thread keeps from one block of input channels to the next."""
        return self.out.shape[1] * choice.vectors * self.facts.width

    def keep_only(self, choice: KernelChoice) -> None:
        wanted = f"sparse{choice.blocks}" if choice.kind == "sparse" else "dense"
        self._tables = {key: tables for key, tables in self._tables.items() if key == wanted}

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._tables:
            self._tables[key] = make()
        return self._tables[key]

    @cached_property
    def _misaligned(self) -> bool:
        return bool((self.geometry.offsets(self.grid) % self.facts.width).any())

    @cached_property
    def _pieces(self) -> Pieces:
        return make_pieces(self.grid, self.out, self.residual, width=self.facts.width)

    @property
    def vectors(self) -> int:
        """Vectors of output positions."""
        return len(self._pieces.vectors)

    @property
    def _direct(self) -> bool:
        """Whether whole vectors can be stored: input, output and residual lie alike, without a halo."""
        alike = [array for array in (self.out, self.residual) if array is not None]
        flat = self.grid.halo == Halo() and self.grid.planes == 1 and self.geometry.kernel == (1, 1)
        wanted = (self.grid.image, self.grid.pitch)
        return flat and all((a.strides[0] // 4, a.strides[2] // 4) == wanted and has_padded_channels(a) for a in alike)

    def default(self) -> KernelChoice:
        if self.density > DENSE_FROM and not self._narrow:
            return self._split(KernelChoice("dense", self.facts.dense_vectors))
        # Small kernels have few nonzeros per loaded place: larger tiles spread the cost of each one.
        limit = min(8 if self.geometry.kernel == (1, 1) else 14, self.facts.sparse_vectors, self.vectors)
        # The size that leaves the smallest tiles largest.
        best = max(range(max(1, limit // 2), limit + 1), key=lambda n: (self.vectors / -(-self.vectors // n), n))
        return self._split(KernelChoice("sparse", best, blocks=self._blocks(best)))

    def choices(self) -> list[KernelChoice]:
        found = []
        if self.density > 0.1 and not self._narrow:
            found.append(KernelChoice("dense", self.facts.dense_vectors))
        if self.density < 0.8 or self._narrow:
            most = min(self.facts.sparse_vectors, self.vectors)
            found += [choice for size in TILE_SIZES if size <= most for choice in self._variants(size)]
        return [self._split(choice) for choice in found]

    @property
    def _narrow(self) -> bool:
        """Whether the groups have too few outputs to fill a block of the dense kernel, as depthwise ones have."""
        return self.weight.shape[0] // self.groups < self.facts.dense_channels // 2

    def _variants(self, vectors: int) -> list[KernelChoice]:
        plain = KernelChoice("sparse", vectors)
        found = [plain]
        if self.facts.shifts and self._misaligned:
            found.append(replace(plain, shifted=True))
        blocks = self._blocks(vectors)
        found += [replace(plain, blocks=n) for n in (blocks, -(-blocks // 2)) if n > 1 and vectors > 2]
        return list(dict.fromkeys(found))

    def _blocks(self, vectors: int) -> int:
        """Blocks of input channels whose part of a tile fits into the first-level cache."""
        inputs = self.weight.shape[1]
        rows = max(shift for shift, _ in self.geometry.rows) - min(shift for shift, _ in self.geometry.rows)
        floats = vectors * self.facts.width + rows * self.grid.pitch
        size = 4 * floats * len(self.geometry.phases) * inputs
        # A run of fewer nonzeros than this costs more than it saves.
        most = self.nonzeros // max(1, 8 * self.weight.shape[0])
        return max(1, min(-(-size // L1), most, inputs)) if self.groups == 1 else 1

    def _split(self, choice: KernelChoice) -> KernelChoice:
        tiles = -(-self.vectors // choice.vectors)
        return replace(choice, by_channel=self.threads > 1 and tiles < 4 * self.threads)

    def progress(self, choice: KernelChoice) -> RowProgress:
        """How far a convolution without stride is after each tile; the tiles are in the order of their positions."""
        images, _, rows, _ = self.out.shape
        height, tiles = self.geometry.size[0], self._tiles(choice)
        reach = max(shift for shift, _ in self.geometry.rows)
        image, row = np.divmod(tiles["position"], self.grid.image)
        begun = image * rows + np.minimum(row // self.grid.pitch, rows)
        done = np.append(begun[1:], images * rows)
        last = tiles["position"] + tiles["count"].astype(np.int64) * self.facts.width - 1
        # The last tile may reach behind the last image: it needs all of that, not the first rows of one more.
        image, row = np.divmod(np.minimum(last, images * self.grid.image - 1), self.grid.image)
        row = np.minimum(row // self.grid.pitch, rows - 1)
        needed = image * height + np.clip(row + reach + 1, 0, height)
        return RowProgress(done, np.maximum.accumulate(needed))

    def _tiles(self, choice: KernelChoice) -> NDArray[np.void]:
        return make_tiles(self._pieces.vectors, choice.vectors, width=self.facts.width)

    def _output(self, choice: KernelChoice) -> tuple[OutputTiles, list[Any]]:
        pieces, tiles, residual = self._pieces, self._tiles(choice), self.residual
        tables = (self.start, tiles, pieces.pieces, pieces.start, self.out)
        output = OutputTiles(
            *(table.ctypes.data for table in tables),
            None if residual is None else residual.ctypes.data,
            self.bias.ctypes.data,
            self.out.strides[1] // 4,
            0 if residual is None else residual.strides[1] // 4,
            len(tiles),
            self.out.shape[1],
            int(self._direct),
            int(choice.by_channel),
            *self.bounds,
        )
        return output, [tiles, pieces, self.start, self.out, residual, self.bias]

    def _offsets(self) -> NDArray[np.int32]:
        """Byte offsets of all taps, (groups, inputs per group x taps)."""
        step = self.grid.planes * self.grid.plane
        inputs = self.weight.shape[1]
        taps = self.geometry.offsets(self.grid).reshape(-1)
        first = (np.arange(self.groups) * inputs * step)[:, None, None]
        table = 4 * (first + (np.arange(inputs) * step)[:, None] + taps)
        if np.abs(table).max() > np.iinfo(np.int32).max:
            size = 4 * self.grid.size
            raise ValueError(f"an input of {size} bytes is too large for one convolution: reduce the batch")
        return table.reshape(self.groups, -1).astype(np.int32)

    def _sparse(self, blocks: int) -> tuple[NDArray[np.void], NDArray[np.int32], NDArray[np.int32]]:
        """The stream of nonzeros, where each run of it begins, and the output channel of each run in a block.

        Runs are ordered by blocks of input channels, in each by output channels: those with equally many nonzeros are
        neighbours, so that branches are predicted.
        """
        outputs = self.weight.shape[0]
        places, values = self._once("nonzeros", self.weight.nonzeros)
        columns = int(np.prod(self.weight.shape[1:]))
        row = places // columns
        counts = np.bincount(row, minlength=outputs)
        order = np.argsort(-counts, kind="stable").astype(np.int32)
        rank = np.empty(outputs, np.int64)
        rank[order] = np.arange(outputs)
        offsets = self._offsets()[row // (outputs // self.groups), places % columns]
        block = places % columns * blocks // columns
        run = block * outputs + rank[row]
        sorting = np.argsort(run, kind="stable")
        stream = np.empty(len(places), NONZERO)
        stream["offset"], stream["value"] = offsets[sorting], values[sorting]
        ends = np.cumsum(np.bincount(run, minlength=blocks * outputs))
        return stream, np.concatenate([[0], ends]).astype(np.int32), order

    def _dense(self) -> tuple[NDArray[np.int32], Array]:
        """Offsets of the taps, and weights in blocks of channels that share a loaded pixel."""
        block, outputs = self.facts.dense_channels, self.weight.shape[0] // self.groups
        taps = self._offsets()
        blocks = -(-outputs // block)
        padded = np.zeros((self.groups, blocks * block, taps.shape[1]), np.float32)
        padded[:, :outputs] = self.weight.dense().reshape(self.groups, outputs, -1)
        packed = padded.reshape(self.groups, blocks, block, -1).transpose(0, 1, 3, 2)
        return np.ascontiguousarray(taps), np.ascontiguousarray(packed)


def geometry_of(b: Builder, op: Op) -> Geometry:
    _, channels, *size = b.shapes[op.inputs[0]]
    kernel = b.weights[op.fields["weight"]].shape[2:]
    stride, padding, dilation = (tuple(op.fields[key]) for key in ("stride", "padding", "dilation"))
    expanded = channels <= 4 and kernel[1] > 1
    return Geometry(tuple(size), b.shapes[op.output][2:], kernel, stride, padding, dilation, expanded)  # type: ignore[arg-type]


def is_depthwise(b: Builder, op: Op) -> bool:
    """Whether the kernel for depthwise convolutions does a conv2d: it needs no halo and no phases."""
    shape, groups = b.shapes[op.inputs[0]], op.fields["groups"]
    alone = groups > 1 and groups == shape[1] and op.fields.get("residual") is None
    return alone and fits(geometry_of(b, op), shape[0], width=b.library.facts.width)


def reads_producer(b: Builder, op: Op) -> bool:
    """Whether an operation is a convolution that reads the grid which its producer writes."""
    return op.kind == "conv2d" and (geometry_of(b, op).plain or is_depthwise(b, op))


def collect_halos(b: Builder) -> None:
    """Ask every convolution that can do without a copy for the halo of its input."""
    for op in b.graph.ops:
        if reads_producer(b, op) and not is_depthwise(b, op):
            name = op.inputs[0]
            b.halos[name] = b.halos.get(name, Halo()).union(geometry_of(b, op).halo)


def lower_conv(b: Builder, op: Op) -> None:
    """A convolution: its input goes into a grid unless it lies in a fitting one."""
    name, geometry = op.inputs[0], geometry_of(b, op)
    if 0 in b.shapes[op.output]:
        b.new(op.output)
    elif is_depthwise(b, op):
        add_depthwise(b, op, geometry)
    else:
        grid = b.grids.get(name)
        if grid is not None and geometry.plain and grid.reaches(geometry.halo):
            start = b.arena.owner(b.arrays[name])[grid.margin :]
        else:
            grid = geometry.grid(*b.shapes[name][:2])
            start = _fill(b, op, geometry, grid)
        _add_conv(b, op, geometry, grid, start, b.weights[op.fields["weight"]])


def _fill(b: Builder, op: Op, geometry: Geometry, grid: Grid) -> Array:
    """Copy an image into the planes of a grid."""
    # An odd size leaves places of some planes empty, which a grid of the same size for an even one fills.
    source, buffer = b.arrays[op.inputs[0]], b.temporary_grid(grid, geometry)
    records = []
    for plane, phase in enumerate(geometry.phases):
        rows, columns, from_rows, from_columns = geometry.source(phase)
        target = grid.view(buffer, plane)[:, :, rows, columns]
        if target.size:
            records.append(map_record(b, COPY, target, [source[:, :, from_rows, from_columns]]))
    add_maps(b, op.path, "planes", records)
    return buffer[grid.margin :]


def _add_conv(b: Builder, op: Op, geometry: Geometry, grid: Grid, start: Array, weight: Weight) -> None:
    """Append the convolution, its residual and its activation."""
    added = b.residual(op)
    if added is not None:
        added = owned(b, op.path, added)
        if added.strides[3] != 4 and added.shape[3] != 1:
            added = copied(b, op.path, added)
    out = b.new(op.output)
    parts = b.parts(op, weight, out.shape[1])
    kernel = ConvKernel(*parts, b.threads, geometry, grid, start, out, added, op.fields["groups"], b.arena)
    add_layer(b, op, kernel, out)


def lower_conv_transpose(b: Builder, op: Op) -> None:
    """A transposed convolution: the pixels are set apart by the stride, then convolved with the turned kernel."""
    (images, channels, height, width), out = b.shapes[op.inputs[0]], b.shapes[op.output]
    if 0 in out:
        b.new(op.output)
        return
    weight, groups = b.weights[op.fields["weight"]], op.fields["groups"]
    (sh, sw), (ph, pw), (dh, dw) = (op.fields[key] for key in ("stride", "padding", "dilation"))
    kh, kw = weight.shape[2:]
    apart = ((height - 1) * sh + 1, (width - 1) * sw + 1)
    padding = (dh * (kh - 1) - ph, dw * (kw - 1) - pw)
    geometry = Geometry(apart, (out[2], out[3]), (kh, kw), (1, 1), padding, (dh, dw))
    grid = geometry.grid(images, channels)
    # The pixels in between stay zero like the halo, so this buffer is not shared with other grids.
    buffer = b.arena.private(grid)
    copy(b, op.path, grid.view(buffer)[:, :, ::sh, ::sw], b.arrays[op.inputs[0]], "planes")
    _add_conv(b, op, geometry, grid, buffer[grid.margin :], _turned(weight, groups))


def _turned(weight: Weight, groups: int) -> Weight:
    """The weight of the convolution that a transposed one amounts to."""
    inputs, per_group, kh, kw = weight.shape
    grouped = weight.dense().reshape(groups, inputs // groups, per_group, kh, kw)
    turned = grouped.transpose(0, 2, 1, 3, 4)[..., ::-1, ::-1]
    shape = (groups * per_group, inputs // groups, kh, kw)
    return Weight(shape, np.ascontiguousarray(turned).reshape(shape))
