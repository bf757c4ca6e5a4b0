"""The sections of a configuration, and its mistakes, said so that they can be put right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from softprune.budget.units import KINDS, Units
from softprune.nn.catalog import NETWORKS
from softprune.train.data.datasets import DATA_SETS, users


@dataclass(frozen=True)
class Problem:
    """One mistake: the dotted path of the key, and what is wrong and allowed there."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def below(self, path: str) -> Problem:
        """The same problem, its path continued from ``path``."""
        return Problem(".".join(part for part in (path, self.path) if part), self.message)


class ConfigError(ValueError):
    """A configuration that cannot be run; its ``problems`` are all that were found."""

    def __init__(self, problems: Iterable[Problem], *, origin: str = "the configuration") -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{origin} has {count} problem{'s' if count > 1 else ''}:{lines}")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one, if any is.

    Example:
        >>> nearest("momentun", ["lr", "momentum", "nesterov"])
        'momentum'
    """
    close = get_close_matches(word.lower(), list(known), n=1, cutoff=0.55)
    return close[0] if close else None


def unknown_key(path: Sequence[str], here: Sequence[str], everywhere: Iterable[str] = ()) -> Problem:
    """A key that does not exist, beside those that do ``here``; of all paths one that ends in it was probably meant."""
    *section, key = path
    prefix = "".join(f"{part}." for part in section)
    meant = [p for p in everywhere if p.rpartition(".")[2] == key]
    if not meant and (near := nearest(key, here)):
        meant = [f"{prefix}{near}"]
    hint = f"; did you mean {' or '.join(meant[:3])}?" if meant else ""
    where = f"{'.'.join(section)} has" if section else "the keys are"
    # Thirty keys beside the one that was meant would only hide it.
    known = f" ({where} {', '.join(here)})" if section or not meant else ""
    return Problem(".".join(path), f"unknown key{hint}{known}")


def unknown_choice(value: object, choices: Sequence[str], *, also: str = "") -> str:
    """The message for a value that is not among those allowed, with the nearest that is."""
    near = nearest(value, choices) if isinstance(value, str) else None
    hint = f"; did you mean {near!r}?" if near else ""
    return f"{shown(value)} is not one of {', '.join(choices)}{also}{hint}"


def shown(value: object) -> str:
    """A value as it is written in a configuration.

    Example:
        >>> shown(None), shown(True), shown((0.9, 0.999)), shown("0.1")
        ('null', 'true', '[0.9, 0.999]', "'0.1'")
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(shown, value))}]"
    return repr(value)


# A pydantic field is strict as a whole, and a strict tuple does not take the list that YAML gives.
FROM_LIST = Field(strict=False)

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Section(BaseModel):
    """A frozen group of settings: unknown keys, wrong types and infinities are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    _short: ClassVar[Any] = None  # the JSON schema of the short form

    @classmethod
    def long_form(cls, data: Any) -> Any:
        """What a short form stands for; anything else as it is."""
        return data

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        return cls.long_form(data)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        return schema if cls._short is None else {"anyOf": [cls._short, handler.resolve_ref_schema(schema)]}


def changed(section: Section, keys: Iterable[str]) -> list[str]:
    """Which of the keys are not at their default."""
    return [key for key in keys if getattr(section, key) != type(section).model_fields[key].default]


class Named(Section):
    """A section whose ``name`` says what the rest is about; the name alone is its short form."""

    _short: ClassVar[Any] = {"type": "string", "description": "Short form: the name alone."}
    name: Any

    @classmethod
    def long_form(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data


def is_factory(name: str) -> bool:
    """Whether the text has the form of a Python callable, ``package.module:factory``."""
    return _FACTORY.fullmatch(name) is not None


def refuse_code(named: Iterable[tuple[str, str]], *, origin: str) -> None:
    """Refuse a file that names code, key and package.module:factory of each, before any of it is imported."""
    if listed := ", ".join(f"{key}: {name}" for key, name in named):
        raise ValueError(
            f"{origin} names Python code that would be imported and run ({listed}); nothing was imported. Look at what "
            "it is, and if you trust the file and the code say --trust (in Python trust=True)"
        )


def _one_of(known: Mapping[str, object]) -> AfterValidator:
    """Refuses a name that is neither known nor that of the user's own factory."""

    def check(name: str) -> str:
        if name not in known and not is_factory(name):
            raise ValueError(unknown_choice(name, list(known), also=", nor package.module:factory"))
        return name

    return AfterValidator(check)


class ModelConfig(Named):
    """The network."""

    name: Annotated[str, _one_of(NETWORKS)] = Field(
        description="A network of softprune.nn.catalog, or package.module:factory of your own."
    )
    args: dict[str, Any] = Field(default={}, description="Keyword arguments of the factory, such as num_classes.")
    weights: str | None = Field(
        default=None,
        description="Trained weights to begin with: a safetensors file, a state dict that torch.save wrote, or a run "
        "folder; null begins with random ones.",
    )


class DataConfig(Named):
    """The data."""

    name: Annotated[str, _one_of(DATA_SETS)] = Field(
        description=f"One of {', '.join(DATA_SETS)}, or package.module:factory of your own."
    )
    root: str | None = Field(
        default=None,
        description="Folder that holds the files; null looks in ./data and where the system installs them.",
    )
    augment: bool = Field(
        default=True,
        description="Change training images at random in the way that suits the data set, such as crops and flips; "
        "false also turns rotate and shift off.",
    )
    normalise: Literal["own", "imagenet"] = Field(
        default="own",
        description="Mean and deviation that pixels are normalised with: the data set's own, or imagenet's, which "
        f"many trained networks expect ({users('normalise')}).",
    )
    subset: Count | None = Field(
        default=None, description="Train on this many images only, classes balanced; null for all."
    )
    workers: int = Field(
        default=0, ge=0, description=f"Processes that decode an {users('workers')}; 0 decodes in the training process."
    )
    image_size: Count = Field(default=224, description=f"Side of the square images of {users('image_size')}.")
    rotate: Annotated[float, Field(ge=0, le=180)] = Field(
        default=0.0,
        description="Turn the signals of each training window by up to this many degrees about a random axis "
        f"({users('rotate')}).",
    )
    shift: Annotated[int, Field(ge=0)] = Field(
        default=0, description=f"Move each training sequence by up to this many steps in time ({users('shift')})."
    )
    held: Literal["test", "validation"] = Field(
        default="test",
        description="What is tested on: the official test samples, or a part of the training samples with subjects or "
        f"speakers of its own ({users('held')}), to choose settings with.",
    )


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Named):
    """The optimizer, and the weight decay of each kind of parameter."""

    name: Literal["sgd", "adam", "adamw"] = Field(description="sgd (the paper), adam or adamw.")
    lr: Positive = Field(description="Highest learning rate; the schedule lowers it.")
    momentum: Beta = Field(default=0.0, description="Momentum of sgd; the paper has 0.875.")
    nesterov: bool = Field(default=False, description="Nesterov momentum of sgd.")
    betas: Annotated[tuple[Beta, Beta], FROM_LIST] = Field(
        default=(0.9, 0.999), description="Running averages of adam and adamw."
    )
    eps: Positive = Field(default=1e-8, description="Denominator of adam and adamw.")
    weight_decay: NotNegative = Field(default=0.0, description="Decay of the weights.")
    norm_decay: NotNegative = Field(
        default=0.0, description="Decay of normalisation and biases; the paper decays them like the weights."
    )
    threshold_decay: Annotated[float, Field(gt=0)] | Literal["propose"] | None = Field(
        default=None,
        description="Decay of the thresholds s, which drives sparsity; null takes weight_decay (the paper), "
        "propose computes it from propose.push.",
    )
    importance_decay: NotNegative | None = Field(
        default=None, description="Decay of the importances of units other than weights; null takes weight_decay."
    )


class ScheduleConfig(Named):
    """The learning rate over the run."""

    name: Literal["cosine", "constant", "step"] = Field(default="cosine", description="cosine, constant or step.")
    warmup_epochs: NotNegative = Field(default=0.0, description="Epochs of linear warm-up; the paper has 5.")
    per: Literal["epoch", "step"] = Field(
        default="step", description="How often the rate changes: every step, or every epoch (the paper)."
    )
    milestones: Annotated[tuple[Positive, ...], FROM_LIST] = Field(
        default=(), description="Epochs after which a step schedule lowers the rate."
    )
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.1, description="Factor of a step schedule at each milestone."
    )
    final: Fraction = Field(default=0.0, description="Fraction of lr at which a cosine schedule ends.")


def schedule_contradictions(schedule: ScheduleConfig, epochs: int) -> Iterator[Problem]:
    """What does not fit the length of the run, or each other."""
    warmup, marks, scales = schedule.warmup_epochs, schedule.milestones, "or use length, which scales both"
    if warmup > epochs:
        too_long = f"{warmup:g} is longer than the run of {epochs} epochs; shorten it too, {scales}"
        yield Problem("schedule.warmup_epochs", too_long)
    if schedule.per == "epoch" and not warmup.is_integer():
        fraction = f"{warmup:g} is not a whole number, but the rate changes per epoch"
        yield Problem("schedule.warmup_epochs", f"{fraction}; round it or set schedule.per=step")
    if schedule.name == "step" and not marks:
        yield Problem("schedule.milestones", "a step schedule needs some, such as [30, 60, 90]")
    if schedule.name == "step" and (any(mark >= epochs for mark in marks) or list(marks) != sorted(marks)):
        wrong = f"{shown(marks)} must rise and lie below the {epochs} epochs of the run"
        yield Problem("schedule.milestones", f"{wrong}; shorten them too, {scales}")


class ProposeConfig(Section):
    """What is aimed at where method.s_init or optimizer.threshold_decay is "propose"."""

    push: Annotated[float, Field(gt=0, le=100)] = Field(
        default=8.2, description="How hard thresholds are driven; more is sparser (2 to 16)."
    )
    onset: PositiveFraction = Field(
        default=0.28, description="Fraction of the run after which the first weights vanish."
    )


class DistributedConfig(Section):
    """Several processes, started by torchrun."""

    strategy: Literal["ddp", "fsdp"] = Field(
        default="ddp", description="ddp copies the model to every process, fsdp shards it."
    )
    sync_batchnorm: bool = Field(default=False, description="Batch statistics over all processes.")


class CheckpointConfig(Section):
    """When the state is written."""

    every_steps: Count | None = Field(default=None, description="Optimizer steps between checkpoints; null for none.")
    every_epochs: Count | None = Field(default=1, description="Epochs between checkpoints; null for none.")
    keep: Count = Field(default=2, description="Checkpoints to keep; older ones are deleted.")


class Service(Section):
    """Somewhere to log to; ``true`` is short for all its defaults."""

    _short: ClassVar[Any] = {"type": "boolean", "description": "Short form: with every default, or not at all."}

    @classmethod
    def long_form(cls, data: Any) -> Any:
        return {} if data is True else data


class WandbConfig(Service):
    """A run in Weights & Biases."""

    project: str = Field(
        default="softprune", description="Project in W&B. Any key of log.wandb, or log.wandb=true, logs there."
    )
    entity: str | None = Field(default=None, description="User or team in W&B; null for your own default.")
    mode: Literal["online", "offline"] | None = Field(
        default=None,
        description="offline writes files for `wandb sync` to send; null is up to WANDB_MODE, else online.",
    )


class MlflowConfig(Service):
    """A run in MLflow."""

    experiment: str = Field(
        default="softprune", description="Experiment in MLflow. Any key of log.mlflow, or log.mlflow=true, logs there."
    )
    tracking_uri: str | None = Field(
        default=None, description="Server or data base, such as sqlite:///mlflow.db; null is up to MLFLOW_TRACKING_URI."
    )


class LogConfig(Section):
    """What is written while training."""

    every_steps: Count = Field(default=50, description="Optimizer steps between lines of metrics.jsonl.")
    tensorboard: bool = Field(default=False, description="Also write TensorBoard files, into the run folder.")
    wandb: WandbConfig | None = Field(default=None, description="Also log to Weights & Biases.")
    mlflow: MlflowConfig | None = Field(default=None, description="Also log to MLflow.")
    own: Annotated[tuple[str, ...], FROM_LIST] = Field(
        default=(), description="Loggers of your own, package.module:factory each; a factory returns an Observer."
    )

    @field_validator("wandb", "mlflow", mode="before")
    @classmethod
    def _switched_off(cls, given: Any) -> Any:
        return None if given is False else given

    @field_validator("own")
    @classmethod
    def _factories(cls, own: tuple[str, ...]) -> tuple[str, ...]:
        for name in own:
            if not is_factory(name):
                raise ValueError(f"{name!r} is not of the form package.module:factory")
        return own


class UnitsConfig(Section):
    """What counts as one unit: weight, filter or rank, each alone for short, or {block: [rows, columns]}."""

    _short: ClassVar[Any] = {"enum": ["weight", "filter", "rank"], "description": "Short form: the kind alone."}
    kind: Literal["weight", "filter", "rank", "block"] = Field(
        default="weight",
        description="weight, filter (output channels) or rank (directions of low-rank layers that learn their rank); "
        "units: rank is short for it. Blocks are written units: {block: [4, 8]}.",
    )
    block: Annotated[tuple[Count, Count], FROM_LIST] | None = Field(
        default=None, description="Rows and columns of a block."
    )

    @classmethod
    def long_form(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"kind": data}
        return {"kind": "block", **data} if isinstance(data, dict) and data.get("block") is not None else data

    @model_validator(mode="after")
    def _sized(self) -> UnitsConfig:
        if KINDS[self.kind].sized != (self.block is not None):
            raise ValueError("blocks have rows and columns, nothing else has; write {block: [4, 8]}, or filter")
        return self

    def build(self) -> Units:
        return Units(self.kind) if self.block is None else Units.block(*self.block)


class ExpectedConfig(Section):
    """The result to compare with; says nothing about how to train."""

    accuracy: Fraction | None = Field(default=None, description="Top-1 test accuracy, as a fraction.")
    sparsity: Fraction | None = Field(default=None, description="Fraction of zeros among the managed weights.")
    params: Count | None = Field(default=None, description="Weights that are not zero.")
    flops: Count | None = Field(default=None, description="Multiply-adds that are left.")
    source: str = Field(default="", description="Who measured it, such as a table of the paper.")
    note: str = Field(default="", description="What to mind.")
    cost: str = Field(default="", description="Roughly what the run takes.")
