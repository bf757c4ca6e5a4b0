"""What a goal is: the base of all goals. Needs no torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from softprune.budget.costs import Cost, PerWeight, Profile
from softprune.budget.units import KINDS, Units, UnitWords

# What is counted: the managed weights alone, as in the paper, or every parameter of the model.
Scope = Literal["managed", "all"]
# What is counted of a network without its dead units: weights of its layers, all parameters, multiply-adds.
Measure = Literal["weights", "params", "macs"]


@dataclass(frozen=True)
class Measured:
    """What a run was found to end with, for reports; None is not known.

    Args:
        units: all weights, or other units, that are managed.
        left: those that are left.
        stored: parameters of the whole network without what is pruned, where units are not weights.
        macs: multiply-adds that are left.
    """

    units: int | None = None
    left: int | None = None
    stored: int | None = None
    macs: int | None = None


class Goal(ABC):
    """What a training shall end with, exactly.

    A goal of your own is a frozen dataclass derived from this. It gives `amount`, `costs` unless every weight costs 1,
    and `fixed` if anything else belongs to the total; `sparsify`, plans, errors and the allocators need no more.

    A profile is always of the tensors that the goal is for; what other tensors cost is among its fixed costs, and
    `other_params` are the parameters that no goal is for.

    Attributes:
        key: its key in a configuration; empty for goals that configurations do not have.
        mark: the word for it in the label of a run, for goals that change what is learnt.
        counts: what its total is a number of, in the plural.
        whole: whether its totals are rounded to whole numbers on the way.
        shared: whether it is one total for its tensors; False where it says what each of them keeps (`kept_by_each`).
        of_units: whether units other than weights can have it.
        needs_units: the kind of units that it is for alone.
        sparsity: the fraction of weights that shall be zero, where that is the goal itself.
        measure: what it counts of a network without its dead units; None where it counts the units themselves.
    """

    key: ClassVar[str] = ""
    mark: ClassVar[str] = ""
    counts: ClassVar[str] = "weights"
    whole: ClassVar[bool] = False
    shared: ClassVar[bool] = True
    of_units: ClassVar[bool] = False
    needs_units: ClassVar[str | None] = None

    @property
    def sparsity(self) -> float | None:
        return None

    @property
    def measure(self) -> Measure | None:
        return None

    # what it costs, what it allows

    @abstractmethod
    def amount(self, profile: Profile) -> float:
        """The total, in what it counts."""

    def costs(self, profile: Profile) -> dict[str, Cost]:
        """What kept weights of each tensor add to the total."""
        return {t.name: PerWeight(t.params, t.params) for t in profile}

    def fixed(self, profile: Profile) -> float:
        """What belongs to the total besides these tensors."""
        return 0.0

    def reach(self, profile: Profile) -> tuple[float, float]:
        """The totals with no weight and with all weights of these tensors."""
        fixed, costs = self.fixed(profile), self.costs(profile).values()
        return fixed + sum(cost.at(0.0) for cost in costs), fixed + sum(cost.at(1.0) for cost in costs)

    def allowance(self, profile: Profile) -> float:
        """What these tensors may cost together; refused if no set of densities reaches the goal."""
        amount = self.amount(profile)
        self.check_reachable(amount, *self.reach(profile))
        return float(amount - self.fixed(profile))

    def number(self, available: int) -> int:
        """How many of the weights are kept, for masks that divide a number; refused where the goal is no number."""
        raise ValueError(f"{self} counts {self.counts}: divide it first, as in budget=uniform(profile, goal)")

    def kept_by_each(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """What each tensor keeps, of those that the goal is for; only where `shared` is False."""
        raise NotImplementedError(f"{self} is one total for all tensors")

    # what it refuses

    def check_reachable(self, amount: float, low: float, high: float) -> None:
        """Refuse a total outside ``(low, high]``, those that some set of densities can reach."""
        if not low < amount <= high:
            raise ValueError(
                f"{self} cannot be reached: choose more than {math.floor(low):,} and at most {math.floor(high):,} "
                f"{self.counts}"
            )

    def check_units(self, units: Units, *, example: bool) -> None:
        """Refuse units that cannot have such a goal, and say which can; `example` is whether there is one."""
        if self.needs_units not in (None, units.kind):
            raise ValueError(
                f"{self} counts {self.counts}, and the units are of kind {units.kind!r}: "
                f"pass units=Units.{self.needs_units} too"
            )
        if KINDS[units.kind].importances and not self.of_units:
            raise ValueError(f"{self} is for single weights, not for units of kind {units.kind!r}")

    def check_allocatable(self) -> None:  # noqa: B027
        """Refuse where an allocator, which sees the tensors of a profile alone, cannot meet the goal."""

    # its words in errors, configurations and reports

    def words(self, total: float) -> str:
        """A total in the unit of the goal."""
        return f"{total:,.0f}"

    @classmethod
    def configured(cls, given: Any, scope: Scope) -> Goal:
        """The goal from what a configuration has under its key."""
        return cls(given)  # type: ignore[call-arg]

    @classmethod
    def number_in(cls, given: object) -> float | None:
        """The number in what a configuration has under the key; None if there is none, as in a damaged file."""
        try:
            number = math.nan if isinstance(given, bool) else float(given)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return None
        return number if math.isfinite(number) else None

    @classmethod
    def described(cls, given: object, units: UnitWords, scope: object) -> str:
        """What a configuration asks for, in words; empty if it does not."""
        number = cls.number_in(given)
        return "" if number is None else f"{number:,.0f} {cls.counts}"

    @classmethod
    def compared(cls, number: float, found: Measured, units: UnitWords) -> tuple[int, int | None, str] | None:
        """What was wanted, what a run ended with, and the noun for one of them; None where it cannot be told."""
        return None
