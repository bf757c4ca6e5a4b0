"""Callables timed in interleaved bursts; the roofline of this machine, and the time of each layer of a network."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from softprune.deploy.engine.execution import Executable
from softprune.deploy.engine.inference import Engine
from softprune.deploy.engine.library import KernelLibrary, library

Runner = Callable[[], Any]
# A burst is disturbed if the process got less than this share of the processor time of its best burst.
QUIET = 0.95


@dataclass(frozen=True)
class Burst:
    """Calls of one runner without a break."""

    seconds: float  # of the fastest call
    median: float  # seconds
    share: float  # processor time over wall time


@dataclass(frozen=True)
class Standing:
    """One runner after a race."""

    seconds: float  # of the fastest call in all quiet bursts
    median: float  # of their medians, in seconds
    bursts: int  # that were quiet
    dropped: int  # bursts that were disturbed


@dataclass(frozen=True)
class Ratio:
    """How many times faster than another runner."""

    median: float  # over the bursts that ran side by side
    low: float  # their lower and upper quartile
    high: float
    best: float  # of the fastest calls


@dataclass(frozen=True)
class Race:
    """The bursts of all runners."""

    bursts: Mapping[str, list[Burst]]  # in the order of their rounds

    def quiet(self, name: str) -> list[bool]:
        """Which bursts of a runner got about as much processor time as its best one."""
        shares = [burst.share for burst in self.bursts[name]]
        return [share >= QUIET * max(shares) for share in shares]

    def standing(self, name: str) -> Standing:
        kept = [burst for burst, quiet in zip(self.bursts[name], self.quiet(name), strict=True) if quiet]
        dropped = len(self.bursts[name]) - len(kept)
        middle = statistics.median(burst.median for burst in kept)
        return Standing(min(burst.seconds for burst in kept), middle, len(kept), dropped)

    def ratio(self, name: str, other: str) -> Ratio:
        both = zip(self.bursts[name], self.bursts[other], self.quiet(name), self.quiet(other), strict=True)
        ratios = sorted(theirs.seconds / ours.seconds for ours, theirs, a, b in both if a and b)
        best = self.standing(other).seconds / self.standing(name).seconds
        if not ratios:
            return Ratio(best, best, best, best)
        quarter = len(ratios) // 4
        return Ratio(statistics.median(ratios), ratios[quarter], ratios[-1 - quarter], best)


def race(runners: Mapping[str, Runner], *, bursts: int = 10, seconds: float = 0.5) -> Race:
    """Let all runners, calls without arguments by name, run in turn: so many bursts each, of three calls at least.

    Each is called once before the clock starts.
    """
    for runner in runners.values():
        runner()
    found: dict[str, list[Burst]] = {name: [] for name in runners}
    for _ in range(bursts):
        for name, runner in runners.items():
            found[name].append(run_burst(runner, seconds))
    return Race(found)


def run_burst(runner: Runner, seconds: float) -> Burst:
    runner()  # brings code and weights back into the caches
    times: list[float] = []
    wall, used = time.perf_counter(), time.process_time()
    while len(times) < 3 or time.perf_counter() - wall < seconds:
        begin = time.perf_counter()
        runner()
        times.append(time.perf_counter() - begin)
    share = (time.process_time() - used) / (time.perf_counter() - wall)
    return Burst(min(times), statistics.median(times), share)


# Bytes that fit into the first and the second level of common processors, with room for everything else.
LEVELS = {"l1": 16 << 10, "l2": 256 << 10}
PASS_BYTES = 16 << 20


@dataclass(frozen=True)
class Roofline:
    """Billions of floating point operations per second of one thread that loads a vector for each multiply-add."""

    l1: float  # from the first-level cache
    l2: float  # from the second-level cache


def measure_roofline(library: KernelLibrary, *, repeats: int = 9) -> Roofline:
    """The best of several measurements; a multiply-add counts as two operations."""
    rates = {}
    for name, size in LEVELS.items():
        data, passes = library.zeros(size // 4), PASS_BYTES // size
        seconds = min(library.rate(data.ctypes.data, size, passes) for _ in range(repeats))
        rates[name] = 2 * (size // 4) * passes / seconds / 1e9
    return Roofline(**rates)


OURS = "softprune"


@dataclass(frozen=True)
class TimedLayer:
    path: str  # of the module
    what: str  # the operation
    how: str  # the kernel and its tile
    nonzeros: int  # weights that are not zero
    macs: int  # multiply-adds on them
    microseconds: float  # the fastest run
    gflops: float  # two operations per multiply-add, per second
    roofline: float  # share of what the threads can load from the second-level cache


def layers(engine: Engine, *, batch: int = 1, repeats: int = 30, roofline: Roofline | None = None) -> list[TimedLayer]:
    """Time every step by itself, in its place; a RuntimeError without compiled kernels."""
    kernels = library()
    if kernels is None or engine.team is None:
        raise RuntimeError("the table of layers needs the compiled kernels")
    roof = roofline or measure_roofline(kernels)
    slots = engine.slots(batch)
    for array in slots[: len(engine.model.graph.inputs)]:
        array[...] = np.random.default_rng(0).standard_normal(array.shape)
    plan = Executable(kernels, engine.team, engine.plan(batch).program, grouped=False)
    seconds = plan.time([array.ctypes.data for array in slots], repeats)
    table = []
    for step, duration in zip(plan.program.steps, seconds, strict=True):
        rate = 2 * step.macs / duration / 1e9
        how = "" if step.choice is None else step.choice.text
        share = rate / (roof.l2 * engine.threads)
        table.append(TimedLayer(step.path, step.what, how, step.nonzeros, step.macs, 1e6 * duration, rate, share))
    return table
