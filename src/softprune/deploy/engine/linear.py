"""Linear layers, matrix products and attention."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from softprune.deploy.engine.conv import ConvKernel
from softprune.deploy.engine.elementwise import ADD, COPY, add_layer, add_maps, constant, copy, map_record, merged_rows
from softprune.deploy.engine.execution import BOUNDS, DENSE_FROM, Kernel, KernelChoice
from softprune.deploy.engine.grid import Geometry, Grid, Halo
from softprune.deploy.engine.library import Base, Linear, Matmul
from softprune.deploy.engine.memory import Builder
from softprune.deploy.engine.reduction import add_softmax
from softprune.deploy.format.graph import Array, Op, Weight
from softprune.deploy.format.shapes import Shape

# With a smaller share of nonzeros than this they are looked up one by one, unless a measurement says otherwise.
INDEX_BELOW = 0.15
# So many weights, a megabyte, stay in the second-level cache.
SMALL = 1 << 18


def likely_kind(nonzeros: int, size: int, *, expands: bool) -> str:
    """The way that is most likely the fastest.

    A nonzero by its index takes about as long as seven weights of a dense row. Masks take less memory than dense
    weights and, once these do not fit into a cache, less time.
    """
    if nonzeros < INDEX_BELOW * size:
        return "index"
    if nonzeros > DENSE_FROM * 2 * size or size <= SMALL:
        return "dense"
    if expands:
        return "masks"
    return "index" if nonzeros < 2 * INDEX_BELOW * size else "dense"


@dataclass
class LinearKernel(Kernel):
    """A linear layer with few rows: inputs are the lanes, and zeros are skipped in one of three ways."""

    runs_in_bands = False
    source: tuple[Array, Base]  # rows of inputs, side by side in memory, and where the kernel finds them
    out: tuple[Array, Base]  # the same for the outputs
    residual: tuple[Array, Base] | None  # the same for what is added before the cut, or None

    @property
    def macs(self) -> int:
        return self.nonzeros * len(self.out[0])

    @property
    def _size(self) -> int:
        return self.weight.shape[0] * self.weight.shape[1]

    def default(self) -> KernelChoice:
        return KernelChoice(likely_kind(self.nonzeros, self._size, expands=self.facts.expands), 0)

    def choices(self) -> list[KernelChoice]:
        """Zeros are stored only where they do not take much memory."""
        kinds = {self.default().kind: None, "index": None}
        if self.facts.expands:
            kinds["masks"] = None
        if self._size <= SMALL or 2 * self.nonzeros >= self._size:
            kinds["dense"] = None
        return [KernelChoice(kind, 0) for kind in kinds]

    def record(self, choice: KernelChoice) -> tuple[ctypes.Structure, list[Any]]:
        """Nothing is kept between choices."""
        outputs, inputs = self.weight.shape
        source, out = self.source[0], self.out[0]
        low, high = self.bounds
        record = Linear(rows=source.shape[0], inputs=inputs, outputs=outputs, low=low, high=high)
        record.out, record.input = self.out[1], self.source[1]
        record.out_row, record.in_row = out.strides[0] // 4, source.strides[0] // 4
        record.residual, record.residual_row = Base(None, -1), 0
        if self.residual is not None:
            record.residual, record.residual_row = self.residual[1], self.residual[0].strides[0] // 4
        record.bias = self.bias.ctypes.data
        if choice.kind == "dense":
            dense = np.ascontiguousarray(self.weight.dense())
            record.values, record.kind = dense.ctypes.data, 0
            return record, [self.bias, dense]
        places, values = self.weight.nonzeros()
        row, column = places // inputs, (places % inputs).astype(np.int32)
        start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=outputs))]).astype(np.int32)
        # The kernel for masks loads a whole vector of values at a time.
        values = np.append(values, np.zeros(16, np.float32))
        record.values, record.start = values.ctypes.data, start.ctypes.data
        if choice.kind == "index":
            record.index, record.kind = column.ctypes.data, 1
            return record, [self.bias, values, start, column]
        bits = np.zeros((outputs, -(-inputs // 16) * 16), bool)
        bits[row, column] = True
        masks = np.packbits(bits, axis=1, bitorder="little").view("<u2")
        record.masks, record.kind = masks.ctypes.data, 2
        return record, [self.bias, values, start, masks]


# From so many rows on, rows are the lanes.
MANY_ROWS = 8


def add_linear(b: Builder, op: Op, source: Array, weight: Weight, added: Array | None, shape: Shape) -> Array:
    """Append a linear layer of rows of inputs, with a weight (outputs, inputs) and a residual; its output."""
    if 0 in shape:
        return b.arena.contiguous(shape)
    add = _add_as_pixels if math.prod(shape[:-1]) >= MANY_ROWS else _add_by_rows
    return add(b, op, source, weight, added, shape)


def _add_by_rows(b: Builder, op: Op, source: Array, weight: Weight, added: Array | None, shape: Shape) -> Array:
    matrix = merged_rows(b, op.path, source, contiguous=True)
    out = b.arena.contiguous(shape)
    flat = out.reshape(-1, shape[-1])
    added = None if added is None else merged_rows(b, op.path, added, contiguous=True)
    residual = None if added is None else (added, b.arena.base(added))
    ends = (matrix, b.arena.base(matrix)), (flat, b.arena.base(flat))
    add_layer(b, op, LinearKernel(*b.parts(op, weight, shape[-1]), *ends, residual), out, "linear")
    return out


def _add_as_pixels(b: Builder, op: Op, source: Array, weight: Weight, added: Array | None, shape: Shape) -> Array:
    """Many rows are the pixels of a 1 x 1 convolution, whose output stays transposed."""
    outputs, inputs = weight.shape
    source = merged_rows(b, op.path, source)
    rows = len(source)
    geometry = Geometry((1, rows), (1, rows), (1, 1), (1, 1), (0, 0), (1, 1))
    grid, out_grid = (Grid(1, channels, 1, 1, rows, Halo()) for channels in (inputs, outputs))
    buffer = b.temporary_grid(grid)
    copy(b, op.path, grid.view(buffer)[0, :, 0, :].T, source, "transpose")
    out = out_grid.view(b.arena.grid(out_grid))
    # Rows of the output seen as all axes of its shape but the last.
    leading = [4 * math.prod(shape[axis + 1 : -1]) for axis in range(len(shape) - 1)]
    strides = (*leading, out.strides[1])
    target = np.ndarray(shape, np.float32, b.arena.owner(out), 4 * out_grid.margin, strides)
    activation = op.fields.get("activation")
    plain = added is None and activation in BOUNDS
    facts, kernel_weight, bias, bounds = b.parts(op, weight.reshaped((outputs, inputs, 1, 1)), outputs)
    layout = (b.threads, geometry, grid, buffer[grid.margin :], out)
    kernel = ConvKernel(facts, kernel_weight, bias, bounds if plain else BOUNDS[None], *layout, None, 1, b.arena)
    b.program.add_kernel(op.path, op.kind, kernel)
    if not plain:
        args = [target] if added is None else [target, added]
        kind = COPY if added is None else ADD
        add_maps(b, op.path, "finish", [map_record(b, kind, target, args, activation=activation)])
    return target


def lower_linear(b: Builder, op: Op) -> None:
    weight, source = b.weights[op.fields["weight"]], b.arrays[op.inputs[0]]
    b.arrays[op.output] = add_linear(b, op, source, weight, b.residual(op), b.shapes[op.output])


def lower_pixel(b: Builder, op: Op) -> None:
    """A convolution of images of one pixel: a linear layer."""
    weight, added = b.weights[op.fields["weight"]], b.residual(op)
    source, flat = b.arrays[op.inputs[0]][:, :, 0, 0], weight.reshaped(weight.shape[:2])
    added = None if added is None else added[:, :, 0, 0]
    b.arrays[op.output] = add_linear(b, op, source, flat, added, b.shapes[op.output][:2])[:, :, None, None]


def add_matmul(b: Builder, path: str, out: Array, left: Array, right: Array, scale: float = 1.0) -> None:
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
        b.program.add(path, "matmul", record, [scratch], cost=out.size * k)


def lower_matmul(b: Builder, op: Op) -> None:
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
