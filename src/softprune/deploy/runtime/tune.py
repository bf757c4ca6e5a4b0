"""Tuning: every layer is measured in its place, with its data where it will really be."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.runtime import cache
from softprune.deploy.runtime.library import Library
from softprune.deploy.runtime.program import Plan, Program, Team
from softprune.deploy.runtime.site import Choice

# Each choice is measured twice, apart in time, so that a disturbance does not decide.
ROUNDS = 2
# Bands per batch that a wavefront may have; 0 runs its convolutions one after the other.
BANDS = (2, 4, 7, 14, 28)


class Tuner:
    """Finds the fastest choices for a program."""

    def __init__(self, library: Library, team: Team, program: Program, *, repeats: int = 4) -> None:
        self._library, self._team, self._program, self._repeats = library, team, program, repeats

    def run(self, addresses: list[int]) -> None:
        """Measure, and leave the program with the best choices."""
        plan = Plan(self._library, self._team, self._program, grouped=False)
        plan.run(addresses)
        self._choose_kernels(plan, addresses)
        single = plan.time(addresses, ROUNDS * self._repeats)
        del plan
        self._choose_bands(single, addresses)

    def _choose_kernels(self, plan: Plan, addresses: list[int]) -> None:
        sites = {i: step.site.choices() for i, step in enumerate(self._program.steps) if step.site is not None}
        best: dict[int, tuple[float, Choice]] = {}
        longest = max((len(found) for found in sites.values()), default=0)
        for turn in range(ROUNDS * longest):
            for place, found in sites.items():
                plan.choose(place, found[turn % len(found)])
            seconds = plan.time(addresses, self._repeats)
            for place, found in sites.items():
                measured = (float(seconds[place]), found[turn % len(found)])
                best[place] = min(best.get(place, measured), measured)
        for place, (_, choice) in best.items():
            plan.choose(place, choice)
            site = self._program.steps[place].site
            assert site is not None
            site.keep_only(choice)

    def _choose_bands(self, single: NDArray[np.float64], addresses: list[int]) -> None:
        chains = self._program.chains
        best = {chain.start: (float(single[chain.start : chain.stop].sum()), 0) for chain in chains}
        for bands in BANDS if chains else ():
            self._program.bands = {chain.start: bands for chain in chains}
            plan = Plan(self._library, self._team, self._program)
            seconds = dict(zip(plan.places, plan.time(addresses, ROUNDS * self._repeats), strict=True))
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
        program.steps[i].choose(choice)
    program.bands = {starts[key]: bands for key, bands in found["bands"].items()}
    return True


def _frozen(entry: Any) -> str:
    return repr(sorted(entry.items())) if isinstance(entry, dict) else ""
