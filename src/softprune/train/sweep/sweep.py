"""Whether a run can take what a sweep chooses: asked before the first trial, not found out by the last."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from softprune.train.config import ConfigError, Problem, RunConfig
from softprune.train.config.keys import field_at
from softprune.train.config.method import method_defaults
from softprune.train.config.run import apply_overrides, texts_of
from softprune.train.config.sections import is_factory, refuse_code
from softprune.train.schedule import stretch
from softprune.train.sweep.config import Dimension, Range, Space, SweepConfig

# A trial's name says which trial it is, and the version of the format is no matter of choice.
_NOT_FREE = ("name", "version")


def check_keys(config: SweepConfig, base: RunConfig) -> list[Problem]:
    """Keys of `changes` and `search` that do not exist, with the nearest, or that contradict each other."""
    problems = []
    plain = base.model_dump(mode="json")
    for section, keys in (("changes", config.changes), ("search", config.search)):
        for key in keys:
            try:
                apply_overrides(plain, [f"{key}=null"])
            except ConfigError as error:
                problems += [problem.below(section) for problem in error.problems]
            if key in _NOT_FREE:
                problems.append(Problem(f"{section}.{key}", "cannot be chosen: every trial has its own"))
    for key in config.search:
        for section, keys in (("changes", config.changes), ("search", config.search)):
            for other in keys:
                if other.startswith(f"{key}.") or (key == other and section == "changes"):
                    problems.append(Problem(f"search.{key}", f"would overwrite {section}.{other}; keep one of the two"))
    return problems


def whole_keys(search: Mapping[str, Dimension], base: RunConfig) -> frozenset[str]:
    """The searched keys that take whole numbers only."""
    return frozenset(key for key, dimension in search.items() if _takes_whole_numbers(key, dimension, base))


def check_points(
    run_config: Callable[[Mapping[str, Any]], RunConfig], points: Iterable[Mapping[str, Any]], config: SweepConfig
) -> list[Problem]:
    """What a run refuses of these points; each problem once, with the first point that has it."""
    found: dict[Problem, int] = {}
    for point in points:
        for problem in _refusals(run_config, point, config):
            found[problem] = found.get(problem, 0) + 1
    return [Problem(p.path, f"{p.message} (in {n} combinations)" if n > 1 else p.message) for p, n in found.items()]


def _refusals(
    run_config: Callable[[Mapping[str, Any]], RunConfig], point: Mapping[str, Any], config: SweepConfig
) -> list[Problem]:
    try:
        made = run_config(point)
    except ConfigError as error:
        return [_placed(problem, point) for problem in error.problems]
    costs = [name for name in config.objectives if name != "accuracy"]
    if made.method is None and costs:
        return [
            Problem("objectives", f"a dense run has no {' and no '.join(costs)}; set method, or keep accuracy alone")
        ]
    return []


def _placed(problem: Problem, point: Mapping[str, Any]) -> Problem:
    """The problem below the searched key that causes it; else with those searched keys it may come from."""
    for key in point:
        if problem.path == key or problem.path.startswith(f"{key}."):
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
        # Nobody says what it takes, so as it is written.
        numbers = dimension.model_dump(exclude={"log"}).values() if isinstance(dimension, Range) else ()
        return any(numbers) and not any(isinstance(number, float) for number in numbers)
    kinds = _kinds(field.annotation)
    return int in kinds and float not in kinds


def _kinds(annotation: Any) -> set[Any]:
    """The types that a field may have."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return {kind for part in get_args(annotation) for kind in _kinds(part)}
    return {annotation}


# A sweep that was checked against its base: every value it can choose is one that a run takes.


BASE = "base.yaml"
MOST_POINTS = 10_000
MOST_CORNERS = 512


@dataclass(frozen=True)
class Sweep:
    """A sweep, ready to be run.

    Attributes:
        config: as in the file.
        base: what every trial runs, with the changes made.
        space: what the trials choose from.
    """

    config: SweepConfig
    base: RunConfig
    space: Space

    @classmethod
    def load(cls, path: Path, *, storage: str | None = None, trust: bool = False) -> Sweep:
        """Read a sweep file, and try what it can choose on its base.

        Args:
            path: of the file.
            storage: a database URL in the place of the file's.
            trust: also take files that name code, package.module:factory, which the trials import and call.

        Raises:
            ConfigError: with every problem found; nothing has been written then.
            ValueError: for files that name code, without `trust`.
        """
        config = SweepConfig.load(path)
        if storage is not None:
            config = SweepConfig.parse({**config.model_dump(), "storage": storage}, origin="--storage")
        place = _beside(path, config.base)
        plain = RunConfig.load(place, trust=trust)
        if problems := check_keys(config, plain):
            raise ConfigError(problems, origin=str(path))
        base = RunConfig.load(place, assignments(config.changes), trust=trust)
        if not trust:
            # To the base changes and choices look like words of the user; they are words of this file.
            texts = texts_of([config.changes, config.search])
            refuse_code([("changes or search", name) for name in sorted(texts) if is_factory(name)], origin=str(path))
        sweep = cls(config, base, Space(config.search, whole_keys(config.search, base)))
        if problems := sweep._problems():
            raise ConfigError(problems, origin=str(path))
        return sweep

    @property
    def trials(self) -> int:
        """How many there will be."""
        return self.config.trials or self.space.size()

    def points(self) -> list[dict[str, Any]] | None:
        """The points that the trials of a grid take, in order; None where the sampler chooses them."""
        if self.config.sampler != "grid":
            return None
        points = self.space.points()
        if self.trials == len(points):
            return points
        chosen = sorted(random.Random(self.config.seed).sample(range(len(points)), self.trials))
        return [points[index] for index in chosen]

    def run_config(self, values: Mapping[str, Any]) -> RunConfig:
        """The configuration of a trial with these values.

        Raises:
            ConfigError: if they cannot go together.
        """
        origin = f"the trial with {written(values)}" if values else "the trial"
        return RunConfig.parse(apply_overrides(self.base.model_dump(mode="json"), assignments(values)), origin=origin)

    def _problems(self) -> list[Problem]:
        problems = [problem.below("search") for problem in self.space.problems()]
        problems += self._grid_problems() if self.config.sampler == "grid" else []
        if problems:
            return problems
        points = self.space.points() if self.config.sampler == "grid" else self.space.corners(MOST_CORNERS)
        return [*check_points(self.run_config, points, self.config), *self._pruner_problems()]

    def _grid_problems(self) -> list[Problem]:
        if keys := self.space.endless():
            fix = "give a step or a list, or take the sampler random or tpe"
            return [Problem(f"search.{key}", f"has no end of values for a grid; {fix}") for key in keys]
        size = self.space.size()
        if size > MOST_POINTS:
            return [
                Problem("search", f"makes a grid of {size:,} points, more than {MOST_POINTS:,}; search fewer values")
            ]
        if self.trials > size:
            return [Problem("trials", f"{self.trials} are more than the {size} combinations of the grid")]
        return []

    def _pruner_problems(self) -> list[Problem]:
        pruner, epochs = self.config.pruner, stretch(self.base).epochs
        if pruner is None or {"epochs", "length"} & self.config.search.keys() or pruner.warmup_epochs < epochs:
            return []
        return [Problem("pruner.warmup_epochs", f"{pruner.warmup_epochs} is not below the {epochs} epochs of a trial")]


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Values as overrides of a configuration; JSON is YAML, and has every number in full.

    Example:
        >>> assignments({"optimizer.lr": 1e-05, "model": "digits"})
        ['optimizer.lr=1e-05', 'model="digits"']
    """
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]


def written(values: Mapping[str, Any]) -> str:
    """Values as a person reads them.

    Example:
        >>> written({"optimizer.lr": 0.012345678, "optimizer.name": "sgd"})
        'optimizer.lr=0.01235 optimizer.name=sgd'
    """
    return " ".join(f"{key}={_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _beside(path: Path, base: str) -> str | Path:
    """A base that is a file lies relative to the sweep file, so that the sweep can be started from anywhere."""
    return path.parent / base if base.endswith((".yaml", ".yml")) else base


# What makes two sweeps the same, so that a second start joins the first and nothing else.


def description(config: SweepConfig, base: RunConfig) -> dict[str, Any]:
    """All that decides the trials, as plain data. Where the study is kept does not.

    Args:
        config: of the sweep.
        base: what it names, with its changes made.
    """
    return {
        **config.model_dump(mode="json", exclude={"storage", "changes"}),
        "base": base.model_dump(mode="json"),
    }


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
