"""A run folder as values, read without torch, also while it is being written or after it was damaged."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from softprune import records
from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.units import UnitWords, unit_words
from softprune.records import BenchKey as Key
from softprune.reporting.labels import configured_units, goal_text, label, method_name, name_of
from softprune.reporting.reading import known, mapping, number, read_object, read_rows, read_table

_LONGEST = 200  # characters of a name in a bench file; more are cut off


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One tensor at the end of one epoch; NaN where the file has no number."""

    epoch: int  # counted from 0
    step: int  # optimizer steps made
    s: float  # raw threshold
    alpha: float  # threshold g(s)
    density: float  # fraction of weights (or other units) kept
    l1_active: float  # L1 norm of what is kept
    macs: float  # multiply-adds left


_EPOCH, _STEP, *_VALUES = (field.name for field in fields(LayerRow))


@dataclass(frozen=True)
class EngineTime:
    """One engine of a bench file."""

    engine: str
    best: float  # milliseconds of a call
    median: float | None
    bursts: float | None  # that count
    dropped: float | None  # bursts that were disturbed
    ratio: float | None  # its best time over that of softprune
    low: float | None  # quartiles of the ratio
    high: float | None


@dataclass(frozen=True)
class MeasuredTimes:
    """The times of a run's network, from its latency.json."""

    engines: tuple[EngineTime, ...] = ()  # ours first
    conditions: str = ""  # processor, batch and threads
    microseconds: Mapping[str, float] = field(default_factory=dict)  # of each layer, by the path of its module
    share: float | None = None  # of the roofline
    named: Mapping[str, float] = field(default_factory=dict)  # milliseconds by name, from a file of another program

    def layer(self, tensor: str) -> float | None:
        """Microseconds of the layer that a weight tensor belongs to."""
        return self.microseconds.get(tensor.rpartition(".")[0])


@dataclass(frozen=True)
class Run:
    """The content of a run folder."""

    path: Path
    name: str  # of the folder
    config: Mapping[str, Any]
    result: Mapping[str, Any]  # empty while the run goes on
    budget: Budget | None  # None if it is missing or cannot be read
    problems: tuple[str, ...]  # what could not be read, a sentence each
    environment: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()  # rows of metrics.jsonl of kind "step"
    epochs: tuple[Mapping[str, Any], ...] = ()  # rows of metrics.jsonl of kind "epoch"
    layers: Mapping[str, tuple[LayerRow, ...]] = field(default_factory=dict)  # rows of layers.csv by tensor, in order
    latency: MeasuredTimes | None = None  # None if nothing was measured

    @property
    def method(self) -> str:
        return method_name(self.config)

    @property
    def label(self) -> str:
        """The method with what distinguishes it, such as "gmp uniform"."""
        return label(self.config)

    @property
    def model(self) -> str:
        return name_of(self.config, "model")

    @property
    def data(self) -> str:
        return name_of(self.config, "data")

    @property
    def seed(self) -> int | None:
        return _whole(known(self.config.get("seed", self.environment.get("seed"))))

    @property
    def goal(self) -> str:
        """Such as "98 % sparsity"; empty without one."""
        return goal_text(self.config)

    @property
    def units(self) -> str:
        """What is kept or pruned as a whole, in the words of a budget; "weight" for most runs."""
        return self.budget.units if self.budget is not None else configured_units(self.config)

    @property
    def words(self) -> UnitWords:
        return unit_words(self.units)

    @property
    def finished(self) -> bool:
        return bool(self.result)

    @property
    def profile(self) -> Profile | None:
        return self.budget.profile if self.budget is not None else None

    # Values after the last epoch; None if unknown.

    @property
    def accuracy(self) -> float | None:
        return self._last("accuracy")

    @property
    def sparsity(self) -> float | None:
        """Share of all managed weights, or other units, that are zero."""
        return self._last("sparsity")

    @property
    def params(self) -> int | None:
        """Managed weights, or other units, left."""
        found = self._last("params")
        return _whole(self._last("units") if found is None else found)

    @property
    def stored(self) -> int | None:
        """Parameters of the whole network as it will be stored; None where single weights are pruned."""
        return self.budget.stored if self.budget is not None else None

    @property
    def macs(self) -> int | None:
        """Multiply-adds left; None where larger units are pruned, whose cost is not known."""
        return _whole(self._last("macs")) if self.words.costed else None

    def _last(self, key: str) -> float | None:
        last = self.result.get("last")
        rows = [*self.epochs, last] if isinstance(last, Mapping) else self.epochs
        return next((value for row in reversed(rows) if (value := known(row.get(key))) is not None), None)


def read_run(path: Path) -> Run:
    """Read a run folder; what is missing, damaged or cut off is told in ``problems``.

    Raises:
        ValueError: if the folder has no config.yaml.
    """
    run = read_outcome(path)
    problems = list(run.problems)
    if run.method != "dense" and not (path / records.BUDGET).exists():
        problems.append(f"{records.BUDGET} is missing; it is written after the first epoch.")
    rows = read_rows(path / records.METRICS, problems)
    return replace(
        run,
        environment=read_object(path / records.ENVIRONMENT, problems),
        steps=tuple(row for row in rows if row.get("kind") == "step"),
        epochs=tuple(row for row in rows if row.get("kind") == "epoch"),
        layers=_layers(path / records.LAYERS, problems),
        latency=read_times(path / records.LATENCY, problems),
        problems=tuple(problems),
    )


def read_outcome(path: Path) -> Run:
    """A run without its history: configuration, result and budget, so that hundreds of runs are read in seconds."""
    if not (path / records.CONFIG).is_file():
        raise ValueError(f"{path} holds no run: it has no {records.CONFIG}")
    problems: list[str] = []
    config = read_object(path / records.CONFIG, problems)
    result = read_object(path / records.RESULT, problems, optional=True)
    budget = None
    try:
        budget = Budget.load(path / records.BUDGET) if (path / records.BUDGET).exists() else None
    except (ValueError, OSError, RecursionError) as error:
        problems.append(f"{records.BUDGET} cannot be used: {error}")
    return Run(path, path.resolve().name, config, result, budget, tuple(problems))


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders at or below some paths, at any depth, sorted by name, each once; each path must hold one."""
    found: dict[Path, Path] = {}
    for path in paths:
        here = [path] if (path / records.CONFIG).is_file() else _below(path)
        if not here:
            what = f"holds no run: no folder in it has a {records.CONFIG}" if path.is_dir() else "is not a folder"
            raise ValueError(f"{path} {what}; name a run folder, or a folder of run folders")
        for run in here:
            found.setdefault(run.resolve(), run)
    return sorted(found.values())


def _below(path: Path) -> list[Path]:
    runs = []
    for folder, names, files in os.walk(path):
        if records.CONFIG in files:
            runs.append(Path(folder))
            names.clear()  # a run holds no other run
    return runs


def _layers(path: Path, problems: list[str]) -> dict[str, tuple[LayerRow, ...]]:
    layers: dict[str, list[LayerRow]] = {}
    bad = 0
    for row in read_table(path, problems, needed=(_EPOCH, _STEP, "name", *_VALUES)):
        epoch, step = known(row[_EPOCH]), known(row[_STEP])
        if epoch is None or step is None:
            bad += 1
            continue
        values = (number(row[column]) for column in _VALUES)
        layers.setdefault(row["name"], []).append(LayerRow(int(epoch), int(step), *values))
    if bad:
        problems.append(f"{path.name}: {bad} rows have no epoch or step and are left out.")
    return {name: tuple(rows) for name, rows in layers.items()}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


# Measured times, from the latency.json that `softprune bench` writes; nothing in it is trusted.


def read_times(path: Path, problems: list[str]) -> MeasuredTimes | None:
    """What a bench file says, None without one; ``problems`` gets a sentence for everything that cannot be used."""
    if not path.exists():
        return None
    before = len(problems)
    read = read_object(path, problems)
    if len(problems) > before and not read:
        return None
    if read.get("format") != records.BENCH_FORMAT:
        named = {name: value for name, given in read.items() if name.endswith("_ms") and (value := known(given))}
        if not named:
            problems.append(f"{path.name} holds no times: `softprune bench model.spx --out {path.name}` writes some.")
        return MeasuredTimes(named=named) if named else None
    if read.get("version") != records.BENCH_VERSION:
        version = _short(read.get("version"))
        problems.append(f"{path.name} has version {version}; this release reads {records.BENCH_VERSION}.")
        return None
    engines = _engines(read, path.name, problems)
    if not engines:
        problems.append(f"{path.name} holds no time of {records.OUR_ENGINE}.")
        return None
    microseconds = _layer_times(read.get(Key.LAYERS), path.name, problems)
    return MeasuredTimes(engines, _conditions(read), microseconds, known(read.get(Key.ROOFLINE_SHARE)))


def _engines(read: Mapping[str, Any], file: str, problems: list[str]) -> tuple[EngineTime, ...]:
    engines, ratios = mapping(read.get(Key.ENGINES)), mapping(read.get(Key.RATIOS))
    found, bad = [], 0
    for name in sorted(engines, key=lambda engine: engine != records.OUR_ENGINE):
        facts, ratio = mapping(engines[name]), mapping(ratios.get(name))
        best, median = known(facts.get(Key.SECONDS)), known(facts.get(Key.MEDIAN))
        if best is None or best <= 0:
            bad += 1
            continue
        counts = known(facts.get(Key.BURSTS)), known(facts.get(Key.DROPPED))
        spread = (known(ratio.get(key)) for key in (Key.BEST, Key.LOW, Key.HIGH))
        found.append(EngineTime(_short(name), 1e3 * best, None if median is None else 1e3 * median, *counts, *spread))
    if bad:
        problems.append(f"{file}: {bad} engines have no time and are left out.")
    return tuple(found) if found and found[0].engine == records.OUR_ENGINE else ()


def _layer_times(rows: object, file: str, problems: list[str]) -> dict[str, float]:
    """Path -> microseconds; several steps of one layer are added up."""
    found: dict[str, float] = {}
    bad = 0
    for row in map(mapping, rows if isinstance(rows, list) else []):
        path, value = row.get(Key.PATH), known(row.get(Key.MICROSECONDS))
        if isinstance(path, str) and value is not None and value >= 0:
            found[path] = found.get(path, 0.0) + value
        else:
            bad += 1
    if bad or not isinstance(rows, list | None):
        problems.append(f"{file}: {bad or 'all'} layers have no path or no time and are left out.")
    return found


def _conditions(read: Mapping[str, Any]) -> str:
    words = [_short(read[key]) for key in (Key.PROCESSOR, Key.LEVEL) if isinstance(read.get(key), str)]
    words += [f"{key} {value:.0f}" for key in (Key.BATCH, Key.THREADS) if (value := known(read.get(key))) is not None]
    return ", ".join(words)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
