"""A sweep that was checked against its base: every value it can choose is one that a run takes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softprune.train.config import ConfigError, Problem, RunConfig
from softprune.train.config.section import is_factory, refuse_code
from softprune.train.length import stretch
from softprune.train.overrides import apply_overrides, texts_of
from softprune.train.sweep.config import SweepConfig
from softprune.train.sweep.feasibility import check_keys, check_points, whole_keys
from softprune.train.sweep.space import Space

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
