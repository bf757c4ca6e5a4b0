"""A sweep that was checked against its base: every value it can choose is one that a run takes."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from softprune.train.config import ConfigError, Problem, RunConfig
from softprune.train.config.goal import method_defaults
from softprune.train.config.keys import alternatives, field_at
from softprune.train.config.run import apply_overrides, texts_of
from softprune.train.config.sections import is_factory, refuse_code
from softprune.train.schedule import stretch
from softprune.train.sweep.sweep_config import Dimension, Range, Space, SweepConfig

BASE = "base.yaml"
MOST_POINTS, MOST_CORNERS = 10_000, 512


@dataclass(frozen=True)
class Sweep:
    config: SweepConfig  # as in the file
    base: RunConfig  # what every trial runs, with the changes made
    space: Space  # what the trials choose from

    @classmethod
    def load(cls, path: Path, *, storage: str | None = None, trust: bool = False) -> Sweep:
        """Read a sweep file, and try what it can choose on its base; a ConfigError has every problem found.

        A database URL in `storage` replaces that of the file. Files that name code, package.module:factory, which the
        trials import and call, are taken with `trust` only.
        """
        config = SweepConfig.load(path)
        if storage is not None:
            config = SweepConfig.parse({**config.model_dump(), "storage": storage}, origin="--storage")
        # A base that is a file lies relative to the sweep file, so that the sweep can be started from anywhere.
        place = path.parent / config.base if config.base.endswith((".yaml", ".yml")) else config.base
        plain = RunConfig.load(place, trust=trust)
        if problems := check_keys(config, plain):
            raise ConfigError(problems, origin=str(path))
        base = RunConfig.load(place, assignments(config.changes), trust=trust)
        if not trust:
            # To the base changes and choices look like words of the user; they are words of this file.
            texts = texts_of([config.changes, config.search])
            refuse_code([("changes or search", name) for name in sorted(texts) if is_factory(name)], origin=str(path))
        whole = frozenset(key for key, d in config.search.items() if _takes_whole_numbers(key, d, base))
        sweep = cls(config, base, Space(config.search, whole))
        if problems := sweep._problems():
            raise ConfigError(problems, origin=str(path))
        return sweep

    @property
    def trials(self) -> int:
        return self.config.trials or self.space.size()

    def points(self) -> list[dict[str, Any]] | None:
        """The points that the trials of a grid take, in order; None where the sampler chooses them."""
        if self.config.sampler != "grid":
            return None
        points = self.space.points()
        chosen = sorted(random.Random(self.config.seed).sample(range(len(points)), self.trials))
        return [points[index] for index in chosen]

    def run_config(self, values: Mapping[str, Any]) -> RunConfig:
        """The configuration of a trial; a ConfigError if these values cannot go together."""
        origin = f"the trial with {written(values)}" if values else "the trial"
        return RunConfig.parse(apply_overrides(self.base.model_dump(mode="json"), assignments(values)), origin=origin)

    def _problems(self) -> list[Problem]:
        grid, space = self.config.sampler == "grid", self.space
        problems = [problem.below("search") for problem in space.problems()]
        if grid and (keys := space.endless()):
            fix = "give a step or a list, or take the sampler random or tpe"
            problems += [Problem(f"search.{key}", f"has no end of values for a grid; {fix}") for key in keys]
        elif grid and (size := space.size()) > MOST_POINTS:
            fix = "search fewer values"
            problems.append(Problem("search", f"makes a grid of {size:,} points, more than {MOST_POINTS:,}; {fix}"))
        elif grid and self.trials > size:
            problems.append(Problem("trials", f"{self.trials} are more than the {size} combinations of the grid"))
        if problems:
            return problems
        problems = self._refusals(space.points() if grid else space.corners(MOST_CORNERS))
        if self.config.pruner is not None and not {"epochs", "length"} & self.config.search.keys():
            first, epochs = self.config.pruner.warmup_epochs, stretch(self.base).epochs
            if first >= epochs:
                problems += [Problem("pruner.warmup_epochs", f"{first} is not below the {epochs} epochs of a trial")]
        return problems

    def _refusals(self, points: Iterable[Mapping[str, Any]]) -> list[Problem]:
        """What a run refuses of these points; each problem once, with the number of points that have it."""
        found: Counter[Problem] = Counter()
        costs = " and no ".join(name for name in self.config.objectives if name != "accuracy")
        for point in points:
            try:
                dense = self.run_config(point).method is None
            except ConfigError as error:
                found.update(_placed(problem, point) for problem in error.problems)
                continue
            if dense and costs:
                fix = "set method, or keep accuracy alone"
                found.update([Problem("objectives", f"a dense run has no {costs}; {fix}")])
        return [Problem(p.path, f"{p.message} (in {n} combinations)" if n > 1 else p.message) for p, n in found.items()]


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Values as overrides of a configuration; JSON is YAML, and has every number in full.

    Example:
        >>> assignments({"optimizer.lr": 1e-05, "model": "digits"})
        ['optimizer.lr=1e-05', 'model="digits"']
    """
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]


def written(values: Mapping[str, Any]) -> str:
    """Values for a person to read.

    Example:
        >>> written({"optimizer.lr": 0.012345678, "optimizer.name": "sgd"})
        'optimizer.lr=0.01235 optimizer.name=sgd'
    """
    return " ".join(f"{key}={_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def check_keys(config: SweepConfig, base: RunConfig) -> list[Problem]:
    """Keys of `changes` and `search` that do not exist, with the nearest, or that contradict each other."""
    problems = []
    plain = base.model_dump(mode="json")
    places = [(section, key) for section in ("changes", "search") for key in getattr(config, section)]
    for section, key in places:
        try:
            apply_overrides(plain, [f"{key}=null"])
        except ConfigError as error:
            problems += [problem.below(section) for problem in error.problems]
        # A trial's name says which trial it is, and the version of the format cannot be chosen.
        if key in ("name", "version"):
            problems.append(Problem(f"{section}.{key}", "cannot be chosen: every trial has its own"))
    for key, (section, other) in product(config.search, places):
        if other.startswith(f"{key}.") or (key == other and section == "changes"):
            problems.append(Problem(f"search.{key}", f"would overwrite {section}.{other}; keep one of the two"))
    return problems


def _placed(problem: Problem, point: Mapping[str, Any]) -> Problem:
    """The problem below the searched key that causes it; else with those searched keys it may come from."""
    if any(f"{problem.path}.".startswith(f"{key}.") for key in point):
        return problem.below("search")
    section = problem.path.partition(".")[0]
    near = [key for key in point if key.partition(".")[0] == section] or list(point)
    return Problem("search", f"{' and '.join(near)} can be chosen so that {problem}")


def _takes_whole_numbers(key: str, dimension: Dimension, base: RunConfig) -> bool:
    path = key.split(".")
    if path[0] == "method" and len(path) == 2 and base.method is not None:
        default = method_defaults(base.method.name).get(path[1])
        return isinstance(default, int) and not isinstance(default, bool)
    _, field = field_at(RunConfig, path)
    if field is None or path[:2] == ["model", "args"]:
        # Nothing says what it takes, so the way in which the range is written counts.
        numbers = dimension.model_dump(exclude={"log"}).values() if isinstance(dimension, Range) else ()
        return any(numbers) and not any(isinstance(number, float) for number in numbers)
    kinds = alternatives(field.annotation)
    return int in kinds and float not in kinds


# What makes two sweeps the same, so that a second start joins the first and nothing else.


def description(config: SweepConfig, base: RunConfig) -> dict[str, Any]:
    """All that decides the trials, as plain data; the base is the one with the changes made."""
    return {**config.model_dump(mode="json", exclude={"storage", "changes"}), "base": base.model_dump(mode="json")}


def differences(one: dict[str, Any], other: dict[str, Any], prefix: str = "") -> list[str]:
    """The dotted keys whose values differ.

    Example:
        >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4})
        ['a.c', 'd']
    """
    found = []
    for key in dict.fromkeys([*one, *other]):
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += differences(mine, theirs, f"{prefix}{key}.")
        elif mine != theirs:
            found.append(f"{prefix}{key}")
    return found
