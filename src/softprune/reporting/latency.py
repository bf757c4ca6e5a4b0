"""Measured times of a run's network, from the latency.json that softprune bench writes into its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softprune.reporting.reading import known, read_object
from softprune.reporting.tabular import Column, Table

LATENCY = "latency.json"
FORMAT, VERSION = "softprune-bench", 1
OURS = "softprune"
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
class Latency:
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


def read_latency(path: Path, problems: list[str]) -> Latency | None:
    """What latency.json says; nothing in it is trusted.

    Args:
        path: of the file; there need not be one.
        problems: gets a sentence for everything that cannot be used.
    """
    if not path.exists():
        return None
    before = len(problems)
    read = read_object(path, problems)
    if len(problems) > before and not read:
        return None
    if read.get("format") != FORMAT:
        named = {name: value for name, given in read.items() if name.endswith("_ms") and (value := known(given))}
        if not named:
            problems.append(f"{path.name} holds no times: `softprune bench model.spx --out {path.name}` writes some.")
        return Latency(named=named) if named else None
    if read.get("version") != VERSION:
        problems.append(f"{path.name} has version {_short(read.get('version'))}; this release reads {VERSION}.")
        return None
    standings = _standings(read, path.name, problems)
    if not standings:
        problems.append(f"{path.name} holds no time of {OURS}.")
        return None
    share = known(read.get("share of the roofline"))
    return Latency(standings, _conditions(read), _layers(read.get("layers"), path.name, problems), share)


def latency_table(named: Sequence[tuple[Latency, str]]) -> Table | None:
    """The engines of all runs that were measured; None if none was.

    Args:
        named: what was measured, with the name of its run.
    """
    rows = tuple(
        (name, s.engine, s.best, s.median, s.ratio, s.low, s.high, s.bursts, s.dropped, latency.conditions)
        for latency, name in named
        for s in latency.standings
    )
    columns = (
        Column("run"),
        Column("engine"),
        Column("best ms", "number", "the fastest call"),
        Column("median ms", "number"),
        Column("ratio", "number", "best time of this engine over that of softprune"),
        Column("low", "number", "lower quartile of the ratio of bursts side by side"),
        Column("high", "number", "upper quartile"),
        Column("bursts", "count", "bursts that count"),
        Column("dropped", "count", "bursts in which the process did not get its processor"),
        Column("where"),
    )
    caption = "Measured times of one call; the other engines compute the zeros too."
    return Table("latency", caption, columns, rows, groups=tuple(str(row[0]) for row in rows)) if rows else None


def _standings(read: Mapping[str, Any], file: str, problems: list[str]) -> tuple[Standing, ...]:
    engines, ratios = _mapping(read.get("engines")), _mapping(read.get("ratios"))
    found, bad = [], 0
    for name in sorted(engines, key=lambda engine: engine != OURS):
        facts, ratio = _mapping(engines[name]), _mapping(ratios.get(name))
        best, median = known(facts.get("seconds")), known(facts.get("median"))
        if best is None or best <= 0:
            bad += 1
            continue
        counts = known(facts.get("bursts")), known(facts.get("dropped"))
        spread = (known(ratio.get(key)) for key in ("best", "low", "high"))
        found.append(Standing(_short(name), 1e3 * best, None if median is None else 1e3 * median, *counts, *spread))
    if bad:
        problems.append(f"{file}: {bad} engines have no time and are left out.")
    return tuple(found) if found and found[0].engine == OURS else ()


def _layers(rows: object, file: str, problems: list[str]) -> dict[str, float]:
    """Microseconds by path; several steps of one layer are added up."""
    found: dict[str, float] = {}
    bad = 0
    for row in rows if isinstance(rows, list) else []:
        facts = _mapping(row)
        path, value = facts.get("path"), known(facts.get("microseconds"))
        if not isinstance(path, str) or value is None or value < 0:
            bad += 1
            continue
        found[path] = found.get(path, 0.0) + value
    if bad or not isinstance(rows, list | None):
        problems.append(f"{file}: {bad or 'all'} layers have no path or no time and are left out.")
    return found


def _conditions(read: Mapping[str, Any]) -> str:
    words = [_short(read[key]) for key in ("processor", "level") if isinstance(read.get(key), str)]
    words += [f"{key} {known(read.get(key)):.0f}" for key in ("batch", "threads") if known(read.get(key)) is not None]
    return ", ".join(words)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
