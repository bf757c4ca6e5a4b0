"""The steps of a plan, before and after they are handed to the kernels, and the chains that run as a wavefront."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.conv import BOUNDS, ConvKernel
from softprune.deploy.engine.depthwise import DepthwiseKernel
from softprune.deploy.engine.library import KINDS, Band, Choice, Group, Library, Progress
from softprune.deploy.engine.linear import LinearKernel
from softprune.deploy.format.graph import Graph, Op

# Wavefront: a chain of convolutions over bands of rows, so that what lies between them stays in the cache.

# A band: step of the chain, first tile, last tile (excluded).
BandRange = tuple[int, int, int]
# Longer chains would keep more values alive than the caches hold.
MAX_CHAIN = 4


def schedule(chain: Sequence[Progress], bands: int) -> list[BandRange]:
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

    A stride ends a chain: what comes out of it is small.

    Args:
        graph: the network.
        plain: per operation, whether it is a convolution that can read its producer's grid.
    """
    found, begin = [], 0
    for place in range(1, len(graph.ops) + 1):
        linked = place < len(graph.ops) and _linked(graph.ops[place - 1], graph.ops[place]) and plain[place]
        strided = place - 1 > begin and set(graph.ops[place - 1].fields["stride"]) != {1}
        linked = linked and not strided and place - begin < MAX_CHAIN
        if not linked:
            if place - begin > 1:
                found.append(range(begin, place))
            begin = place
    return found


def _linked(first: Op, second: Op) -> bool:
    both = first.kind == second.kind == "conv2d" and second.inputs[0] == first.output
    simple = all(op.fields.get("activation") in BOUNDS for op in (first, second))
    # A residual ends a block; longer chains would keep more than one block's values in the cache.
    return both and simple and first.fields.get("residual") is None and second.fields.get("residual") != first.output


@dataclass
class Step:
    """One call of a kernel.

    Attributes:
        path: of the module in the original network.
        what: the operation, for tables.
        record: what the kernel gets; for a layer with weights that of its present choice.
        keep: arrays that must live as long as the record.
        kernel: of a layer that can be computed in several ways.
        choice: the present one.
    """

    path: str
    what: str
    record: ctypes.Structure
    keep: list[Any]
    nonzeros: int = 0
    macs: int = 0
    kernel: ConvKernel | DepthwiseKernel | LinearKernel | None = None
    choice: Choice | None = None

    def choose(self, choice: Choice) -> None:
        """Compute the layer in another way."""
        assert self.kernel is not None
        self.record, self.keep = self.kernel.record(choice)
        self.choice = choice

    def settle(self, choice: Choice) -> None:
        """Compute the layer in this way from now on: the tables of other ways are given up."""
        assert self.kernel is not None
        if choice != self.choice:
            self.choose(choice)
        self.kernel.keep_only(choice)

    def progress(self) -> Progress:
        """How far the convolution is after each of its tiles."""
        assert isinstance(self.kernel, ConvKernel | DepthwiseKernel) and self.choice is not None
        return self.kernel.progress(self.choice)


@dataclass
class Program:
    """Steps in order; each begins when the one before has ended on all threads.

    Attributes:
        steps: the steps.
        chains: steps that can run as a wavefront.
        bands: first step of a chain -> number of bands in which it runs; others run step by step.
    """

    steps: list[Step] = field(default_factory=list)
    chains: list[range] = field(default_factory=list)
    bands: dict[int, int] = field(default_factory=dict)

    def add(self, path: str, what: str, record: ctypes.Structure, keep: list[Any], *, cost: int = 0) -> None:
        """Append a step that can be computed in one way; `cost` counts its multiply-adds."""
        self.steps.append(Step(path, what, record, keep, macs=cost))

    def add_kernel(self, path: str, what: str, kernel: ConvKernel | DepthwiseKernel | LinearKernel) -> None:
        """Append a layer with its default choice."""
        choice = kernel.default()
        record, keep = kernel.record(choice)
        kernel.keep_only(choice)
        step = Step(path, what, record, keep, kernel.nonzeros, kernel.macs, kernel, choice)
        self.steps.append(step)

    def share_scratch(self) -> None:
        """Let all convolutions use the same scratch, no larger than their present choices need.

        It grows while choices are tried, and those that asked early hold a smaller one of their own.
        """
        users = []
        for step in self.steps:
            if isinstance(step.kernel, ConvKernel) and step.choice is not None and step.choice.blocks > 1:
                step.kernel.scratch.forget()
                users.append((step.kernel.scratch_size(step.choice), step, step.choice))
        for _, step, choice in sorted(users, key=lambda user: -user[0]):
            step.choose(choice)


class Team:
    """Threads of the kernels."""

    def __init__(self, library: Library, threads: int) -> None:
        self._library, self.threads, self.process = library, threads, os.getpid()
        self.handle = library.team_new(threads)
        if not self.handle:
            raise OSError(f"could not start {threads} threads")

    def __del__(self) -> None:
        # A forked process has no copy of the threads to end.
        if getattr(self, "handle", None) and self.process == os.getpid():
            self._library.team_free(self.handle)


class Plan:
    """A program in the hands of the kernels."""

    def __init__(self, library: Library, team: Team, program: Program, *, grouped: bool = True) -> None:
        self._library, self._team, self.program = library, team, program
        self._keep: list[Any] = []
        self._handle = library.plan_new(team.handle)
        if not self._handle:
            raise MemoryError("no memory for a plan")
        # First step of each entry of the plan.
        self.places: list[int] = []
        chains = {chain.start: chain for chain in program.chains if grouped and chain.start in program.bands}
        place = 0
        while place < len(program.steps):
            self.places.append(place)
            if place in chains:
                self._set(-1, self._group(chains[place], program.bands[place]))
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

    def _group(self, chain: range, bands: int) -> Group:
        """A chain of convolutions as one entry."""
        steps = [self.program.steps[i] for i in chain]
        order = schedule([step.progress() for step in steps], bands)
        items = (Band * len(order))()
        for item, (number, first, last) in zip(items, order, strict=True):
            record = steps[number].record
            item.record, item.kind = ctypes.addressof(record), KINDS.index(type(record))
            item.first, item.last = first, last
        self._keep += [items, [(step.record, step.keep) for step in steps]]
        return Group(ctypes.addressof(items), len(order))

    def choose(self, place: int, choice: Choice) -> None:
        """Compute one layer in another way; only in a plan without wavefronts."""
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
