"""The goal of a configuration, and its settings for some of the tensors."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from torch import nn

from softprune.budget.allocate import erk, scaled, uniform
from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.latency import LatencyTable
from softprune.core.rule import Match, Rule
from softprune.goals.base import Goal
from softprune.goals.goal import GOALS
from softprune.goals.schedule import Schedule, constant, cubic, linear
from softprune.methods.registry import from_config
from softprune.ops import G
from softprune.train.config.sections import Count, Fraction, Positive, PositiveFraction, Section


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
        """The content of a file in place of its name, checked."""
        if isinstance(given, str):
            try:
                return LatencyTable.load(given).to_dict()
            except OSError as error:
                raise ValueError(f"cannot read {given}: {error.strerror}") from error
        return LatencyTable.from_dict(given).to_dict() if isinstance(given, dict) else given


# The keys of which a goal has one.
TOTALS = tuple(GOALS)
_ALL = f"{', '.join(TOTALS[:-1])} and {TOTALS[-1]}"


class GoalConfig(Section):
    """What the run shall end with, exactly: a total, or what each tensor keeps. A number alone is a sparsity."""

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

    @model_validator(mode="after")
    def _one_total(self) -> GoalConfig:
        totals = [key for key in TOTALS if getattr(self, key) is not None]
        if self.allocates and len(totals) != 1:
            got = " and ".join(totals) or "none"
            raise ValueError(f"needs one of {_ALL} (or a budget file), got {got}")
        if not self.allocates and len(totals) > 1:
            raise ValueError(f"takes one of {_ALL} at most, got {' and '.join(totals)}")
        if self.rank is not None:
            GOALS["rank"].configured(self.rank, self.scope)
            if self.budget is not None:
                raise ValueError("rank says what each layer keeps, as a budget does; leave one of them out")
        if self.filters is not None and self.budget is not None:
            raise ValueError("filters are counted over all layers; leave out the budget")
        counts_weights = self.sparsity is not None or self.params is not None
        if self.scope != "managed" and (not counts_weights or self.budget is not None):
            raise ValueError(f"scope {self.scope} is for sparsity and params without a budget; leave it out")
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
        return next((GOALS[key].configured(given[key], self.scope) for key in TOTALS if given[key] is not None), None)

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
            return {"budget": Budget.load(self.budget), "schedule": self.schedule()}
        if not self.allocates:
            return {"budget": scaled(profile(), goal, like=Budget.load(self.budget)), "schedule": self.schedule()}
        allocate = uniform if self.budget == "uniform" else erk
        return {"budget": allocate(profile(), goal), "schedule": self.schedule()}


_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class RuleConfig(Section):
    """Settings for the tensors that match; what is null stays as the method has it. Later rules win."""

    match: str = Field(
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

    @field_validator("match")
    @classmethod
    def _readable(cls, text: str) -> str:
        check_match(text)
        return text

    @field_validator("g", mode="before")
    @classmethod
    def _known_g(cls, value: Any) -> Any:
        g = {"g": value} if isinstance(value, str) else value
        if isinstance(g, dict):
            _read_g(g)
        return g

    def build(self) -> Rule:
        """The rule that softprune.sparsify takes."""
        settings = self.model_dump(exclude={"match", "g"})
        return Rule(parse_match(self.match), g=None if self.g is None else _read_g(self.g), **settings)


def check_match(text: str) -> None:
    """Refuse a text that can mean no match. A class of a package is looked for only once the network is there.

    Raises:
        ValueError: for a broken regular expression, or what is not a type of module.
    """
    if not _DOTTED.fullmatch(text.removeprefix("type:")) or not text.startswith("type:"):
        parse_match(text)


def parse_match(text: str) -> Match:
    """What a text in a configuration means as a match.

    Nothing is imported for it: a class that the network has layers of was imported when the network was built.

    Raises:
        ValueError: for a broken regular expression or an unknown type of module.

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
    """Whether a module convolves every channel by itself."""
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
