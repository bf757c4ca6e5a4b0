"""The configuration of a training run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from softprune.budget.files import read_text
from softprune.train.config.consistency import contradictions
from softprune.train.config.expected import ExpectedConfig
from softprune.train.config.file import ConfigFile
from softprune.train.config.goal import GoalConfig
from softprune.train.config.learning import OptimizerConfig, ProposeConfig, ScheduleConfig
from softprune.train.config.method import MethodConfig
from softprune.train.config.problem import ConfigError
from softprune.train.config.process import CheckpointConfig, DistributedConfig, LogConfig
from softprune.train.config.rule import RuleConfig, check_match
from softprune.train.config.section import FROM_LIST, Count, Positive, PositiveFraction, is_factory, refuse_code
from softprune.train.config.source import DataConfig, ModelConfig
from softprune.train.config.units import UnitsConfig
from softprune.train.document import parse_yaml

MOST_BYTES = 4 << 20  # of a configuration: YAML is read slowly, and nobody writes so much
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # also the name of a folder


class RunConfig(ConfigFile):
    """Everything that decides a training run, in the order in which it is read."""

    kind: ClassVar[str] = "the configuration"

    name: str = Field(default="run", description="Label of the run: letters, digits, dots, dashes, underscores.")
    summary: str = Field(default="", description="One line about the run.")
    seed: int = Field(default=0, ge=0, description="Seed of the initial weights and of the order of the data.")
    model: ModelConfig = Field(description="The network.")
    data: DataConfig = Field(description="The data.")
    method: MethodConfig | None = Field(description="What makes the weights sparse; null trains a dense network.")
    units: UnitsConfig = Field(default=UnitsConfig(), description="What is kept or pruned as a whole.")
    goal: GoalConfig | None = Field(
        default=None, description="What the run shall end with; null leaves it to the thresholds and their decay."
    )
    skip: Annotated[tuple[str, ...], FROM_LIST] = Field(
        default=(), description="Tensors left dense, written like rules[].match; stronger than any rule."
    )
    rules: Annotated[tuple[RuleConfig, ...], FROM_LIST] = Field(default=(), description="Settings for some tensors.")
    optimizer: OptimizerConfig = Field(description="How weights and thresholds are moved.")
    schedule: ScheduleConfig = Field(default=ScheduleConfig(), description="The learning rate over the run.")
    propose: ProposeConfig = Field(default=ProposeConfig(), description='What "propose" aims at.')
    epochs: Count = Field(description="Passes over the training data.")
    length: Positive = Field(
        default=1.0,
        description="Factor on epochs, warm-up and milestones; the decay of s is divided by it, so that s takes the "
        "same course in a longer or shorter run.",
    )
    batch: Count = Field(description="Images per optimizer step, over all processes and accumulated parts.")
    accumulate: Count = Field(default=1, description="Parts into which a batch is split to save memory.")
    evaluate_every: Count = Field(default=1, description="Epochs between evaluations; the last one is always made.")
    drop_last: bool = Field(default=False, description="Leave out an incomplete last batch of an epoch.")
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="Of the cross-entropy; the paper has 0.1."
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="fp32, or autocast to bf16 or fp16; weights and thresholds stay in float32."
    )
    channels_last: bool = Field(default=False, description="Store images and convolutions channels last.")
    compile: bool = Field(default=False, description="Run the model through torch.compile.")
    ema: PositiveFraction | None = Field(
        default=None, description="Decay of an average of weights and thresholds to evaluate; null for none."
    )
    clip_norm: Positive | None = Field(default=None, description="Largest norm of the gradient of the weights.")
    distributed: DistributedConfig = Field(default=DistributedConfig(), description="Several processes.")
    checkpoint: CheckpointConfig = Field(default=CheckpointConfig(), description="When the state is written.")
    log: LogConfig = Field(default=LogConfig(), description="What is written while training.")
    threads: Count | None = Field(default=None, description="torch threads per process; null for torch's choice.")
    expected: ExpectedConfig | None = Field(default=None, description="What the run should give.")

    @field_validator("name")
    @classmethod
    def _is_label(cls, name: str) -> str:
        if not _LABEL.fullmatch(name):
            raise ValueError(
                f"{name!r} must begin with a letter or digit and hold only these, dots, dashes, underscores"
            )
        return name

    @field_validator("skip")
    @classmethod
    def _matches(cls, skip: tuple[str, ...]) -> tuple[str, ...]:
        for text in skip:
            check_match(text)
        return skip

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if problems := contradictions(self):
            raise ConfigError(problems)
        return self

    @classmethod
    def load(cls, where: str | Path, overrides: Iterable[str] = (), *, trust: bool = False) -> RunConfig:
        """Read a file or a recipe, change some of it, and check the whole. Nothing is imported.

        Args:
            where: a YAML file, or the name of a recipe such as "resnet50/str-90.23" or "recipe:resnet50-str-90.23".
            overrides: "key=value" with dotted keys, such as "optimizer.lr=0.1"; values are YAML.
            trust: also take a file that names code, package.module:factory, which a run imports and calls. Code that
                is named in `overrides` is yours and needs no trust.

        Raises:
            ConfigError: with every problem found.
            ValueError: for a file that names code, without `trust`.

        Example:
            >>> RunConfig.load("digits/str", ["epochs=2"]).epochs
            2
        """
        # Both build on this class.
        from softprune.train.overrides import apply_overrides, texts_in
        from softprune.train.recipes import PREFIX, recipe_text

        file = Path(where)
        is_file = file.is_file() or file.suffix in (".yaml", ".yml")
        origin = str(where) if is_file else f"recipe {str(where).removeprefix(PREFIX)}"
        data = parse_yaml(read_text(file, most=MOST_BYTES) if is_file else recipe_text(str(where)), origin)
        changes = tuple(overrides)
        if isinstance(data, Mapping):
            data = apply_overrides(data, changes, origin=origin)
        config = cls.parse(data, origin=origin)
        if is_file and not trust:
            mine = texts_in(changes)
            refuse_code([(key, name) for key, name in config.code() if name not in mine], origin=origin)
        return config

    def code(self) -> list[tuple[str, str]]:
        """The Python code that a run of this imports and calls: key and package.module:factory of each."""
        named = [("model.name", self.model.name), ("data.name", self.data.name)]
        return [*((k, n) for k, n in named if is_factory(n)), *(("log.own", name) for name in self.log.own)]
