"""Race: callables timed in interleaved bursts, so that all of them see the same disturbances."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Runner = Callable[[], Any]
# A burst is disturbed if the process got less than this share of the processor time of its best burst.
QUIET = 0.95


@dataclass(frozen=True)
class Burst:
    """Calls of one runner without a break.

    Attributes:
        seconds: the fastest call.
        median: the median call.
        share: processor time over wall time.
    """

    seconds: float
    median: float
    share: float


@dataclass(frozen=True)
class Standing:
    """One runner after a race.

    Attributes:
        seconds: the fastest call of all quiet bursts.
        median: the median of the quiet bursts' medians.
        bursts: quiet bursts.
        dropped: disturbed bursts.
    """

    seconds: float
    median: float
    bursts: int
    dropped: int


@dataclass(frozen=True)
class Ratio:
    """How many times faster than another runner, from the bursts that ran side by side; quartiles show the spread."""

    median: float
    low: float
    high: float
    best: float


@dataclass(frozen=True)
class Race:
    """The bursts of all runners, in the order of their rounds."""

    bursts: Mapping[str, list[Burst]]

    def quiet(self, name: str) -> list[bool]:
        """Which bursts of a runner were not disturbed; if all were, the best third counts."""
        shares = [burst.share for burst in self.bursts[name]]
        return [share >= QUIET * max(shares) for share in shares]

    def standing(self, name: str) -> Standing:
        """The times of one runner."""
        kept = [burst for burst, quiet in zip(self.bursts[name], self.quiet(name), strict=True) if quiet]
        dropped = len(self.bursts[name]) - len(kept)
        middle = statistics.median(burst.median for burst in kept)
        return Standing(min(burst.seconds for burst in kept), middle, len(kept), dropped)

    def ratio(self, name: str, other: str) -> Ratio:
        """How many times `name` is faster than `other`."""
        both = zip(self.bursts[name], self.bursts[other], self.quiet(name), self.quiet(other), strict=True)
        ratios = sorted(theirs.seconds / ours.seconds for ours, theirs, a, b in both if a and b)
        best = self.standing(other).seconds / self.standing(name).seconds
        if not ratios:
            return Ratio(best, best, best, best)
        quarter = len(ratios) // 4
        return Ratio(statistics.median(ratios), ratios[quarter], ratios[-1 - quarter], best)


def race(runners: Mapping[str, Runner], *, bursts: int = 10, seconds: float = 0.5) -> Race:
    """Let all runners run in turn.

    Args:
        runners: name -> a call without arguments; each is called once before the clock starts.
        bursts: bursts of each.
        seconds: length of a burst; at least three calls are made.
    """
    for runner in runners.values():
        runner()
    found: dict[str, list[Burst]] = {name: [] for name in runners}
    for _ in range(bursts):
        for name, runner in runners.items():
            found[name].append(run_burst(runner, seconds))
    return Race(found)


def run_burst(runner: Runner, seconds: float) -> Burst:
    """Call a runner again and again for some time."""
    runner()  # brings code and weights back into the caches
    times: list[float] = []
    wall, used = time.perf_counter(), time.process_time()
    while len(times) < 3 or time.perf_counter() - wall < seconds:
        begin = time.perf_counter()
        runner()
        times.append(time.perf_counter() - begin)
    share = (time.process_time() - used) / (time.perf_counter() - wall)
    return Burst(min(times), statistics.median(times), share)
