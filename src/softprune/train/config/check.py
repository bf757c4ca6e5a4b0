"""Settings that are right by themselves and contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from softprune.methods.registry import from_config
from softprune.train.config.goal import GoalConfig
from softprune.train.config.method import PROPOSE, MethodConfig, method_defaults
from softprune.train.config.sections import (
    DataConfig,
    OptimizerConfig,
    Problem,
    ProposeConfig,
    ScheduleConfig,
    Section,
    shown,
)
from softprune.train.data.datasets import without_effect

if TYPE_CHECKING:
    from softprune.train.config.run import RunConfig

# Section, key -> the names that use the key. A value that nothing uses is a mistake, not a detail.
_USED_BY: dict[tuple[str, str], tuple[str, ...]] = {
    ("optimizer", "momentum"): ("sgd",),
    ("optimizer", "nesterov"): ("sgd",),
    ("optimizer", "betas"): ("adam", "adamw"),
    ("optimizer", "eps"): ("adam", "adamw"),
    ("schedule", "milestones"): ("step",),
    ("schedule", "gamma"): ("step",),
    ("schedule", "final"): ("cosine",),
}


# Fields of a method with learnt thresholds that mean something under a goal alone.
_UNDER_A_GOAL = ("pace", "gradient", "start", "rescale")


def contradictions(config: RunConfig) -> list[Problem]:
    """Everything in the configuration that cannot be meant."""
    return [
        *_unused(config),
        *_optimizer(config.optimizer),
        *_schedule(config.schedule, config.epochs),
        *_batch(config),
        *_data(config.data),
        *_units(config),
        *(_thresholds(config) if config.goal is None else _goal(config)),
    ]


def _unused(config: RunConfig) -> Iterator[Problem]:
    for (where, key), names in _USED_BY.items():
        section: Section = getattr(config, where)
        default, name = type(section).model_fields[key].default, getattr(section, "name", "")
        if name not in names and getattr(section, key) != default:
            yield Problem(
                f"{where}.{key}",
                f"{shown(getattr(section, key))} has no effect with {name}, only with {' and '.join(names)}; "
                f"leave it out, or set it back to {shown(default)}",
            )


def _optimizer(optimizer: OptimizerConfig) -> Iterator[Problem]:
    if optimizer.nesterov and optimizer.name == "sgd" and optimizer.momentum == 0:
        yield Problem("optimizer.nesterov", "true needs momentum; set optimizer.momentum=0.9")


def _schedule(schedule: ScheduleConfig, epochs: int) -> Iterator[Problem]:
    if schedule.warmup_epochs > epochs:
        yield Problem(
            "schedule.warmup_epochs",
            f"{schedule.warmup_epochs:g} is longer than the run of {epochs} epochs; shorten it too, "
            "or use length, which scales both",
        )
    if schedule.per == "epoch" and not schedule.warmup_epochs.is_integer():
        yield Problem(
            "schedule.warmup_epochs",
            f"{schedule.warmup_epochs:g} is no whole number, but the rate changes per epoch; "
            "round it or set schedule.per=step",
        )
    if schedule.name == "step" and not schedule.milestones:
        yield Problem("schedule.milestones", "a step schedule needs some, such as [30, 60, 90]")
    marks = schedule.milestones
    if schedule.name == "step" and (any(mark >= epochs for mark in marks) or list(marks) != sorted(marks)):
        yield Problem(
            "schedule.milestones",
            f"{shown(marks)} must rise and lie below the {epochs} epochs of the run; shorten them too, "
            "or use length, which scales both",
        )


def _batch(config: RunConfig) -> Iterator[Problem]:
    if config.batch % config.accumulate:
        yield Problem("accumulate", f"{config.accumulate} does not divide the batch of {config.batch} evenly")


def _data(data: DataConfig) -> Iterator[Problem]:
    for key, problem in without_effect(data.name, data.model_dump()):
        value, default = getattr(data, key), DataConfig.model_fields[key].default
        yield Problem(f"data.{key}", f"{shown(value)} {problem}; leave it out, or set it back to {shown(default)}")


def _units(config: RunConfig) -> Iterator[Problem]:
    kind = config.units.kind
    if config.optimizer.importance_decay is not None and kind == "weight":
        yield Problem("optimizer.importance_decay", "weights have no importances; leave it out, or set units")
    if config.goal is None:
        return
    if config.goal.rank is not None and kind != "rank":
        yield Problem("goal.rank", "counts directions of low-rank layers; set units=rank too")
    if config.goal.budget is not None and kind != "weight":
        yield Problem("goal.budget", f"counts weights and has no effect on units of kind {kind}; leave it out")


def _goal(config: RunConfig) -> Iterator[Problem]:
    """Under a goal nothing of the paper's way of steering sparsity is left."""
    if config.method is None or config.goal is None:
        return
    yield from _total(config.method, config.goal)
    defaults = method_defaults(config.method.name)
    for key in ("s_init", "g"):
        if key in defaults and config.method.settings[key] != defaults[key]:
            yield Problem(f"method.{key}", "has no effect under a goal, which sets the thresholds itself; leave it out")
        for number, rule in enumerate(config.rules):
            if getattr(rule, key) is not None:
                yield Problem(f"rules.{number}.{key}", "has no effect under a goal; leave it out")
    if config.optimizer.threshold_decay is not None:
        yield Problem("optimizer.threshold_decay", "has no effect under a goal; leave it out")
    for key in ProposeConfig.model_fields:
        if getattr(config.propose, key) != ProposeConfig.model_fields[key].default:
            yield Problem(f"propose.{key}", "has no effect under a goal; leave it out")


def _total(method: MethodConfig, goal: GoalConfig) -> Iterator[Problem]:
    """A method takes a total, or what each tensor keeps, or either; and some approach it in their own way."""
    made, name = method.sketch, method.name
    if made.accepts == ("none",):
        yield Problem("goal", f"{name} takes neither a total nor a budget; set goal=null")
    elif goal.budget is None and "goal" not in made.accepts:
        yield Problem(
            "goal.budget",
            f"{name} keeps what each tensor is given and cannot share a total out; set goal.budget=erk or uniform",
        )
    elif goal.budget is not None and "budget" not in made.accepts:
        yield Problem("goal.budget", f"{name} finds out by itself what each tensor keeps; leave it out")
    why = "is sparse from the first step on" if made.moves_masks else "prunes between its rounds"
    if made.moves_masks or made.goal_settings.rounds > 1:
        for key in goal.shaped:
            yield Problem(f"goal.{key}", f"has no effect with {name}, which {why}; leave it out")


def _thresholds(config: RunConfig) -> Iterator[Problem]:
    if config.method is not None and "none" not in from_config({"method": config.method.name}).accepts:
        yield Problem("goal", f"{config.method.name} prunes to a total and needs one; set it, as in goal=0.95")
    # Without a method what is said about thresholds is kept, so that method=null alone turns a recipe dense.
    if config.method is None or "s_init" not in config.method.settings:
        return
    defaults = method_defaults(config.method.name)
    for key in _UNDER_A_GOAL:
        if key in defaults and config.method.settings[key] != defaults[key]:
            yield Problem(f"method.{key}", "has no effect without a goal; leave it out, or set one, as in goal=0.95")
    optimizer = config.optimizer
    if optimizer.threshold_decay is None and optimizer.weight_decay == 0:
        yield Problem(
            "optimizer.threshold_decay",
            "null takes weight_decay, which is 0: s would never move and nothing become sparse; "
            f"set optimizer.threshold_decay={PROPOSE}, or a number",
        )
    proposes = {"onset": config.method.proposes, "push": optimizer.threshold_decay == PROPOSE}
    asked = {"onset": "method.s_init", "push": "optimizer.threshold_decay"}
    for key, used in proposes.items():
        default = ProposeConfig.model_fields[key].default
        if not used and getattr(config.propose, key) != default:
            yield Problem(
                f"propose.{key}",
                f"{getattr(config.propose, key):g} has no effect, because {asked[key]} is not {PROPOSE}; "
                f"set {asked[key]}={PROPOSE}",
            )
