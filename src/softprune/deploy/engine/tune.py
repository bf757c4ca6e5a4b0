"""Tuning: every layer is measured in its place, with its data where it will really be."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.execution import Executable, KernelChoice, Program, Team
from softprune.deploy.engine.library import KernelLibrary
from softprune.deploy.format.storage import open_regular

# Changes when kernels or choices change, so that old results are not used.
VERSION = 6
# Of a file of results; a network of 100,000 layers, the most that are allowed, has some 10 MB.
MAX_BYTES = 32 << 20


def folder() -> Path:
    """$SOFTPRUNE_CACHE, or softprune in the system's cache folder."""
    if wish := os.environ.get("SOFTPRUNE_CACHE"):
        return Path(wish)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "softprune"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softprune"


def processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def tuning_key(**facts: str | int) -> str:
    """The name of the results of one network on this machine."""
    text = json.dumps({"version": VERSION, "processor": processor(), **facts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_results(name: str) -> Mapping[str, Any] | None:
    """What was kept under a name; None if there is nothing usable."""
    try:
        with open_regular(folder() / "tuning" / f"{name}.json") as file:
            size = os.fstat(file.fileno()).st_size
            found = json.loads(file.read(size)) if size <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_results(name: str, content: Mapping[str, Any]) -> None:
    path = folder() / "tuning" / f"{name}.json"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content))
        part.replace(path)


# Runs per choice, and how many choices stay: a quick look at all, then a careful one at the best.
ROUNDS = ((2, 4), (6, 1))
# Runs when chains are compared.
REPEATS = 8
# Bands per batch that a wavefront may have; 0 runs its convolutions one after the other.
BANDS = (2, 4, 7, 14, 28)


class Tuner:
    """Finds the fastest choices for a program."""

    def __init__(self, library: KernelLibrary, team: Team, program: Program) -> None:
        self._library, self._team, self._program = library, team, program

    def run(self, addresses: list[int]) -> None:
        plan = Executable(self._library, self._team, self._program, grouped=False)
        plan.run(addresses)
        self._choose_kernels(plan, addresses)
        single = plan.time(addresses, REPEATS)
        del plan
        self._choose_bands(single, addresses)

    def _choose_kernels(self, plan: Executable, addresses: list[int]) -> None:
        steps = self._program.steps
        left = {i: step.kernel.choices() for i, step in enumerate(steps) if step.kernel is not None}
        for repeats, keep in ROUNDS:
            seconds = self._measure(plan, left, addresses, repeats)
            left = {i: sorted(found, key=lambda c: seconds[i, c])[:keep] for i, found in left.items()}
        for place, (choice,) in left.items():
            plan.choose(place, choice)
            steps[place].settle(choice)

    def _measure(
        self, plan: Executable, left: dict[int, list[KernelChoice]], addresses: list[int], repeats: int
    ) -> dict[tuple[int, KernelChoice], float]:
        """The time of every choice of every layer; all layers change theirs at once."""
        best: dict[tuple[int, KernelChoice], float] = {}
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
            plan = Executable(self._library, self._team, self._program)
            seconds = dict(zip(plan.places, plan.time(addresses, REPEATS), strict=True))
            for chain in chains:
                best[chain.start] = min(best[chain.start], (float(seconds[chain.start]), bands))
        self._program.bands = {start: bands for start, (_, bands) in best.items() if bands}


def remember(program: Program, name: str) -> None:
    """Keep the choices of a program in the user's cache folder, if it can be written."""
    choices = {str(i): asdict(step.choice) for i, step in enumerate(program.steps) if step.choice is not None}
    write_results(name, {"choices": choices, "bands": {str(k): v for k, v in program.bands.items()}})


def recall(program: Program, name: str) -> bool:
    """Take the choices that were kept; False if there are none that fit."""
    found: Any = read_results(name)
    if found is None or not isinstance(found.get("choices"), dict) or not isinstance(found.get("bands"), dict):
        return False
    wanted = {}
    for i, step in enumerate(program.steps):
        if step.kernel is not None:
            # Only what tuning could have chosen is taken: the file may be damaged.
            known = (*step.kernel.choices(), step.kernel.default())
            kept = [choice for choice in known if asdict(choice) == found["choices"].get(str(i))]
            if not kept:
                return False
            wanted[i] = kept[0]
    starts = {str(chain.start): chain.start for chain in program.chains}
    if any(key not in starts or bands not in BANDS for key, bands in found["bands"].items()):
        return False
    for i, choice in wanted.items():
        program.steps[i].settle(choice)
    program.bands = {starts[key]: bands for key, bands in found["bands"].items()}
    return True
