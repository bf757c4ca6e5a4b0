"""The steps of a program and the ways to compute them, before and after they are handed to the kernels."""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.grid import Longs
from softprune.deploy.engine.library import KINDS, Band, Facts, KernelLibrary, Wavefront
from softprune.deploy.format.graph import Array, Graph, Op, Weight

# Activations that are a cut to a range, done while storing.
BOUNDS = {None: (-np.inf, np.inf), "relu": (0.0, np.inf), "relu6": (0.0, 6.0)}
# Above this density the dense kernel wins without a measurement.
DENSE_FROM = 0.4
NONZERO = np.dtype([("offset", "<i4"), ("value", "<f4")])


@dataclass(frozen=True, order=True)
class KernelChoice:
    """A way to compute a layer."""

    kind: str  # "sparse", "dense" or "depthwise"; of a linear layer with few rows "index", "masks" or "dense"
    vectors: int  # vectors of pixels per tile; 0 where there are no tiles
    shifted: bool = False  # whether misaligned taps are shifted in registers
    by_channel: bool = False  # whether threads share the channels instead of the tiles
    blocks: int = 1  # blocks of input channels; what a tile reads of one block should fit into the first-level cache

    @property
    def text(self) -> str:
        parts = [self.kind, *[f"{self.vectors} vectors"] * (self.vectors > 0)]
        parts += ["shifted"] * self.shifted + ["by channel"] * self.by_channel
        return ", ".join(parts + [f"{self.blocks} blocks"] * (self.blocks > 1))


@dataclass(frozen=True)
class RowProgress:
    """How far a convolution is after each tile: rows of all images that are complete in the output, or were read."""

    done: Longs
    needed: Longs


@dataclass
class Kernel(ABC):
    """A layer that can be computed in several ways, with everything that its kernels need."""

    runs_in_bands: ClassVar[bool] = True
    facts: Facts
    weight: Weight
    bias: Array  # one number per output
    bounds: tuple[float, float]  # what the result is cut to

    @cached_property
    def nonzeros(self) -> int:
        return self.weight.count()

    @property
    @abstractmethod
    def macs(self) -> int:
        """Multiply-adds on nonzeros."""

    @abstractmethod
    def default(self) -> KernelChoice:
        """A good choice without a measurement."""

    @abstractmethod
    def choices(self) -> list[KernelChoice]:
        """All choices worth a measurement."""

    @abstractmethod
    def record(self, choice: KernelChoice) -> tuple[ctypes.Structure, list[Any]]:
        """What the kernel is given, and the arrays that must live as long."""

    def keep_only(self, choice: KernelChoice) -> None:  # noqa: B027
        """Forget the tables of other choices."""

    def scratch_size(self, choice: KernelChoice) -> int:
        """Floats of scratch that a choice needs."""
        return 0

    def progress(self, choice: KernelChoice) -> RowProgress:
        """How far a convolution is after each tile; tiles are in the order of their positions."""
        raise TypeError(f"{type(self).__name__} does not run in bands of rows")


@dataclass
class Step:
    """One call of a kernel."""

    path: str  # of the module in the original network
    what: str  # the operation, for tables
    record: ctypes.Structure  # what the kernel gets; for a layer with weights that of its present choice
    keep: list[Any]  # arrays that must live as long as the record
    nonzeros: int = 0
    macs: int = 0
    kernel: Kernel | None = None  # of a layer that can be computed in several ways
    choice: KernelChoice | None = None  # the present one

    def choose(self, choice: KernelChoice) -> None:
        assert self.kernel is not None
        self.record, self.keep = self.kernel.record(choice)
        self.choice = choice

    def settle(self, choice: KernelChoice) -> None:
        """Compute the layer in this way from now on, without the tables of the others."""
        assert self.kernel is not None
        if choice != self.choice:
            self.choose(choice)
        self.kernel.keep_only(choice)


@dataclass
class Program:
    """Steps in order; each begins when the one before has ended on all threads."""

    steps: list[Step] = field(default_factory=list)
    chains: list[range] = field(default_factory=list)  # steps that can run as a wavefront
    # first step of a chain -> number of bands in which it runs; others run step by step
    bands: dict[int, int] = field(default_factory=dict)

    def add(self, path: str, what: str, record: ctypes.Structure, keep: list[Any], *, cost: int = 0) -> None:
        """Append a step that can be computed in one way; `cost` counts its multiply-adds."""
        self.steps.append(Step(path, what, record, keep, macs=cost))

    def add_kernel(self, path: str, what: str, kernel: Kernel) -> None:
        choice = kernel.default()
        record, keep = kernel.record(choice)
        kernel.keep_only(choice)
        self.steps.append(Step(path, what, record, keep, kernel.nonzeros, kernel.macs, kernel, choice))


# Wavefront: a chain of convolutions over bands of rows, so that what lies between them stays in the cache.

# A band: step of the chain, first tile, last tile (excluded).
BandRange = tuple[int, int, int]
# Longer chains would keep more values alive than the caches hold.
MAX_CHAIN = 4


def schedule(chain: Sequence[RowProgress], bands: int) -> list[BandRange]:
    """The order of work when the last convolution runs in `bands` parts: each step as late as possible."""
    finished = [0] * len(chain)
    order: list[BandRange] = []

    def advance(step: int, end: int) -> None:
        if end <= finished[step]:
            return
        if step:
            rows = int(chain[step].needed[end - 1])
            advance(step - 1, int(np.searchsorted(chain[step - 1].done, rows)) + 1 if rows else 0)
        order.append((step, finished[step], end))
        finished[step] = end

    count = len(chain[-1].done)
    for _, end in pairwise(np.arange(bands + 1) * count // bands):
        advance(len(chain) - 1, int(end))
    for step, link in enumerate(chain):
        advance(step, len(link.done))  # rows that nobody reads, such as those that a large kernel leaves out
    return order


def chains(graph: Graph, plain: Sequence[bool]) -> list[range]:
    """Operations in a row that can run as a wavefront: each reads the grid that the one before writes.

    A stride ends a chain: what comes out of it is small. `plain` says of each operation whether it is a convolution
    that can read its producer's grid.
    """
    found, begin = [], 0
    for place in range(1, len(graph.ops) + 1):
        linked = place < len(graph.ops) and _linked(graph.ops[place - 1], graph.ops[place]) and plain[place]
        strided = place - 1 > begin and set(graph.ops[place - 1].fields["stride"]) != {1}
        if not linked or strided or place - begin >= MAX_CHAIN:
            if place - begin > 1:
                found.append(range(begin, place))
            begin = place
    return found


def _linked(first: Op, second: Op) -> bool:
    both = first.kind == second.kind == "conv2d" and second.inputs[0] == first.output
    simple = all(op.fields.get("activation") in BOUNDS for op in (first, second))
    # A residual ends a block; longer chains would keep more than one block's values in the cache.
    return both and simple and first.fields.get("residual") is None and second.fields.get("residual") != first.output


class Team:
    def __init__(self, library: KernelLibrary, threads: int) -> None:
        self._library, self.threads, self.process = library, threads, os.getpid()
        self.handle = library.team_new(threads)
        if not self.handle:
            raise OSError(f"could not start {threads} threads")

    def __del__(self) -> None:
        # A forked process has no copy of the threads to end.
        if getattr(self, "handle", None) and self.process == os.getpid():
            self._library.team_free(self.handle)


class Executable:
    """A program in the hands of the kernels."""

    def __init__(self, library: KernelLibrary, team: Team, program: Program, *, grouped: bool = True) -> None:
        self._library, self._team, self.program = library, team, program
        self._keep: list[Any] = []
        self._handle = library.plan_new(team.handle)
        if not self._handle:
            raise MemoryError("no memory for a plan")
        # First step of each entry: a single step or a chain.
        self.places: list[int] = []
        chains = {chain.start: chain for chain in program.chains if grouped and chain.start in program.bands}
        place = 0
        while place < len(program.steps):
            self.places.append(place)
            if place in chains:
                self._set(-1, self._wavefront(chains[place], program.bands[place]))
                place = chains[place].stop
            else:
                self._set(-1, program.steps[place].record)
                self._keep.append(program.steps[place].keep)
                place += 1

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.plan_free(self._handle)

    def _set(self, place: int, record: ctypes.Structure) -> None:
        kind, size = KINDS.index(type(record)), ctypes.sizeof(record)
        if self._library.plan_set(self._handle, place, kind, ctypes.byref(record), size) < 0:
            raise MemoryError(f"step {place} was refused")

    def _wavefront(self, chain: range, bands: int) -> Wavefront:
        steps = [self.program.steps[i] for i in chain]
        progress = [step.kernel.progress(step.choice) for step in steps if step.kernel and step.choice]
        order = schedule(progress, bands)
        items = (Band * len(order))()
        for item, (number, first, last) in zip(items, order, strict=True):
            record = steps[number].record
            item.record, item.kind = ctypes.addressof(record), KINDS.index(type(record))
            item.first, item.last = first, last
        self._keep += [items, [(step.record, step.keep) for step in steps]]
        return Wavefront(ctypes.addressof(items), len(order))

    def choose(self, place: int, choice: KernelChoice) -> None:
        """Compute one layer in another way; only in an executable without wavefronts."""
        step = self.program.steps[place]
        step.choose(choice)
        self._set(place, step.record)
        self._keep[place] = step.keep

    def run(self, addresses: list[int]) -> None:
        """Run all steps; `addresses` are those of the caller's arrays, inputs first."""
        self._library.plan_run(self._handle, (ctypes.c_void_p * max(1, len(addresses)))(*addresses))

    def time(self, addresses: list[int], repeats: int) -> NDArray[np.float64]:
        """The smallest time of each entry in seconds."""
        seconds = np.full(max(1, len(self.places)), np.inf)
        slots = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        self._library.plan_time(self._handle, slots, repeats, seconds.ctypes.data)
        return seconds[: len(self.places)]
