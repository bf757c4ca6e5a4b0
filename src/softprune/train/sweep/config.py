"""The configuration of a sweep: one YAML file, checked as a whole before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from softprune.budget.files import read_text
from softprune.train.config import ConfigError, Problem, RunConfig
from softprune.train.config.file import ConfigFile
from softprune.train.config.problem import shown
from softprune.train.config.run import MOST_BYTES
from softprune.train.config.section import FROM_LIST, Count, Named
from softprune.train.document import parse_yaml
from softprune.train.sweep.objective import ObjectiveName
from softprune.train.sweep.space import Dimension, parse_search

_SQLITE = re.compile(r"sqlite[^:]*:///?([^?]*)")
# Setting key -> the pruners that use it.
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
        if storage is None:
            return None
        if "://" not in storage:
            raise ValueError(f"{storage!r} is no database URL, such as postgresql://host/name")
        file = _SQLITE.match(storage)
        if file and not Path(file[1]).is_absolute():
            raise ValueError(f"{storage!r} names no file by its whole path, such as sqlite:////data/study.db")
        return storage

    @model_validator(mode="after")
    def _consistent(self) -> SweepConfig:
        if problems := list(self._contradictions()):
            raise ConfigError(problems)
        return self

    @classmethod
    def load(cls, path: Path) -> SweepConfig:
        """Read and check a sweep file.

        Raises:
            ConfigError: with every problem, its dotted path, and the nearest valid key.
        """
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
            yield Problem(
                "pruner",
                f"{self.pruner.name} cannot judge two objectives by one course; leave it out, or keep one objective",
            )
        for key, names in _USED_BY.items():
            value, default = getattr(self.pruner, key), PrunerConfig.model_fields[key].default
            if self.pruner.name not in names and value != default:
                fix = f"only with {' and '.join(names)}"
                yield Problem(f"pruner.{key}", f"{value} has no effect with {self.pruner.name}, {fix}")
