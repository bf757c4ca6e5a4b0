"""The file of a sweep: what it looks for, what it searches, and how; checked as a whole before anything runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from softprune.records import read_text
from softprune.train.config.keys import ConfigFile, explain, parse_yaml
from softprune.train.config.run import MOST_BYTES, RunConfig
from softprune.train.config.sections import FROM_LIST, ConfigError, Count, Named, Problem, Section, shown

if TYPE_CHECKING:
    import optuna

ObjectiveName = Literal["accuracy", "sparsity", "params", "macs"]
Direction = Literal["maximize", "minimize"]

DIRECTIONS: dict[ObjectiveName, Direction] = {
    "accuracy": "maximize",
    "sparsity": "maximize",
    "params": "minimize",
    "macs": "minimize",
}
COUNTS: tuple[ObjectiveName, ...] = ("params", "macs")


def objective_values(metrics: Mapping[str, Any], names: Sequence[ObjectiveName]) -> list[float]:
    """The objectives of a run, from the metrics of an epoch or the last one of its result.

    A run that averages its weights is judged by the average, as its own best epoch is.

    Example:
        >>> objective_values({"accuracy": 0.9, "macs": 1000}, ["accuracy", "macs"])
        [0.9, 1000.0]
    """
    known = {**metrics, "accuracy": metrics.get("average_accuracy", metrics["accuracy"])}
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"the run has no {' and no '.join(missing)}: it is dense; search for accuracy, or set method")
    return [float(known[name]) for name in names]


def costs(values: Mapping[str, float], names: Sequence[ObjectiveName]) -> tuple[float, ...]:
    """The objectives turned so that less is better.

    Example:
        >>> costs({"accuracy": 0.9, "macs": 1000}, ["accuracy", "macs"])
        (-0.9, 1000)
    """
    return tuple(-values[name] if DIRECTIONS[name] == "maximize" else values[name] for name in names)


# What is searched: for each key of the configuration a list of choices, or a range of numbers.

Number = int | float


class Range(Section):
    """Numbers from low to high, both included."""

    low: Number = Field(description="Least value.")
    high: Number = Field(description="Greatest value.")
    log: bool = Field(default=False, description="Spread evenly in the logarithm, as suits a learning rate.")
    step: Number | None = Field(default=None, description="Distance of the values; null for any number between.")

    @model_validator(mode="after")
    def _consistent(self) -> Range:
        problems, step = [], self.step
        if self.low >= self.high:
            problems.append(Problem("low", f"{self.low:g} is not below high, which is {self.high:g}"))
        if self.log and self.low <= 0:
            problems.append(Problem("low", f"{self.low:g} has no logarithm; set log to false, or low above 0"))
        if step is not None and not problems:
            if self.log:
                problems.append(Problem("step", f"{step:g} cannot go with log; leave one of them out"))
            elif not 0 < step <= self.high - self.low:
                problems.append(Problem("step", f"{step:g} is not between 0 and {self.high - self.low:g}, high - low"))
            elif (last := self.values()[-1]) != self.high:
                problems.append(Problem("step", f"{step:g} does not lead to high, but to {last:g}; set high to it"))
        if problems:
            raise ConfigError(problems)
        return self

    def values(self, step: Number | None = None) -> list[Number]:
        step = self.step if step is None else step
        assert step is not None
        # In decimals: 0.1 + 2 * 0.1 would be 0.30000000000000004.
        low, high, by = (Decimal(str(number)) for number in (self.low, self.high, step))
        exact = (low + by * index for index in range(int((high - low) / by) + 1))
        return [int(value) if isinstance(self.low + step, int) else float(value) for value in exact]


Dimension = Range | tuple[Any, ...]


def parse_search(data: Any) -> dict[str, Dimension]:
    """The dimensions of a search, as written in a sweep file; a ConfigError names all that cannot be one.

    Example:
        >>> parse_search({"optimizer.name": ["sgd", "adam"]})
        {'optimizer.name': ('sgd', 'adam')}
    """
    if not isinstance(data, Mapping) or not data:
        raise ValueError(f"{shown(data)} names no key to search, such as {{optimizer.lr: [0.05, 0.1]}}")
    found: dict[str, Dimension] = {}
    problems: list[Problem] = []
    for key, written in data.items():
        try:
            found[str(key)] = _dimension(written)
        except ConfigError as error:
            problems += [problem.below(str(key)) for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return found


def _dimension(written: Any) -> Dimension:
    if isinstance(written, Range):
        return written
    if isinstance(written, list | tuple):
        return _choices(list(written))
    if isinstance(written, Mapping) and {"low", "high"} & written.keys():
        try:
            return Range.model_validate(dict(written))
        except ValidationError as error:
            raise ConfigError(explain(error, Range)) from None
    fix = "; below a section write dotted keys, such as optimizer.lr" if isinstance(written, Mapping) else ""
    raise ConfigError([Problem("", f"{shown(written)} is neither a list of choices nor {{low: .., high: ..}}{fix}")])


def _choices(values: list[Any]) -> tuple[Any, ...]:
    problems = [] if values else [Problem("", "the list of choices is empty")]
    for index, value in enumerate(values):
        try:
            json.dumps(value, allow_nan=False)
        except (ValueError, TypeError):
            problems.append(Problem(str(index), f"{shown(value)} is not a finite number, text, list or mapping"))
        if value in values[:index]:
            problems.append(Problem(str(index), f"{shown(value)} is the same as a choice before it"))
    if problems:
        raise ConfigError(problems)
    return tuple(values)


@dataclass(frozen=True)
class Space:
    dimensions: Mapping[str, Dimension]  # by dotted key of the configuration
    whole: frozenset[str]  # the keys that take whole numbers only

    def problems(self) -> list[Problem]:
        """Ranges of keys that take whole numbers, but with broken ends or steps."""
        found = []
        for key in self.whole:
            dimension = self.dimensions[key]
            ends = dimension.model_dump(exclude={"log"}) if isinstance(dimension, Range) else {}
            for end, value in ends.items():
                if isinstance(value, float):
                    fix = f": write {value:.0f}" if value.is_integer() else ""
                    found.append(Problem(f"{key}.{end}", f"{value!r} is not a whole number, but {key} is one{fix}"))
        return found

    def endless(self) -> list[str]:
        """The keys with too many values for a grid."""
        return [key for key, d in self.dimensions.items() if isinstance(d, Range) and self._step(key, d) is None]

    def size(self) -> int:
        """The number of points of the grid; nothing may be endless."""
        return math.prod(map(len, self._all()))

    def points(self) -> list[dict[str, Any]]:
        """The points of the grid, the last key running fastest."""
        return [dict(zip(self.dimensions, values, strict=True)) for values in product(*self._all())]

    def corners(self, limit: int) -> list[dict[str, Any]]:
        """Points at which to try what the space allows: all choices and both ends of all ranges, in every combination.

        Where these are more than `limit`, every choice and every end comes once beside the first of all other keys.
        """
        ends = {key: [d.low, d.high] if isinstance(d, Range) else list(d) for key, d in self.dimensions.items()}
        if math.prod(map(len, ends.values())) <= limit:
            return [dict(zip(ends, values, strict=True)) for values in product(*ends.values())]
        first = {key: values[0] for key, values in ends.items()}
        return [first, *({**first, key: value} for key, values in ends.items() for value in values[1:])]

    def suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        """The values of a trial, as its sampler chooses them or as they were chosen before."""
        stored: dict[str, Any] = {}
        for key, d in self.dimensions.items():
            if isinstance(d, tuple):
                stored[key] = trial.suggest_categorical(key, [label(choice) for choice in d])
            elif key in self.whole:
                stored[key] = trial.suggest_int(key, int(d.low), int(d.high), step=int(d.step or 1), log=d.log)
            else:
                stored[key] = trial.suggest_float(key, d.low, d.high, step=d.step, log=d.log)
        return self.chosen(stored)

    def fixed(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """A point of the grid, as `suggest` finds it again."""
        return {key: value if isinstance(self.dimensions[key], Range) else label(value) for key, value in point.items()}

    def chosen(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The values behind those that a study stores."""
        return {
            key: d[[label(choice) for choice in d].index(stored[key])] if isinstance(d, tuple) else stored[key]
            for key, d in self.dimensions.items()
            if key in stored
        }

    def _all(self) -> list[list[Any]]:
        return [d.values(self._step(key, d)) if isinstance(d, Range) else list(d) for key, d in self.dimensions.items()]

    def _step(self, key: str, dimension: Range) -> Number | None:
        return 1 if dimension.step is None and key in self.whole and not dimension.log else dimension.step


def label(choice: Any) -> Any:
    """A choice as a study stores it: lists and mappings as JSON, because it knows plain values only.

    Example:
        >>> label(0.1), label({"g": "exp"})
        (0.1, '{"g": "exp"}')
    """
    return json.dumps(choice) if isinstance(choice, list | dict | tuple) else choice


# The file.

_SQLITE = re.compile(r"sqlite[^:]*:///?([^?]*)")
# Key of a pruner -> the pruners that use it.
_USED_BY = {"startup_trials": ("median",), "factor": ("halving", "hyperband")}


class PrunerConfig(Named):
    """When a trial is stopped because others did better."""

    name: Literal["median", "halving", "hyperband"] = Field(
        description="median stops what is below the median of the others at the same epoch; halving lets the best of "
        "every factor go on at each rung; hyperband halves in brackets that begin early and late."
    )
    warmup_epochs: Count = Field(
        default=1, description="Epochs that every trial may train; the first rung of halving and hyperband."
    )
    startup_trials: int = Field(default=5, ge=0, description="Trials that must be complete before median stops one.")
    factor: Annotated[int, Field(ge=2)] = Field(
        default=3, description="One in this many goes on at each rung of halving and hyperband."
    )


class SweepConfig(ConfigFile):
    """Everything that decides a sweep, in the order in which it is read."""

    kind: ClassVar[str] = "the sweep"

    name: str = Field(default="sweep", description="Name of the study, and of its folder under runs/.")
    base: str = Field(
        description="A recipe, or a YAML file with its place relative to this file: what every trial runs."
    )
    changes: dict[str, Any] = Field(default={}, description="Dotted keys of the base with values for every trial.")
    search: dict[str, Any] = Field(
        description="Dotted keys of the base, each with a list of choices or {low, high, log, step}."
    )
    sampler: Literal["grid", "random", "tpe"] = Field(
        default="tpe", description="grid tries every combination, random any, tpe learns from the trials before."
    )
    trials: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="How many; null for all combinations of a grid. Fewer are drawn at random from it."
    )
    objectives: Annotated[tuple[ObjectiveName, ...], FROM_LIST] = Field(
        default=("accuracy",),
        description="One or two of accuracy, sparsity (more is better), params, macs (fewer are better).",
    )
    pruner: PrunerConfig | None = Field(default=None, description="Stops hopeless trials; for one objective only.")
    seed: int = Field(default=0, ge=0, description="Seed of the sampler; the runs have their own.")
    retries: int = Field(default=2, ge=0, description="How often a trial goes on after its worker was killed.")
    grace_seconds: Annotated[int, Field(ge=2)] = Field(
        default=60, description="A worker that gave no sign of life for so long counts as dead."
    )
    storage: str | None = Field(
        default=None, description="Database URL that machines share; null for study.db in the sweep folder."
    )

    @field_validator("name")
    @classmethod
    def _is_label(cls, name: str) -> str:
        return RunConfig._is_label(name)

    @field_validator("search", mode="plain")
    @classmethod
    def _dimensions(cls, search: Any) -> dict[str, Dimension]:
        return parse_search(search)

    @field_validator("objectives", mode="before")
    @classmethod
    def _listed(cls, objectives: Any) -> Any:
        return [objectives] if isinstance(objectives, str) else objectives

    @field_validator("storage")
    @classmethod
    def _is_url(cls, storage: str | None) -> str | None:
        if storage is not None and "://" not in storage:
            raise ValueError(f"{storage!r} is not a database URL, such as postgresql://host/name")
        if (file := _SQLITE.match(storage or "")) and not Path(file[1]).is_absolute():
            raise ValueError(f"{storage!r} names no file by its whole path, such as sqlite:////data/study.db")
        return storage

    @model_validator(mode="after")
    def _consistent(self) -> SweepConfig:
        if problems := list(self._contradictions()):
            raise ConfigError(problems)
        return self

    @classmethod
    def load(cls, path: Path) -> SweepConfig:
        return cls.parse(parse_yaml(read_text(path, most=MOST_BYTES), str(path)), origin=str(path))

    def _contradictions(self) -> Iterator[Problem]:
        if self.trials is None and self.sampler != "grid":
            yield Problem("trials", f"is missing: {self.sampler} never comes to an end by itself")
        if not self.objectives or len(self.objectives) > 2:
            yield Problem("objectives", f"{shown(self.objectives)} must be one or two")
        if len(set(self.objectives)) < len(self.objectives):
            yield Problem("objectives", f"{shown(self.objectives)} names one twice")
        if self.pruner is None:
            return
        if len(self.objectives) > 1:
            fix = "leave it out, or keep one objective"
            yield Problem("pruner", f"{self.pruner.name} cannot judge two objectives by one course; {fix}")
        for key, names in _USED_BY.items():
            value, default = getattr(self.pruner, key), PrunerConfig.model_fields[key].default
            if self.pruner.name not in names and value != default:
                fix = f"only with {' and '.join(names)}"
                yield Problem(f"pruner.{key}", f"{value} has no effect with {self.pruner.name}, {fix}")
