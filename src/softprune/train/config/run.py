"""The configuration of a training run: read from a file or a recipe, changed by overrides, hashed and described."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from softprune.methods.base import method_names
from softprune.records import read_text
from softprune.train.config.goal import (
    GoalConfig,
    MethodConfig,
    RuleConfig,
    check_match,
    goal_contradictions,
    method_defaults,
    method_descriptions,
)
from softprune.train.config.keys import ConfigFile, field_at, is_list, known_keys, leaves, parse_yaml, section_at
from softprune.train.config.sections import (
    FROM_LIST,
    CheckpointConfig,
    ConfigError,
    Count,
    DataConfig,
    DistributedConfig,
    ExpectedConfig,
    LogConfig,
    ModelConfig,
    OptimizerConfig,
    Positive,
    PositiveFraction,
    Problem,
    ProposeConfig,
    ScheduleConfig,
    UnitsConfig,
    changed,
    is_factory,
    refuse_code,
    schedule_contradictions,
    shown,
    unknown_key,
)
from softprune.train.data.datasets import without_effect

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
        return tuple(check_match(text) for text in skip)

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if problems := [*_unused(self), *_numbers(self), *goal_contradictions(self)]:
            raise ConfigError(problems)
        return self

    @classmethod
    def load(cls, where: str | Path, overrides: Iterable[str] = (), *, trust: bool = False) -> RunConfig:
        """Read a file or a recipe, change some of it, and check the whole. Nothing is imported.

        Args:
            where: a YAML file, or the name of a recipe such as "resnet50/str-90.23" or "recipe:resnet50-str-90.23".
            overrides: "key=value" with dotted keys, such as "optimizer.lr=0.1"; values are YAML.
            trust: also take a file that names code, package.module:factory, which a run imports and calls; it is
                refused otherwise. Code that is named in `overrides` is yours and needs no trust.

        Raises:
            ConfigError: with every problem found.

        Example:
            >>> RunConfig.load("digits/str", ["epochs=2"]).epochs
            2
        """
        file = Path(where)
        is_file = file.is_file() or file.suffix in (".yaml", ".yml")
        origin = str(where) if is_file else f"recipe {str(where).removeprefix(PREFIX)}"
        data = parse_yaml(read_text(file, most=MOST_BYTES) if is_file else recipe_text(str(where)), origin)
        changes = tuple(overrides)
        if isinstance(data, Mapping):
            data = apply_overrides(data, changes, origin=origin)
        config = cls.parse(data, origin=origin)
        if is_file and not trust:
            mine = texts_of([_parse(text)[1] for text in changes])
            refuse_code([(key, name) for key, name in config.code() if name not in mine], origin=origin)
        return config

    def code(self) -> list[tuple[str, str]]:
        """The Python code that a run of this imports and calls: key and package.module:factory of each."""
        named = [("model.name", self.model.name), ("data.name", self.data.name)]
        return [*((k, n) for k, n in named if is_factory(n)), *(("log.own", name) for name in self.log.own)]


# Key -> the names of its section's `name` that use it. A value that nothing uses is a mistake, not a detail.
_USED_BY: dict[str, tuple[str, ...]] = {
    "optimizer.momentum": ("sgd",),
    "optimizer.nesterov": ("sgd",),
    "optimizer.betas": ("adam", "adamw"),
    "optimizer.eps": ("adam", "adamw"),
    "schedule.milestones": ("step",),
    "schedule.gamma": ("step",),
    "schedule.final": ("cosine",),
}


def _unused(config: RunConfig) -> Iterator[Problem]:
    """The settings of the optimizer, the schedule and the data set that have no effect."""
    found = []
    for path, names in _USED_BY.items():
        where, _, key = path.partition(".")
        section: Any = getattr(config, where)
        if section.name not in names and changed(section, [key]):
            found.append((section, path, f"has no effect with {section.name}, only with {' and '.join(names)}"))
    for key, problem in without_effect(config.data.name, config.data.model_dump()):
        found.append((config.data, f"data.{key}", problem))
    for section, path, problem in found:
        key = path.rpartition(".")[2]
        default = shown(type(section).model_fields[key].default)
        text = f"{shown(getattr(section, key))} {problem}; leave it out, or set it back to {default}"
        yield Problem(path, text)


def _numbers(config: RunConfig) -> Iterator[Problem]:
    optimizer = config.optimizer
    if optimizer.nesterov and optimizer.name == "sgd" and optimizer.momentum == 0:
        yield Problem("optimizer.nesterov", "true needs momentum; set optimizer.momentum=0.9")
    yield from schedule_contradictions(config.schedule, config.epochs)
    if config.batch % config.accumulate:
        yield Problem("accumulate", f"{config.accumulate} does not divide the batch of {config.batch} evenly")


# What is said about a run, and when it writes what, does not change what it computes.
_ABOUT = {"name", "summary", "expected", "log", "checkpoint"}


def content_hash(config: RunConfig) -> str:
    """Twelve hexadecimal digits that two configurations share exactly if they compute the same.

    Defaults are left out, so that a key added later does not change the hash of an older configuration.

    Example:
        >>> short, long = RunConfig.load("digits/str"), RunConfig.load("digits/str", ["accumulate=1", "name=other"])
        >>> content_hash(short) == content_hash(long)
        True
    """
    content = config.model_dump(mode="json", exclude=_ABOUT, exclude_defaults=True)
    if config.method is not None:
        kept = {key: config.method.settings[key] for key in config.method.off_default(*config.method.settings)}
        content["method"] = {"name": config.method.name, **kept}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def config_schema() -> dict[str, Any]:
    """The JSON schema of a configuration file, with which an editor completes and explains keys."""
    schema = RunConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "softprune training run"
    long = schema["$defs"]["MethodConfig"]["anyOf"][1]
    long["properties"]["name"]["enum"] = method_names()
    for name in method_names():
        for key, text in method_descriptions(name).items():
            long["properties"].setdefault(key, {"description": text, "default": method_defaults(name)[key]})
    return schema


def apply_overrides(
    data: Mapping[str, Any], overrides: Iterable[str], *, origin: str = "the configuration"
) -> dict[str, Any]:
    """A copy of the plain data of a configuration with some values replaced.

    Overrides are "optimizer.lr=0.1", "skip=[fc.weight]", "ema=null", "rules.0.s_init=-100"; values are YAML. A short
    form on the way (``model: digits``) is written out, so that a key below it can be set. Unknown keys are refused;
    values are checked afterwards, by `RunConfig.parse`.

    Example:
        >>> apply_overrides({"model": "digits", "epochs": 60}, ["model.args.num_classes=5", "epochs=2"])
        {'model': {'name': 'digits', 'args': {'num_classes': 5}}, 'epochs': 2}
    """
    changed: dict[str, Any] = copy.deepcopy(dict(data))
    problems: list[Problem] = []
    for text in overrides:
        try:
            path, value = _parse(text)
            _set(changed, path, value)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems, origin=f"{origin} with these overrides")
    return changed


def texts_of(data: Any) -> set[str]:
    """Every text in plain data, however deep, keys left out.

    Example:
        >>> sorted(texts_of([{"name": "mine:net", "args": {"width": 3}}, ("mine:Logger",)]))
        ['mine:Logger', 'mine:net']
    """
    found: set[str] = set()
    left: list[Any] = [data]
    while left:
        value = left.pop()
        if isinstance(value, str):
            found.add(value)
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return found


def _parse(text: str) -> tuple[list[str], Any]:
    key, equals, written = text.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError([Problem(text, "an override is key=value, such as optimizer.lr=0.1")])
    if not written.strip():
        raise ConfigError([Problem(key, f"{key}= has no value; write {key}=null to switch it off")])
    depth, _ = field_at(RunConfig, path)
    if depth < len(path):
        section = section_at(RunConfig, path[:depth])
        no_keys = Problem(".".join(path), f"{'.'.join(path[:depth])} is a value and has no keys of its own")
        known = [] if section is None else known_keys(section)
        unknown = unknown_key(path[: depth + 1], known, [leaf for leaf, _ in leaves(RunConfig)])
        raise ConfigError([no_keys if section is None else unknown])
    try:
        return path, parse_yaml(written, text)
    except ValueError as error:
        raise ConfigError([Problem(key, str(error))]) from error


def _set(data: dict[str, Any], path: list[str], value: Any) -> None:
    here: Any = data
    for depth, part in enumerate(path[:-1], start=1):
        key = _key(here, part, path)
        inside = here.get(key) if isinstance(here, dict) else here[key]
        if not isinstance(inside, dict | list):
            # A short form, or a section that was left out or null.
            _, field = field_at(RunConfig, path[:depth])
            if field is not None and is_list(field.annotation):
                raise ConfigError([Problem(".".join(path), f"{part} is not a list yet; write {part}=[...] instead")])
            section = section_at(RunConfig, path[:depth])
            long = section.long_form(inside) if section is not None else None
            here[key] = inside = long if isinstance(long, dict) else {}
        here = inside
    here[_key(here, path[-1], path)] = value


def _key(here: dict[str, Any] | list[Any], part: str, path: list[str]) -> Any:
    """A part of a path as a key of the mapping, or as an index of the list, that it stands in."""
    if isinstance(here, list) and (not part.isdecimal() or int(part) >= len(here)):
        held = f"has the elements 0 to {len(here) - 1}" if here else "is empty"
        raise ConfigError([Problem(".".join(path), f"the list {held}; write the whole list instead")])
    return int(part) if isinstance(here, list) else part


# May stand before a name, to say that it is not a file.
PREFIX = "recipe:"


@dataclass(frozen=True)
class RecipeInfo:
    """A configuration that is shipped with the package: of a run of the paper's, or a small one for a laptop."""

    name: str  # what to pass to ``softprune train``, "network/what"
    summary: str
    expected: dict[str, Any]  # what it should give: accuracy, sparsity, params, flops, source and note, where known
    cost: str  # roughly what it takes


def recipes() -> list[RecipeInfo]:
    """All recipes, by network and name, read but not checked.

    Example:
        >>> [recipe.name for recipe in recipes() if recipe.name.startswith("digits/")]
        ['digits/dense', 'digits/str', 'digits/str-goal']
    """
    found = []
    for name in sorted(_files()):
        data = parse_yaml(recipe_text(name), f"recipe {name}")
        cost = data["expected"].pop("cost")
        found.append(RecipeInfo(name, data["summary"], data["expected"], cost))
    return found


def load_recipe(name: str) -> RunConfig:
    """The configuration of a recipe.

    Example:
        >>> load_recipe("resnet50/str-90.23").method.settings["s_init"]
        -3200.0
    """
    return RunConfig.parse(parse_yaml(recipe_text(name), f"recipe {name}"), origin=f"recipe {name}")


def recipe_text(name: str) -> str:
    """The file of a recipe, with its comments: what to copy as the start of your own configuration.

    The name is "network/what"; behind "recipe:" also with a dash for the slash, "recipe:network-what".
    """
    files = _files()
    if name.startswith(PREFIX):
        name = name.removeprefix(PREFIX)
        name = next((known for known in files if known.replace("/", "-") == name), name)
    if name not in files:
        names = sorted(files)
        network = name.partition("/")[0]
        near = get_close_matches(name, names, n=3, cutoff=0.5) or [n for n in names if n.startswith(f"{network}/")]
        hint = f"did you mean {' or '.join(near[:4])}?" if near else f"the recipes are {', '.join(names)}"
        raise ValueError(f"{name!r} is neither a .yaml file nor a recipe; {hint}")
    return files[name]


@cache
def _files() -> dict[str, str]:
    root = resources.files("softprune.train") / "recipe_data"
    return {
        f"{folder.name}/{file.name.removesuffix('.yaml')}": file.read_text(encoding="utf-8")
        for folder in root.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }
