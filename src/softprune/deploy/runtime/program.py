"""Program: the steps of a plan, before and after they are handed to the kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.runtime.library import Library
from softprune.deploy.runtime.records import KINDS
from softprune.deploy.runtime.site import Choice, Site


@dataclass
class Step:
    """One call of a kernel.

    Attributes:
        path: of the module in the original network.
        what: the operation, for tables.
        record: what the kernel gets; for a convolution that of its present choice.
        keep: arrays that must live as long as the record.
        site: of a convolution, which can be computed in several ways.
        choice: the present one.
    """

    path: str
    what: str
    record: ctypes.Structure
    keep: list[Any]
    nonzeros: int = 0
    macs: int = 0
    site: Site | None = None
    choice: Choice | None = None

    def choose(self, choice: Choice) -> None:
        """Compute the convolution in another way."""
        assert self.site is not None
        self.record, self.keep = self.site.record(choice)
        self.choice = choice


@dataclass
class Program:
    """Steps in order; each begins when the one before has ended on all threads."""

    steps: list[Step] = field(default_factory=list)

    def add(self, path: str, what: str, record: ctypes.Structure, keep: list[Any], *, cost: int = 0) -> None:
        """Append a step that can be computed in one way; `cost` counts its multiply-adds."""
        self.steps.append(Step(path, what, record, keep, macs=cost))

    def add_site(self, path: str, what: str, site: Site) -> None:
        """Append a convolution with its default choice."""
        choice = site.default()
        record, keep = site.record(choice)
        step = Step(path, what, record, keep, site.nonzeros, site.macs, site, choice)
        self.steps.append(step)


class Team:
    """Threads of the kernels."""

    def __init__(self, library: Library, threads: int) -> None:
        self._library, self.threads = library, threads
        self.handle = library.team_new(threads)
        if not self.handle:
            raise OSError(f"could not start {threads} threads")

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library.team_free(self.handle)


class Plan:
    """A program in the hands of the kernels."""

    def __init__(self, library: Library, team: Team, program: Program) -> None:
        self._library, self._team, self.program = library, team, program
        self._handle = library.plan_new(team.handle)
        if not self._handle:
            raise MemoryError("no memory for a plan")
        for step in program.steps:
            self._set(-1, step)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.plan_free(self._handle)

    def _set(self, place: int, step: Step) -> None:
        kind = KINDS.index(type(step.record))
        size = ctypes.sizeof(step.record)
        if self._library.plan_set(self._handle, place, kind, ctypes.byref(step.record), size) < 0:
            raise MemoryError(f"step {step.what} at {step.path!r} was refused")

    def choose(self, place: int, choice: Choice) -> None:
        """Compute one convolution in another way."""
        step = self.program.steps[place]
        step.choose(choice)
        self._set(place, step)

    def run(self, addresses: list[int]) -> None:
        """Run all steps; `addresses` are those of the caller's arrays, inputs first."""
        self._library.plan_run(self._handle, (ctypes.c_void_p * max(1, len(addresses)))(*addresses))

    def time(self, addresses: list[int], repeats: int) -> NDArray[np.float64]:
        """The smallest time of each step in seconds."""
        seconds = np.full(max(1, len(self.program.steps)), np.inf)
        slots = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        self._library.plan_time(self._handle, slots, repeats, seconds.ctypes.data)
        return seconds[: len(self.program.steps)]
