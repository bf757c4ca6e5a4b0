"""Tuning: every layer is measured in its place, with its data where it will really be."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.runtime import cache
from softprune.deploy.runtime.choice import Choice
from softprune.deploy.runtime.library import Library
from softprune.deploy.runtime.program import Plan, Program, Team

# Runs per choice, and how many choices stay: a quick look at all, then a careful one at the best.
ROUNDS = ((2, 4), (6, 1))
# Runs when chains are compared.
REPEATS = 8
# Bands per batch that a wavefront may have; 0 runs its convolutions one after the other.
BANDS = (2, 4, 7, 14, 28)


class Tuner:
    """Finds the fastest choices for a program."""

    def __init__(self, library: Library, team: Team, program: Program) -> None:
        self._library, self._team, self._program = library, team, program

    def run(self, addresses: list[int]) -> None:
        """Measure, and leave the program with the best choices."""
        plan = Plan(self._library, self._team, self._program, grouped=False)
        plan.run(addresses)
        self._choose_kernels(plan, addresses)
        single = plan.time(addresses, REPEATS)
        del plan
        self._choose_bands(single, addresses)

    def _choose_kernels(self, plan: Plan, addresses: list[int]) -> None:
        steps = self._program.steps
        left = {i: step.site.choices() for i, step in enumerate(steps) if step.site is not None}
        for repeats, keep in ROUNDS:
            seconds = self._measure(plan, left, addresses, repeats)
            left = {i: sorted(found, key=lambda c: seconds[i, c])[:keep] for i, found in left.items()}
        for place, (choice,) in left.items():
            plan.choose(place, choice)
            steps[place].settle(choice)

    def _measure(
        self, plan: Plan, left: dict[int, list[Choice]], addresses: list[int], repeats: int
    ) -> dict[tuple[int, Choice], float]:
        """The time of every choice of every layer; all layers change theirs at once."""
        best: dict[tuple[int, Choice], float] = {}
        for turn in range(max((len(found) for found in left.values()), default=0)):
            now = {place: found[turn % len(found)] for place, found in left.items()}
            for place, choice in now.items():
                plan.choose(place, choice)
            seconds = plan.time(addresses, repeats)
            for place, choice in now.items():
                best[place, choice] = min(best.get((place, choice), np.inf), float(seconds[place]))
        return best

    def _choose_bands(self, single: NDArray[np.float64], addresses: list[int]) -> None:
        chains = self._program.chains
        best = {chain.start: (float(single[chain.start : chain.stop].sum()), 0) for chain in chains}
        for bands in BANDS if chains else ():
            self._program.bands = {chain.start: bands for chain in chains}
            plan = Plan(self._library, self._team, self._program)
            seconds = dict(zip(plan.places, plan.time(addresses, REPEATS), strict=True))
            for chain in chains:
                best[chain.start] = min(best[chain.start], (float(seconds[chain.start]), bands))
        self._program.bands = {start: bands for start, (_, bands) in best.items() if bands}


def remember(program: Program, name: str) -> None:
    """Keep the choices of a program."""
    choices = {str(i): asdict(step.choice) for i, step in enumerate(program.steps) if step.choice is not None}
    cache.write(name, {"choices": choices, "bands": {str(k): v for k, v in program.bands.items()}})


def recall(program: Program, name: str) -> bool:
    """Take the choices that were kept; False if there are none that fit."""
    found: Any = cache.read(name)
    if found is None or not isinstance(found.get("choices"), dict) or not isinstance(found.get("bands"), dict):
        return False
    wanted = {}
    for i, step in enumerate(program.steps):
        if step.site is not None:
            # Only what tuning could have chosen is taken: the file may be damaged.
            known = {_frozen(asdict(choice)): choice for choice in (*step.site.choices(), step.site.default())}
            choice = known.get(_frozen(found["choices"].get(str(i))))
            if choice is None:
                return False
            wanted[i] = choice
    starts = {str(chain.start): chain.start for chain in program.chains}
    if any(key not in starts or bands not in BANDS for key, bands in found["bands"].items()):
        return False
    for i, choice in wanted.items():
        program.steps[i].settle(choice)
    program.bands = {starts[key]: bands for key, bands in found["bands"].items()}
    return True


def _frozen(entry: Any) -> str:
    return repr(sorted(entry.items())) if isinstance(entry, dict) else ""
