"""Settings that are right by themselves and contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from softprune.budget.units import unit_words
from softprune.goals.goal import GOALS
from softprune.train.config.goal import PROPOSE, GoalConfig, MethodConfig, method_defaults
from softprune.train.config.sections import Problem, ProposeConfig, ScheduleConfig, Section, shown
from softprune.train.data.datasets import without_effect

if TYPE_CHECKING:
    from softprune.train.config.run import RunConfig

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
# Fields of a method with learnt thresholds that mean something under a goal alone.
_UNDER_A_GOAL = ("pace", "gradient", "start", "rescale")
_OR_LENGTH = "or use length, which scales both"

_Found = Iterator[tuple[str, str]]  # the path of a key, and what is wrong there


def contradictions(config: RunConfig) -> list[Problem]:
    """All settings that contradict others or have no effect."""
    checks = (_unused, _numbers, _units, _without_goal if config.goal is None else _under_goal)
    return [Problem(path, message) for check in checks for path, message in check(config)]


def _changed(section: Section, keys: Any) -> list[str]:
    """The keys that are not at their default."""
    return [key for key in keys if getattr(section, key) != type(section).model_fields[key].default]


def _unused(config: RunConfig) -> _Found:
    for path, names in _USED_BY.items():
        where, _, key = path.partition(".")
        section: Any = getattr(config, where)
        if section.name not in names and _changed(section, [key]):
            yield path, _no_effect(section, key, f"has no effect with {section.name}, only with {' and '.join(names)}")
    for key, problem in without_effect(config.data.name, config.data.model_dump()):
        yield f"data.{key}", _no_effect(config.data, key, problem)


def _no_effect(section: Section, key: str, problem: str) -> str:
    default = shown(type(section).model_fields[key].default)
    return f"{shown(getattr(section, key))} {problem}; leave it out, or set it back to {default}"


def _numbers(config: RunConfig) -> _Found:
    optimizer = config.optimizer
    if optimizer.nesterov and optimizer.name == "sgd" and optimizer.momentum == 0:
        yield "optimizer.nesterov", "true needs momentum; set optimizer.momentum=0.9"
    yield from _schedule(config.schedule, config.epochs)
    if config.batch % config.accumulate:
        yield "accumulate", f"{config.accumulate} does not divide the batch of {config.batch} evenly"


def _schedule(schedule: ScheduleConfig, epochs: int) -> _Found:
    warmup, marks = schedule.warmup_epochs, schedule.milestones
    if warmup > epochs:
        too_long = f"{warmup:g} is longer than the run of {epochs} epochs"
        yield "schedule.warmup_epochs", f"{too_long}; shorten it too, {_OR_LENGTH}"
    if schedule.per == "epoch" and not warmup.is_integer():
        fraction = f"{warmup:g} is not a whole number, but the rate changes per epoch"
        yield "schedule.warmup_epochs", f"{fraction}; round it or set schedule.per=step"
    if schedule.name == "step" and not marks:
        yield "schedule.milestones", "a step schedule needs some, such as [30, 60, 90]"
    if schedule.name == "step" and (any(mark >= epochs for mark in marks) or list(marks) != sorted(marks)):
        wrong = f"{shown(marks)} must rise and lie below the {epochs} epochs of the run"
        yield "schedule.milestones", f"{wrong}; shorten them too, {_OR_LENGTH}"


def _units(config: RunConfig) -> _Found:
    words = unit_words(config.units.kind)
    if config.optimizer.importance_decay is not None and not words.importances:
        yield "optimizer.importance_decay", "weights have no importances; leave it out, or set units"
    if config.goal is None:
        return
    for key, goal in GOALS.items():
        if getattr(config.goal, key) is not None and goal.needs_units not in (None, words.kind):
            yield f"goal.{key}", f"counts {goal.counts}; set units={goal.needs_units} too"
    if config.goal.budget is not None and words.importances:
        yield "goal.budget", f"counts weights and has no effect on units of kind {words.kind}; leave it out"


def _under_goal(config: RunConfig) -> _Found:
    """Under a goal nothing of the paper's way of steering sparsity is left."""
    if config.method is None or config.goal is None:
        return
    yield from _total(config.method, config.goal)
    defaults = method_defaults(config.method.name)
    for key in ("s_init", "g"):
        if key in defaults and config.method.settings[key] != defaults[key]:
            yield f"method.{key}", "has no effect under a goal, which sets the thresholds itself; leave it out"
        for number, rule in enumerate(config.rules):
            if getattr(rule, key) is not None:
                yield f"rules.{number}.{key}", "has no effect under a goal; leave it out"
    if config.optimizer.threshold_decay is not None:
        yield "optimizer.threshold_decay", "has no effect under a goal; leave it out"
    for key in _changed(config.propose, ProposeConfig.model_fields):
        yield f"propose.{key}", "has no effect under a goal; leave it out"


def _total(method: MethodConfig, goal: GoalConfig) -> _Found:
    """A method takes a total, or what each tensor keeps, or either; and some approach it in their own way."""
    made, name = method.sketch, method.name
    if made.accepts == ("none",):
        yield "goal", f"{name} takes neither a total nor a budget; set goal=null"
    elif goal.budget is None and "goal" not in made.accepts:
        needs = f"{name} keeps what each tensor is given and cannot share a total out"
        yield "goal.budget", f"{needs}; set goal.budget=erk or uniform"
    elif goal.budget is not None and "budget" not in made.accepts:
        yield "goal.budget", f"{name} finds out by itself what each tensor keeps; leave it out"
    if made.moves_masks or made.goal_settings.rounds > 1:
        why = "is sparse from the first step on" if made.moves_masks else "prunes between its rounds"
        for key in goal.shaped:
            yield f"goal.{key}", f"has no effect with {name}, which {why}; leave it out"


def _without_goal(config: RunConfig) -> _Found:
    method, optimizer = config.method, config.optimizer
    if method is not None and "none" not in method.sketch.accepts:
        yield "goal", f"{method.name} prunes to a total and needs one; set it, as in goal=0.95"
    # Without a method what is said about thresholds is kept, so that method=null alone turns a recipe dense.
    if method is None or "s_init" not in method.settings:
        return
    defaults = method_defaults(method.name)
    for key in _UNDER_A_GOAL:
        if key in defaults and method.settings[key] != defaults[key]:
            yield f"method.{key}", "has no effect without a goal; leave it out, or set one, as in goal=0.95"
    if optimizer.threshold_decay is None and optimizer.weight_decay == 0:
        still = "null takes weight_decay, which is 0: s would never move and nothing become sparse"
        yield "optimizer.threshold_decay", f"{still}; set optimizer.threshold_decay={PROPOSE}, or a number"
    asked = {
        "onset": ("method.s_init", method.proposes),
        "push": ("optimizer.threshold_decay", optimizer.threshold_decay == PROPOSE),
    }
    for key in _changed(config.propose, asked):
        by, used = asked[key]
        if not used:
            reason = f"{getattr(config.propose, key):g} has no effect, because {by} is not {PROPOSE}"
            yield f"propose.{key}", f"{reason}; set {by}={PROPOSE}"
