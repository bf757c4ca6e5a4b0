"""The method and the goal of a configuration, and its settings for some of the tensors."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator
from torch import nn

from softprune.budget.allocate import erk, scaled, uniform
from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.latency import LatencyTable
from softprune.budget.units import unit_words
from softprune.core.rule import Match, Rule
from softprune.goals.base import Goal, Schedule, constant, cubic, linear
from softprune.goals.goal import GOALS
from softprune.methods.base import Method, from_config, method_names
from softprune.ops import Backward, G
from softprune.train.config.sections import (
    ConfigError,
    Count,
    Fraction,
    Named,
    Positive,
    PositiveFraction,
    Problem,
    ProposeConfig,
    Section,
    changed,
    unknown_choice,
    unknown_key,
)

if TYPE_CHECKING:
    from softprune.train.config.run import RunConfig


class LatencyConfig(Section):
    """The time that a call of the engine shall take."""

    ms: Positive = Field(description="Or the milliseconds that a call of the engine shall take.")
    table: dict[str, Any] = Field(
        description="The times it is predicted from: a file that softprune bench --table wrote. A run keeps what is in "
        "the file, so that it does not depend on it."
    )

    @field_validator("table", mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        if isinstance(given, str):
            try:
                return LatencyTable.load(given).to_dict()
            except OSError as error:
                raise ValueError(f"cannot read {given}: {error.strerror}") from error
        return LatencyTable.from_dict(given).to_dict() if isinstance(given, dict) else given


class GoalConfig(Section):
    """What the run shall end with, exactly: a total, or what each tensor keeps. A number alone is a sparsity."""

    # A goal of GOALS that has a field under its key, with its description, can be configured.
    _short: ClassVar[Any] = {
        "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "description": "A sparsity.",
    }  # fmt: skip
    sparsity: PositiveFraction | None = Field(default=None, description="The fraction of weights that shall be zero.")
    params: Count | None = Field(default=None, description="Or the number of weights that shall be left.")
    filters: Count | None = Field(default=None, description="Or the number of filters that shall be left.")
    flops: Count | None = Field(default=None, description="Or the multiply-adds that a forward pass shall cost.")
    latency: LatencyConfig | None = Field(default=None, description="Or the time of a call.")
    rank: Count | dict[str, Count] | None = Field(
        default=None,
        description="Or, with units: rank, the directions that low-rank layers keep: one number for all, or by name, "
        "such as {w: 9, u: 8}.",
    )
    scope: Literal["managed", "all"] = Field(
        default="managed", description="What sparsity and params count: managed weights, or all parameters."
    )
    budget: str | None = Field(
        default=None,
        description="Which tensor keeps how much, for methods that do not find it themselves: uniform or erk for the "
        "total above; or a budget file, a run folder, or a published budget, which say it all without a total, and "
        "are scaled to it with one.",
    )
    ramp: Literal["cubic", "linear", "constant"] | None = Field(
        default=None,
        description="How the goal is approached; constant asks for all of it at once. null for ramp, begin and end is "
        "what the method proposes, cubic from 0.1 to 0.7 for most; with one of them given it is so for the other two.",
    )
    begin: Fraction | None = Field(default=None, description="Fraction of the run at which the ramp begins.")
    end: Fraction | None = Field(default=None, description="Fraction of the run from which on the whole goal holds.")

    @classmethod
    def long_form(cls, data: Any) -> Any:
        return {"sparsity": float(data)} if isinstance(data, int | float) and not isinstance(data, bool) else data

    @field_validator("rank")
    @classmethod
    def _named(cls, given: Any) -> Any:
        if given is not None:
            GOALS["rank"].configured(given, "managed")
        return given

    @model_validator(mode="after")
    def _one_total(self) -> GoalConfig:
        totals, known = [kind for key, kind in GOALS.items() if getattr(self, key, None) is not None], list(GOALS)
        every, got = f"{', '.join(known[:-1])} and {known[-1]}", " and ".join(kind.key for kind in totals)
        if self.allocates and len(totals) != 1:
            raise ValueError(f"needs one of {every} (or a budget file), got {got or 'none'}")
        if not self.allocates and len(totals) > 1:
            raise ValueError(f"takes one of {every} at most, got {got}")
        if self.scope != "managed" and (self.budget is not None or not all(kind.scoped for kind in totals)):
            scoped = " and ".join(kind.key for kind in GOALS.values() if kind.scoped)
            raise ValueError(f"scope {self.scope} is for {scoped} without a budget; leave it out")
        goal = self.total() if self.budget is not None else None
        if goal is not None:
            try:
                goal.check_allocatable()
            except ValueError as error:
                raise ValueError(f"{got} counts {goal.counts}, not a share of weights; leave out the budget") from error
        unused = [key for key in ("begin", "end") if getattr(self, key) is not None]
        if self.ramp == "constant" and unused:
            raise ValueError(f"{unused[0]} has no effect with a constant ramp, which has the whole goal hold at once")
        begin, end = self._range()
        if not begin < end:
            raise ValueError(f"the ramp must begin before it ends, got begin {begin:g} and end {end:g}")
        return self

    def _range(self) -> tuple[float, float]:
        return 0.1 if self.begin is None else self.begin, 0.7 if self.end is None else self.end

    @property
    def allocates(self) -> bool:
        """Whether a total is needed, because there is no whole budget."""
        return self.budget in (None, "uniform", "erk")

    def total(self) -> Goal | None:
        """The goal as `sparsify` takes it; None where a budget says it all."""
        given = self.model_dump()
        asked = (kind.configured(given[key], self.scope) for key, kind in GOALS.items() if given.get(key) is not None)
        return next(asked, None)

    @property
    def shaped(self) -> list[str]:
        """The keys that say how the goal is approached; none where that is left to the method."""
        return [key for key in ("ramp", "begin", "end") if getattr(self, key) is not None]

    def schedule(self) -> Schedule | None:
        """As `sparsify` takes it; None is what the method proposes."""
        if not self.shaped:
            return None
        if self.ramp == "constant":
            return constant()
        return (linear if self.ramp == "linear" else cubic)(*self._range())

    def arguments(self, profile: Callable[[], Profile]) -> dict[str, Any]:
        """The arguments of `sparsify` that this section stands for; the profile is of the managed tensors."""
        goal = self.total()
        if self.budget is None:
            return {"goal": goal, "schedule": self.schedule()}
        if goal is None:
            budget = Budget.load(self.budget)
        elif self.allocates:
            budget = (uniform if self.budget == "uniform" else erk)(profile(), goal)
        else:
            budget = scaled(profile(), goal, like=Budget.load(self.budget))
        return {"budget": budget, "schedule": self.schedule()}


_TYPE_OF_A_PACKAGE = re.compile(r"type:[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def check_match(text: str) -> str:
    """The text, if it can mean a match. A class of a package is looked for only once the network is there."""
    if not _TYPE_OF_A_PACKAGE.fullmatch(text):
        parse_match(text)
    return text


class RuleConfig(Section):
    """Settings for the tensors that match; what is null stays as the method has it. Later rules win."""

    match: Annotated[str, AfterValidator(check_match)] = Field(
        description="Which tensors: a glob on the name (layer1.*), a /regular expression/, type:Conv2d, or depthwise."
    )
    skip: bool | None = Field(
        default=None, description="true leaves them dense, false takes in what is dense by default."
    )
    s_init: float | None = Field(default=None, description="Where their s starts.")
    g: dict[str, Any] | None = Field(default=None, description="Their threshold function, such as {g: exp, k: 1}.")
    granularity: Literal["tensor", "filter", "weight", "global"] | None = Field(
        default=None, description="One s per tensor, filter or weight, or one shared by all."
    )
    min_keep: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Weights that each tensor keeps.")

    @field_validator("g", mode="before")
    @classmethod
    def _known_g(cls, value: Any) -> Any:
        g = {"g": value} if isinstance(value, str) else value
        if isinstance(g, dict):
            _read_g(g)
        return g

    def build(self) -> Rule:
        settings = self.model_dump(exclude={"match", "g"})
        return Rule(parse_match(self.match), g=None if self.g is None else _read_g(self.g), **settings)


def parse_match(text: str) -> Match:
    """What a text in a configuration means as a match.

    Nothing is imported for it: a class that the network has layers of was imported when the network was built.

    Example:
        >>> parse_match("/conv[12]/").pattern, parse_match("type:Conv2d").__name__, parse_match("fc.*")
        ('conv[12]', 'Conv2d', 'fc.*')
    """
    if len(text) > 1 and text.startswith("/") and text.endswith("/"):
        try:
            return re.compile(text[1:-1])
        except re.error as error:
            raise ValueError(f"{text} is not a regular expression: {error}") from error
    if text.startswith("type:"):
        return _module_type(text.removeprefix("type:"))
    if text == "depthwise":
        return depthwise
    if not text.strip():
        raise ValueError("an empty match means nothing; write a glob such as layer1.*")
    return text


def depthwise(name: str, module: nn.Module) -> bool:
    groups = getattr(module, "groups", 1)
    return groups > 1 and groups == getattr(module, "in_channels", None)


def _module_type(path: str) -> type[nn.Module]:
    home, _, name = path.rpartition(".")
    module = sys.modules.get(home or "torch.nn")
    if module is None:
        raise ValueError(
            f"type:{path}: the network has imported no module {home!r}; write the one that defines the class"
        )
    found = vars(module).get(name)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"type:{path} is not a type of module; write type:Conv2d, or type:package.module.Class")
    return found


def _read_g(g: dict[str, Any]) -> G:
    return from_config({"method": "str", "g": g}).g  # type: ignore[attr-defined]


# The method, by its name and its own fields; what a field means and allows is said by the method alone.

PROPOSE = "propose"
_BACKWARD = {"masked": {"leak": 0.0}, "straight_through": {"leak": 1.0}, "annealed": {"leak": 1.0, "until": 1.0}}


class MethodConfig(Named):
    """The method that makes the weights sparse. Every field of the method is a key."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="A registered method; `str` is the paper's.")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Check the fields by making the method, and write out those that were left at their default."""
        data = cls.long_form(data)
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            return data  # refused by the fields themselves
        name = data["name"]
        if name not in method_names():
            raise ConfigError([Problem("name", unknown_choice(name, method_names()))])
        given = {key: _expand(key, value) for key, value in data.items() if key != "name"}
        return {"name": name, **_settings(name, given)}

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def off_default(self, *keys: str) -> list[str]:
        """Which of these fields the method has, with a value other than the default."""
        defaults = method_defaults(self.name)
        return [key for key in keys if key in defaults and self.settings[key] != defaults[key]]

    @property
    def proposes(self) -> bool:
        return self.settings.get("s_init") == PROPOSE

    @property
    def sketch(self) -> Method:
        """The method, with any s_init where that is still to be computed."""
        return self.build(-1.0 if self.proposes else None)

    def build(self, s_init: float | None = None) -> Method:
        """The method, with ``s_init`` in place of its own if one is given."""
        settings = self.settings if s_init is None else {**self.settings, "s_init": s_init}
        if settings.get("s_init") == PROPOSE:
            raise ValueError('method.s_init is "propose": compute it with softprune.propose and pass it to build()')
        return from_config({"method": self.name, **settings})


def method_defaults(name: str) -> dict[str, Any]:
    """Every field of a method with its default, as plain data.

    Example:
        >>> method_defaults("str")["g"]
        {'g': 'sigmoid', 'k': 1.0}
    """
    return _plain_fields(from_config({"method": name}))


def method_descriptions(name: str) -> dict[str, str]:
    """Every field of a method with what the docstring of its class says about it."""
    doc = type(from_config({"method": name})).__doc__ or ""
    args = re.search(r"^ *Args:\n(.*?)(?:\n\s*\n|\Z)", doc, re.M | re.S)
    found = re.findall(r"^ {8}(\w+): (.*?)(?=^ {8}\w+: |\Z)", args[1] if args else "", re.M | re.S)
    said = {key: " ".join(text.split()) for key, text in found}
    return {key: said.get(key, f"See the method {name}.") for key in method_defaults(name)}


def _settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of the method, those given and those left at their default; every wrong one is reported."""
    known = method_defaults(name)
    proposed = {"s_init": PROPOSE} if "s_init" in known and given.get("s_init") == PROPOSE else {}
    fixed = {key: value for key, value in given.items() if key not in proposed}
    keys = ["name", *known]
    problems = [Problem(key, unknown_key(["method", key], keys).message) for key in fixed if key not in known]
    # One by one first, so that each problem is found and named by its key.
    for key in [key for key in fixed if key in known]:
        try:
            from_config({"method": name, key: fixed[key]})
        except (ValueError, TypeError) as error:
            problems.append(Problem(key, f"{error}; or write {PROPOSE}" if key == "s_init" else str(error)))
    if problems:
        raise ConfigError(problems)
    try:
        return {**_plain_fields(from_config({"method": name, **fixed})), **proposed}
    except (ValueError, TypeError) as error:
        raise ConfigError([Problem("", str(error))]) from error


def _expand(key: str, value: Any) -> Any:
    """The long form of a short one: ``g: exp``, ``backward: straight_through``."""
    if not isinstance(value, str):
        return value
    return {"g": value} if key == "g" else _BACKWARD.get(value, value) if key == "backward" else value


def _plain_fields(method: Method) -> dict[str, Any]:
    fields = dataclasses.fields(method)  # type: ignore[arg-type]
    return {f.name: _plain(getattr(method, f.name), like=f.default) for f in fields}


def _plain(value: Any, *, like: Any) -> Any:
    if isinstance(value, G):
        return {"g": type(value).__name__.lower(), "k": value.k if isinstance(value.k, str) else float(value.k)}
    if isinstance(value, Backward):
        return {"leak": float(value.leak)} | ({} if value.until is None else {"until": float(value.until)})
    return float(value) if isinstance(like, float) else value


# Settings that contradict a goal, or each other under one or without one.


def goal_contradictions(config: RunConfig) -> Iterator[Problem]:
    """What contradicts the goal or has no effect under it; without a goal, what needs one."""
    words = unit_words(config.units.kind)
    if config.optimizer.importance_decay is not None and not words.importances:
        yield Problem("optimizer.importance_decay", "weights have no importances; leave it out, or set units")
    if config.goal is None:
        yield from _without_goal(config)
        return
    for key, goal in GOALS.items():
        if getattr(config.goal, key) is not None and goal.needs_units not in (None, words.kind):
            yield Problem(f"goal.{key}", f"counts {goal.counts}; set units={goal.needs_units} too")
    if config.goal.budget is not None and words.importances:
        no_effect = f"counts weights and has no effect on units of kind {words.kind}; leave it out"
        yield Problem("goal.budget", no_effect)
    if config.method is not None:
        yield from _total(config.method, config.goal)
        yield from _steered(config, config.method)


def _total(method: MethodConfig, goal: GoalConfig) -> Iterator[Problem]:
    """A method takes a total, or what each tensor keeps, or either; and some approach it in their own way."""
    made, name = method.sketch, method.name
    if made.accepts == ("none",):
        yield Problem("goal", f"{name} takes neither a total nor a budget; set goal=null")
    elif goal.budget is None and "goal" not in made.accepts:
        needs = f"{name} keeps what each tensor is given and cannot share a total out"
        yield Problem("goal.budget", f"{needs}; set goal.budget=erk or uniform")
    elif goal.budget is not None and "budget" not in made.accepts:
        yield Problem("goal.budget", f"{name} finds out by itself what each tensor keeps; leave it out")
    if made.moves_masks or made.goal_settings.rounds > 1:
        why = "is sparse from the first step on" if made.moves_masks else "prunes between its rounds"
        for key in goal.shaped:
            yield Problem(f"goal.{key}", f"has no effect with {name}, which {why}; leave it out")


def _steered(config: RunConfig, method: MethodConfig) -> Iterator[Problem]:
    """Under a goal nothing of the paper's way of steering sparsity is left."""
    for key in method.off_default("s_init", "g"):
        no_effect = "has no effect under a goal, which sets the thresholds itself; leave it out"
        yield Problem(f"method.{key}", no_effect)
    unused = [f"rules.{n}.{key}" for n, rule in enumerate(config.rules) for key in changed(rule, ("s_init", "g"))]
    unused += [f"optimizer.{key}" for key in changed(config.optimizer, ["threshold_decay"])]
    unused += [f"propose.{key}" for key in changed(config.propose, ProposeConfig.model_fields)]
    yield from (Problem(path, "has no effect under a goal; leave it out") for path in unused)


def _without_goal(config: RunConfig) -> Iterator[Problem]:
    method, optimizer = config.method, config.optimizer
    if method is not None and "none" not in method.sketch.accepts:
        yield Problem("goal", f"{method.name} prunes to a total and needs one; set it, as in goal=0.95")
    # Without a method what is said about thresholds is kept, so that method=null alone turns a recipe dense.
    if method is None or "s_init" not in method.settings:
        return
    for key in method.off_default("pace", "gradient", "start", "rescale"):
        no_effect = "has no effect without a goal; leave it out, or set one, as in goal=0.95"
        yield Problem(f"method.{key}", no_effect)
    if optimizer.threshold_decay is None and optimizer.weight_decay == 0:
        still = "null takes weight_decay, which is 0: s would never move and nothing become sparse"
        yield Problem("optimizer.threshold_decay", f"{still}; set optimizer.threshold_decay={PROPOSE}, or a number")
    asked = {
        "onset": ("method.s_init", method.proposes),
        "push": ("optimizer.threshold_decay", optimizer.threshold_decay == PROPOSE),
    }
    for key in changed(config.propose, asked):
        by, used = asked[key]
        if not used:
            reason = f"{getattr(config.propose, key):g} has no effect, because {by} is not {PROPOSE}"
            yield Problem(f"propose.{key}", f"{reason}; set {by}={PROPOSE}")
