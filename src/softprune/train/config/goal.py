"""The total that a run shall end with, and how it is approached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from softprune.budget.allocators import erk, scaled, uniform
from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.goals import Filters, Flops, Goal, Params, Rank, Sparsity
from softprune.budget.schedules import Schedule, constant, cubic, linear
from softprune.train.config.latency import LatencyConfig
from softprune.train.config.section import Count, Fraction, PositiveFraction, Section

# The keys of which a goal has one.
TOTALS = ("sparsity", "params", "filters", "flops", "latency", "rank")
_ALL = f"{', '.join(TOTALS[:-1])} and {TOTALS[-1]}"


class GoalConfig(Section):
    """What the run shall end with, exactly: a total, or what each tensor keeps. A number alone is a sparsity."""

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

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        long = handler.resolve_ref_schema(handler(core))
        short = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "description": "A sparsity."}
        return {"anyOf": [short, long]}

    @model_validator(mode="after")
    def _one_total(self) -> GoalConfig:
        totals = [key for key in TOTALS if getattr(self, key) is not None]
        if self.allocates and len(totals) != 1:
            got = " and ".join(totals) or "none"
            raise ValueError(f"needs one of {_ALL} (or a budget file), got {got}")
        if not self.allocates and len(totals) > 1:
            raise ValueError(f"takes one of {_ALL} at most, got {' and '.join(totals)}")
        if self.rank is not None:
            self._named()
            if self.budget is not None:
                raise ValueError("rank says what each layer keeps, as a budget does; leave one of them out")
        if self.filters is not None and self.budget is not None:
            raise ValueError("filters are counted over all layers; leave out the budget")
        counts_weights = self.sparsity is not None or self.params is not None
        if self.scope != "managed" and (not counts_weights or self.budget is not None):
            raise ValueError(f"scope {self.scope} is for sparsity and params without a budget; leave it out")
        if self.ramp == "constant":
            unused = [key for key in ("begin", "end") if getattr(self, key) is not None]
            if unused:
                raise ValueError(
                    f"{unused[0]} has no effect with a constant ramp, which has the whole goal hold at once"
                )
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

    def total(self) -> Goal | Rank | None:
        """The goal as `sparsify` takes it; None where a budget says it all."""
        if self.rank is not None:
            return self._named()
        if self.sparsity is not None:
            return Sparsity(self.sparsity, self.scope)
        if self.params is not None:
            return Params(self.params, self.scope)
        if self.filters is not None:
            return Filters(self.filters)
        if self.latency is not None:
            return self.latency.goal()
        return None if self.flops is None else Flops(self.flops)

    def _named(self) -> Rank:
        return Rank(**self.rank) if isinstance(self.rank, dict) else Rank(self.rank)

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
        assert not isinstance(goal, Rank)
        if goal is None:
            return {"budget": Budget.load(self.budget), "schedule": self.schedule()}
        if not self.allocates:
            return {"budget": scaled(profile(), goal, like=Budget.load(self.budget)), "schedule": self.schedule()}
        allocate = uniform if self.budget == "uniform" else erk
        return {"budget": allocate(profile(), goal), "schedule": self.schedule()}
