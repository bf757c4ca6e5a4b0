"""Timing things against each other in one process: turns in an order that rotates, judged by their fastest quarter.

Other load on the machine only ever adds time, so the fastest turns say most about the thing itself.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

# Rounds that are made and not counted.
WARM_UP = 3


def race(
    turns: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each turn, one per runner and round."""
    names = list(turns)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-WARM_UP, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            start = clock()
            turns[name]()
            if number >= 0:
                seconds[name].append(clock() - start)
    return seconds


def fastest(values: list[float]) -> float:
    """The mean of the fastest quarter."""
    return statistics.mean(sorted(values)[: max(1, len(values) // 4)])


def interval(above: list[float], below: list[float], draws: int = 1000) -> list[float]:
    """95 % bootstrap interval, over rounds, of the ratio of the fastest quarters."""
    chance = random.Random(0)
    ratios = []
    for _ in range(draws):
        picked = chance.choices(range(len(above)), k=len(above))
        ratios.append(fastest([above[i] for i in picked]) / fastest([below[i] for i in picked]))
    cuts = statistics.quantiles(ratios, n=40)
    return [round(cuts[0], 4), round(cuts[-1], 4)]
