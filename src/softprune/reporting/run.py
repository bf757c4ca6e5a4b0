"""A run folder as values, read without torch: also one that is still being written, or that was damaged."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from softprune.budget.budget import Budget
from softprune.budget.show import WEIGHT
from softprune.records import BUDGET, CONFIG, ENVIRONMENT, LATENCY, LAYERS, METRICS, RESULT
from softprune.reporting.labels import configured_units, goal_text, label, method_name, model_name
from softprune.reporting.reading import known, number, read_object, read_rows, read_table
from softprune.reporting.times import MeasuredTimes, read_times


@dataclass(frozen=True, slots=True)
class Layer:
    """One tensor at the end of one epoch; NaN where the file has no number.

    Args:
        epoch: counted from 0.
        step: optimizer steps made.
        s: raw threshold.
        alpha: threshold g(s).
        density: fraction of weights (or other units) kept.
        l1_active: L1 norm of what is kept.
        macs: multiply-adds left.
    """

    epoch: int
    step: int
    s: float
    alpha: float
    density: float
    l1_active: float
    macs: float


_EPOCH, _STEP, *_VALUES = (field.name for field in fields(Layer))


@dataclass(frozen=True)
class Run:
    """All that a run folder says.

    Args:
        path: the folder.
        name: of the folder.
        config: config.yaml.
        environment: environment.json.
        result: result.json; empty while the run goes on.
        steps: rows of metrics.jsonl of kind "step".
        epochs: rows of metrics.jsonl of kind "epoch".
        layers: the rows of layers.csv by tensor, in order.
        budget: budget.json; None if it is missing or cannot be read.
        problems: what could not be read, a sentence each.
        latency: what was measured of its network; None if nothing was.
    """

    path: Path
    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    result: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...]
    epochs: tuple[Mapping[str, Any], ...]
    layers: Mapping[str, tuple[Layer, ...]]
    budget: Budget | None
    problems: tuple[str, ...]
    latency: MeasuredTimes | None = None

    @property
    def method(self) -> str:
        """Such as "str"; "dense" without one."""
        return method_name(self.config)

    @property
    def label(self) -> str:
        """The method with what distinguishes it, such as "gmp uniform"."""
        return label(self.config)

    @property
    def model(self) -> str:
        return model_name(self.config)

    @property
    def data(self) -> str:
        return model_name(self.config, "data")

    @property
    def seed(self) -> int | None:
        found = known(self.config.get("seed", self.environment.get("seed")))
        return None if found is None else int(found)

    @property
    def goal(self) -> str:
        """Such as "98 % sparsity"; empty without one."""
        return goal_text(self.config)

    @property
    def units(self) -> str:
        """What is kept or pruned as a whole, as a Budget has it; "weight" for most runs."""
        return self.budget.units if self.budget is not None else configured_units(self.config)

    @property
    def finished(self) -> bool:
        return bool(self.result)

    @property
    def accuracy(self) -> float | None:
        """Of the last epoch; None if unknown."""
        return self._last("accuracy")

    @property
    def sparsity(self) -> float | None:
        """Of all managed weights, or other units, after the last epoch; None if unknown, as in a dense run."""
        return self._last("sparsity")

    @property
    def params(self) -> int | None:
        """Managed weights, or other units, left after the last epoch; None if unknown."""
        found = self._last("params")
        if found is None:
            found = self._last("units")
        return None if found is None else int(found)

    @property
    def stored(self) -> int | None:
        """Parameters of the whole network as it will be stored; None if unknown, as it is where weights are pruned."""
        return self.budget.stored if self.budget is not None else None

    @property
    def macs(self) -> int | None:
        """Multiply-adds left after the last epoch; None if unknown, as what a filter or a direction costs is."""
        if self.units != WEIGHT:
            return None
        found = self._last("macs")
        return None if found is None else int(found)

    def _last(self, key: str) -> float | None:
        last = self.result.get("last")
        rows = [*self.epochs, last] if isinstance(last, Mapping) else self.epochs
        return next((value for row in reversed(rows) if (value := known(row.get(key))) is not None), None)


def read_run(path: Path) -> Run:
    """Read a run folder.

    Args:
        path: the folder; files that are missing, damaged or cut off end up in ``problems``.

    Raises:
        ValueError: if the folder has no config.yaml.

    Example:
        run = read_run(Path("runs/demo"))
        run.label, run.sparsity, run.layers["fc.weight"][-1].density
    """
    if not (path / CONFIG).is_file():
        raise ValueError(f"{path} holds no run: it has no {CONFIG}")
    problems: list[str] = []
    config = read_object(path / CONFIG, problems)
    rows = read_rows(path / METRICS, problems)
    latency = read_times(path / LATENCY, problems)
    return Run(
        path=path,
        name=path.resolve().name,
        config=config,
        environment=read_object(path / ENVIRONMENT, problems),
        result=read_object(path / RESULT, problems, optional=True),
        steps=tuple(row for row in rows if row.get("kind") == "step"),
        epochs=tuple(row for row in rows if row.get("kind") == "epoch"),
        layers=_layers(path / LAYERS, problems),
        budget=_budget(path / BUDGET, problems, needed=method_name(config) != "dense"),
        problems=tuple(problems),
        latency=latency,
    )


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders at or below some paths, sorted by name, each once.

    Args:
        paths: runs, or folders of runs, also nested.

    Raises:
        ValueError: naming a path that holds none.

    Example:
        find_runs([Path("runs/a"), Path("sweeps/digits")])
    """
    found: dict[Path, Path] = {}
    for path in paths:
        here = [path] if (path / CONFIG).is_file() else _below(path)
        if not here:
            what = f"holds no run: no folder in it has a {CONFIG}" if path.is_dir() else "is not a folder"
            raise ValueError(f"{path} {what}; name a run folder, or a folder of run folders")
        for run in here:
            found.setdefault(run.resolve(), run)
    return sorted(found.values())


def _below(path: Path) -> list[Path]:
    runs = []
    for folder, names, files in os.walk(path):
        if CONFIG in files:
            runs.append(Path(folder))
            names.clear()  # a run holds no other run
    return runs


def _layers(path: Path, problems: list[str]) -> dict[str, tuple[Layer, ...]]:
    layers: dict[str, list[Layer]] = {}
    bad = 0
    for row in read_table(path, problems, needed=(_EPOCH, _STEP, "name", *_VALUES)):
        epoch, step = known(row[_EPOCH]), known(row[_STEP])
        if epoch is None or step is None:
            bad += 1
            continue
        values = (number(row[column]) for column in _VALUES)
        layers.setdefault(row["name"], []).append(Layer(int(epoch), int(step), *values))
    if bad:
        problems.append(f"{path.name}: {bad} rows have no epoch or step and are left out.")
    return {name: tuple(rows) for name, rows in layers.items()}


def _budget(path: Path, problems: list[str], *, needed: bool) -> Budget | None:
    if not path.exists():
        if needed:
            problems.append(f"{path.name} is missing; it is written after the first epoch.")
        return None
    try:
        return Budget.load(path)
    except (ValueError, OSError, RecursionError) as error:
        problems.append(f"{path.name} cannot be used: {error}")
        return None


def read_outcome(path: Path) -> Run:
    """A run without its history, whose steps, epochs and layers are empty: hundreds of runs are read in seconds.

    Raises:
        ValueError: if the folder has no config.yaml.

    Example:
        read_outcome(Path("runs/demo")).accuracy
    """
    if not (path / CONFIG).is_file():
        raise ValueError(f"{path} holds no run: it has no {CONFIG}")
    problems: list[str] = []
    config = read_object(path / CONFIG, problems)
    result = read_object(path / RESULT, problems, optional=True)
    budget = _budget(path / BUDGET, problems, needed=False)
    return Run(path, path.resolve().name, config, {}, result, (), (), {}, budget, tuple(problems))
