"""Measured times of a run's network, from the latency.json that softprune bench writes into its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softprune.records import BENCH_FORMAT, BENCH_VERSION, OUR_ENGINE
from softprune.records import BenchKey as Key
from softprune.reporting.reading import known, read_object

_LONGEST = 200  # characters of a name


@dataclass(frozen=True)
class Standing:
    """One engine: times in milliseconds, bursts kept and dropped, and how many times softprune is faster."""

    engine: str
    best: float
    median: float | None
    bursts: float | None
    dropped: float | None
    ratio: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class MeasuredTimes:
    """What was measured.

    Args:
        standings: of the engines, ours first.
        conditions: processor, batch and threads, in words.
        microseconds: of each layer, by the path of its module.
        share: of the roofline; None if unknown.
        named: milliseconds by name, from a file that somebody else wrote.
    """

    standings: tuple[Standing, ...] = ()
    conditions: str = ""
    microseconds: Mapping[str, float] = field(default_factory=dict)
    share: float | None = None
    named: Mapping[str, float] = field(default_factory=dict)

    def layer(self, tensor: str) -> float | None:
        """Microseconds of the layer that a weight tensor belongs to."""
        return self.microseconds.get(tensor.rpartition(".")[0])


def read_times(path: Path, problems: list[str]) -> MeasuredTimes | None:
    """What latency.json says; nothing in it is trusted.

    Args:
        path: of the file, which may be missing.
        problems: gets a sentence for everything that cannot be used.
    """
    if not path.exists():
        return None
    before = len(problems)
    read = read_object(path, problems)
    if len(problems) > before and not read:
        return None
    if read.get("format") != BENCH_FORMAT:
        named = {name: value for name, given in read.items() if name.endswith("_ms") and (value := known(given))}
        if not named:
            problems.append(f"{path.name} holds no times: `softprune bench model.spx --out {path.name}` writes some.")
        return MeasuredTimes(named=named) if named else None
    if read.get("version") != BENCH_VERSION:
        problems.append(f"{path.name} has version {_short(read.get('version'))}; this release reads {BENCH_VERSION}.")
        return None
    standings = _standings(read, path.name, problems)
    if not standings:
        problems.append(f"{path.name} holds no time of {OUR_ENGINE}.")
        return None
    share = known(read.get(Key.ROOFLINE_SHARE))
    return MeasuredTimes(standings, _conditions(read), _layers(read.get(Key.LAYERS), path.name, problems), share)


def _standings(read: Mapping[str, Any], file: str, problems: list[str]) -> tuple[Standing, ...]:
    engines, ratios = _mapping(read.get(Key.ENGINES)), _mapping(read.get(Key.RATIOS))
    found, bad = [], 0
    for name in sorted(engines, key=lambda engine: engine != OUR_ENGINE):
        facts, ratio = _mapping(engines[name]), _mapping(ratios.get(name))
        best, median = known(facts.get(Key.SECONDS)), known(facts.get(Key.MEDIAN))
        if best is None or best <= 0:
            bad += 1
            continue
        counts = known(facts.get(Key.BURSTS)), known(facts.get(Key.DROPPED))
        spread = (known(ratio.get(key)) for key in (Key.BEST, Key.LOW, Key.HIGH))
        found.append(Standing(_short(name), 1e3 * best, None if median is None else 1e3 * median, *counts, *spread))
    if bad:
        problems.append(f"{file}: {bad} engines have no time and are left out.")
    return tuple(found) if found and found[0].engine == OUR_ENGINE else ()


def _layers(rows: object, file: str, problems: list[str]) -> dict[str, float]:
    """Microseconds by path; several steps of one layer are added up."""
    found: dict[str, float] = {}
    bad = 0
    for row in rows if isinstance(rows, list) else []:
        facts = _mapping(row)
        path, value = facts.get(Key.PATH), known(facts.get(Key.MICROSECONDS))
        if not isinstance(path, str) or value is None or value < 0:
            bad += 1
            continue
        found[path] = found.get(path, 0.0) + value
    if bad or not isinstance(rows, list | None):
        problems.append(f"{file}: {bad or 'all'} layers have no path or no time and are left out.")
    return found


def _conditions(read: Mapping[str, Any]) -> str:
    words = [_short(read[key]) for key in (Key.PROCESSOR, Key.LEVEL) if isinstance(read.get(key), str)]
    words += [
        f"{key} {known(read.get(key)):.0f}" for key in (Key.BATCH, Key.THREADS) if known(read.get(key)) is not None
    ]
    return ", ".join(words)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
