"""Convolutions: the tiles of output positions, and every way to compute one layer."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.grid import Geometry, Grid, Halo
from softprune.deploy.engine.library import Choice, Dense, Facts, Library, Progress, Sparse, Walk
from softprune.deploy.format.graph import Weight

PIECE = np.dtype([("offset", "<i4"), ("residual", "<i4"), ("mask", "<u2"), ("more", "<u2")])
TILE = np.dtype([("vector", "<i4"), ("count", "<i4"), ("position", "<i8")])


@dataclass(frozen=True)
class Pieces:
    """The vectors that hold an output pixel, and the pieces in which they are stored."""

    vectors: NDArray[np.int64]
    pieces: NDArray[np.void]
    start: NDArray[np.int32]


def make_pieces(grid: Grid, out: NDArray[np.float32], residual: NDArray[np.float32] | None, *, width: int) -> Pieces:
    """Follow every output pixel from its position in the grid to its places in the output and the residual.

    Args:
        grid: the input's grid; position = image, row and column counted in it.
        out: the output as (images, channels, rows, columns) with columns side by side.
        residual: what is added, or None.
        width: lanes per vector.
    """
    images, _, rows, columns = out.shape
    index = np.arange(images)[:, None, None], np.arange(rows)[:, None], np.arange(columns)
    position = _places(index, (grid.image, grid.pitch, 1))
    target = _places(index, _steps(out))
    source = target if residual is None else _places(index, _steps(residual))
    vector, lane = position // width, position % width
    # A piece ends where the vector ends, where the lanes skip the halo between two rows, or where neighbours in the
    # grid are no neighbours in the output.
    key = np.stack([vector, target - lane, source - lane])
    ends = (np.diff(key, axis=1) != 0).any(axis=0) | (np.diff(position) != 1)
    first = np.flatnonzero(np.concatenate([[True], ends]))
    count = np.diff(np.append(first, len(position)))
    pieces = np.zeros(len(first), PIECE)
    pieces["offset"], pieces["residual"] = key[1, first], key[2, first]
    pieces["mask"] = ((1 << count) - 1) << lane[first]
    owner = vector[first]
    pieces["more"][:-1] = owner[1:] == owner[:-1]
    vectors, start = np.unique(owner, return_index=True)
    return Pieces(vectors, pieces, np.append(start, len(first)).astype(np.int32))


def _steps(array: NDArray[np.float32]) -> tuple[int, int, int]:
    return array.strides[0] // 4, array.strides[2] // 4, 1


def _places(index: tuple[NDArray[np.int64], ...], steps: tuple[int, int, int]) -> NDArray[np.int64]:
    total: NDArray[np.int64] = sum(i * step for i, step in zip(index, steps, strict=True))  # type: ignore[assignment]
    return total.reshape(-1)


def make_tiles(vectors: NDArray[np.int64], count: int, *, width: int) -> NDArray[np.void]:
    """Tiles of at most `count` neighbouring vectors, as equal as possible."""
    breaks = np.flatnonzero(np.diff(vectors) != 1) + 1
    rows = []
    for begin, end in zip([0, *breaks], [*breaks, len(vectors)], strict=True):
        tiles = -(-(end - begin) // count)
        edges = begin + np.arange(tiles + 1) * (end - begin) // tiles
        rows += [(a, b - a, vectors[a] * width) for a, b in pairwise(edges)]
    return np.array(rows, TILE)


Array = NDArray[np.float32]
NONZERO = np.dtype([("offset", "<i4"), ("value", "<f4")])
# Above this density the dense kernel wins without a measurement.
DENSE_FROM = 0.4
# What a tile may read of a block of input channels; most processors have 32 to 48 KB of first-level cache.
L1 = 24 << 10
# Activations that are a cut to a range, done while storing.
BOUNDS = {None: (-math.inf, math.inf), "relu": (0.0, math.inf), "relu6": (0.0, 6.0)}


class Scratch:
    """Memory that the convolutions of a plan use one after the other."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._array = library.zeros(0)

    def at_least(self, count: int) -> Array:
        """An array of at least `count` floats; the content is lost between uses."""
        if self._array.size < count:
            self._array = self._library.zeros(count)
        return self._array

    def forget(self) -> None:
        """Begin anew; those that use it ask again."""
        self._array = self._library.zeros(0)


@dataclass
class ConvKernel:
    """A convolution with everything that its kernels need.

    Attributes:
        facts: of the instruction set.
        threads: threads of the plan.
        geometry: of the convolution.
        grid: of the input.
        start: the input's first plane.
        out: the output.
        residual: what is added before the activation, or None.
        weight: (outputs, inputs per group, rows, columns).
        bias: one number per output.
        groups: groups of channels.
        bounds: what the result is cut to.
        scratch: shared by the convolutions of a plan.
    """

    facts: Facts
    threads: int
    geometry: Geometry
    grid: Grid
    start: Array
    out: Array
    residual: Array | None
    weight: Weight
    bias: Array
    groups: int
    bounds: tuple[float, float]
    scratch: Scratch
    _cache: dict[str, Any] = field(default_factory=dict)

    @property
    def nonzeros(self) -> int:
        """Weights that are not zero."""
        count: int = self._once("count", self.weight.count)
        return count

    @property
    def density(self) -> float:
        """The share of weights that are not zero."""
        return self.nonzeros / max(1, int(np.prod(self.weight.shape)))

    @property
    def macs(self) -> int:
        """Multiply-adds on nonzeros."""
        return self.nonzeros * self.out.shape[0] * self.out.shape[2] * self.out.shape[3]

    def record(self, choice: Choice) -> tuple[ctypes.Structure, list[Any]]:
        """The record of a kernel, and what must stay alive with it."""
        walk, keep = self._walk(choice)
        if choice.kind == "dense":
            taps, weights = self._once("dense", self._dense)
            record: ctypes.Structure = Dense(walk, address(taps), address(weights), taps.shape[1], self.groups)
            return record, [*keep, taps, weights]
        stream, start, channel = self._once(f"sparse{choice.blocks}", lambda: self._sparse(choice.blocks))
        sets = {1: 4, 2: 4, 3: 2, 4: 2}.get(choice.vectors, 1)
        record = Sparse(
            walk, address(stream), address(start), address(channel), sets, int(choice.shifted), choice.blocks
        )
        keep += [stream, start, channel]
        if choice.blocks > 1:
            scratch = self.scratch.at_least(self.scratch_size(choice))
            record.scratch, record.scratch_stride = address(scratch), self._sums(choice)
            keep.append(scratch)
        return record, keep

    def scratch_size(self, choice: Choice) -> int:
        """Floats of scratch that a choice needs."""
        return self._sums(choice) * self.threads if choice.blocks > 1 else 0

    def _sums(self, choice: Choice) -> int:
        """Sums that one thread keeps from one block of input channels to the next."""
        return self.out.shape[1] * choice.vectors * self.facts.width

    def keep_only(self, choice: Choice) -> None:
        """Forget the tables of other choices."""
        tables = f"sparse{choice.blocks}" if choice.kind == "sparse" else "dense"
        self._cache = {key: value for key, value in self._cache.items() if key in (tables, "pieces", "count")}

    def _once(self, key: str, make: Any) -> Any:
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    @property
    def _misaligned(self) -> bool:
        return bool((self._once("taps", lambda: self.geometry.offsets(self.grid)) % self.facts.width).any())

    @property
    def vectors(self) -> int:
        """Vectors of output positions."""
        return len(self._pieces().vectors)

    def _pieces(self) -> Pieces:
        make = lambda: make_pieces(self.grid, self.out, self.residual, width=self.facts.width)  # noqa: E731
        found: Pieces = self._once("pieces", make)
        return found

    @property
    def _direct(self) -> bool:
        """Whether whole vectors can be stored: input, output and residual lie alike, without a halo."""
        alike = [array for array in (self.out, self.residual) if array is not None]
        flat = self.grid.halo == Halo() and self.grid.planes == 1 and self.geometry.kernel == (1, 1)
        wanted = (self.grid.image, self.grid.pitch)
        return flat and all((a.strides[0] // 4, a.strides[2] // 4) == wanted and padded(a) for a in alike)

    def default(self) -> Choice:
        """A good choice without a measurement."""
        if self.density > DENSE_FROM and not self._narrow:
            return self._split(Choice("dense", self.facts.dense_vectors))
        # Small kernels have few nonzeros per loaded place: larger tiles spread the cost of each one.
        limit = min(8 if self.geometry.kernel == (1, 1) else 14, self.facts.sparse_vectors, self.vectors)
        # The size that leaves the smallest tiles largest.
        best = max(range(max(1, limit // 2), limit + 1), key=lambda n: (self.vectors / -(-self.vectors // n), n))
        return self._split(Choice("sparse", best, blocks=self._blocks(best)))

    def choices(self) -> list[Choice]:
        """All choices worth a measurement."""
        found = []
        if self.density > 0.1 and not self._narrow:
            found.append(self._split(Choice("dense", self.facts.dense_vectors)))
        if self.density < 0.8 or self._narrow:
            for size in (n for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16) if n <= self.facts.sparse_vectors):
                if size <= self.vectors:
                    found += [self._split(choice) for choice in self._variants(size)]
        return found

    @property
    def _narrow(self) -> bool:
        """Whether the groups have too few outputs to fill a block of the dense kernel, as depthwise ones have."""
        return self.weight.shape[0] // self.groups < self.facts.dense_channels // 2

    def _variants(self, vectors: int) -> list[Choice]:
        plain = Choice("sparse", vectors)
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

    def _split(self, choice: Choice) -> Choice:
        tiles = -(-self.vectors // choice.vectors)
        return replace(choice, by_channel=self.threads > 1 and tiles < 4 * self.threads)

    def progress(self, choice: Choice) -> Progress:
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
        return Progress(done, np.maximum.accumulate(needed))

    def _tiles(self, choice: Choice) -> NDArray[np.void]:
        return make_tiles(self._pieces().vectors, choice.vectors, width=self.facts.width)

    def _walk(self, choice: Choice) -> tuple[Walk, list[Any]]:
        pieces = self._pieces()
        tiles = self._tiles(choice)
        residual = self.residual
        walk = Walk(
            address(self.start),
            address(tiles),
            address(pieces.pieces),
            address(pieces.start),
            address(self.out),
            None if residual is None else address(residual),
            address(self.bias),
            self.out.strides[1] // 4,
            0 if residual is None else residual.strides[1] // 4,
            len(tiles),
            self.out.shape[1],
            int(self._direct),
            int(choice.by_channel),
            *self.bounds,
        )
        return walk, [tiles, pieces, self.start, self.out, residual, self.bias]

    def _nonzeros(self) -> tuple[NDArray[np.int64], Array]:
        found: tuple[NDArray[np.int64], Array] = self._once("nonzeros", self.weight.nonzeros)
        return found

    def _offsets(self) -> NDArray[np.int32]:
        """Byte offsets of all taps of one group, channel by channel; and of the groups to each other."""
        step = self.grid.planes * self.grid.plane
        inputs = self.weight.shape[1]
        taps = self.geometry.offsets(self.grid).reshape(-1)
        first = (np.arange(self.groups) * inputs * step)[:, None, None]
        table = 4 * (first + (np.arange(inputs) * step)[:, None] + taps)
        if np.abs(table).max() > np.iinfo(np.int32).max:
            raise ValueError(
                f"an input of {4 * self.grid.size} bytes is too large for one convolution: reduce the batch"
            )
        return table.reshape(self.groups, -1).astype(np.int32)

    def _sparse(self, blocks: int) -> tuple[NDArray[np.void], NDArray[np.int32], NDArray[np.int32]]:
        """The stream of nonzeros, block by block of input channels, in each output channel by output channel.

        Channels with equally many nonzeros are neighbours, so that branches are predicted.
        """
        outputs = self.weight.shape[0]
        places, values = self._nonzeros()
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
        start = np.concatenate([[0], ends]).astype(np.int32)
        return stream, start, order

    def _dense(self) -> tuple[NDArray[np.int32], Array]:
        """Weights in blocks of channels that share a loaded pixel."""
        block, outputs = self.facts.dense_channels, self.weight.shape[0] // self.groups
        taps = self._offsets()
        blocks = -(-outputs // block)
        padded = np.zeros((self.groups, blocks * block, taps.shape[1]), np.float32)
        padded[:, :outputs] = self.weight.dense().reshape(self.groups, outputs, -1)
        packed = padded.reshape(self.groups, blocks, block, -1).transpose(0, 1, 3, 2)
        return np.ascontiguousarray(taps), np.ascontiguousarray(packed)


def address(array: Any) -> int:
    """Where the data of an array begins."""
    return int(array.ctypes.data)


def padded(array: Array) -> bool:
    """Whether each channel has room for whole vectors behind its last pixel."""
    images, _, rows, columns = array.shape
    used = images * rows * columns
    room = array.strides[1] // 4
    return room % 16 == 0 and room >= -(-used // 16) * 16 and array.ctypes.data % 64 == 0 and array.strides[3] == 4
