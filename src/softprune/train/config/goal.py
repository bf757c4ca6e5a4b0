"""The total that a run shall end with, and how it is approached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from softprune.budget.allocators import erk, uniform
from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.goals import Flops, Goal, Params, Sparsity
from softprune.budget.schedules import Schedule, constant, cubic, linear
from softprune.train.config.section import Count, Fraction, PositiveFraction, Section


class GoalConfig(Section):
    """What the run shall end with, exactly: a total, or what each tensor keeps. A number alone is a sparsity."""

    sparsity: PositiveFraction | None = Field(default=None, description="The fraction of weights that shall be zero.")
    params: Count | None = Field(default=None, description="Or the number of weights that shall be left.")
    flops: Count | None = Field(default=None, description="Or the multiply-adds that a forward pass shall cost.")
    scope: Literal["managed", "all"] = Field(
        default="managed", description="What sparsity and params count: managed weights, or all parameters."
    )
    budget: str | None = Field(
        default=None,
        description="Which tensor keeps how much, for methods that do not find it themselves: uniform or erk for the "
        "total above; or a budget file, a run folder, or a published budget, which say it all.",
    )
    ramp: Literal["cubic", "linear", "constant"] = Field(
        default="cubic", description="How the goal is approached; constant asks for all of it at once."
    )
    begin: Fraction = Field(default=0.1, description="Fraction of the run at which the ramp begins.")
    end: Fraction = Field(default=0.7, description="Fraction of the run from which on the whole goal holds.")

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
        totals = [key for key in ("sparsity", "params", "flops") if getattr(self, key) is not None]
        if self.allocates and len(totals) != 1:
            got = " and ".join(totals) or "none"
            raise ValueError(f"needs one of sparsity, params and flops (or a budget file), got {got}")
        if not self.allocates and totals:
            raise ValueError(
                f"{totals[0]} has no effect with the budget {self.budget}, which says what every tensor keeps"
            )
        if self.scope != "managed" and (self.flops is not None or self.budget is not None):
            raise ValueError(f"scope {self.scope} is for sparsity and params without a budget; leave it out")
        if self.ramp == "constant":
            unused = [key for key in ("begin", "end") if getattr(self, key) != type(self).model_fields[key].default]
            if unused:
                raise ValueError(
                    f"{unused[0]} has no effect with a constant ramp, which has the whole goal hold at once"
                )
        elif not self.begin < self.end:
            raise ValueError(f"the ramp must begin before it ends, got begin {self.begin:g} and end {self.end:g}")
        return self

    @property
    def allocates(self) -> bool:
        """Whether a total is given, and not a whole budget."""
        return self.budget in (None, "uniform", "erk")

    def total(self) -> Goal | None:
        """The goal as `sparsify` takes it; None where a budget says it all."""
        if self.sparsity is not None:
            return Sparsity(self.sparsity, self.scope)
        if self.params is not None:
            return Params(self.params, self.scope)
        return None if self.flops is None else Flops(self.flops)

    def schedule(self) -> Schedule:
        ramps: Mapping[str, Any] = {"cubic": cubic, "linear": linear}
        return constant() if self.ramp == "constant" else ramps[self.ramp](self.begin, self.end)

    def arguments(self, profile: Profile) -> dict[str, Any]:
        """The arguments of `sparsify` that this section stands for; the profile is of the managed tensors."""
        goal = self.total()
        if self.budget is None:
            return {"goal": goal, "schedule": self.schedule()}
        if goal is None:
            return {"budget": Budget.load(self.budget), "schedule": self.schedule()}
        allocate = uniform if self.budget == "uniform" else erk
        return {"budget": allocate(profile, goal), "schedule": self.schedule()}
