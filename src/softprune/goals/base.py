"""What a goal is, and the schedules by which one is approached. Needs no torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from softprune.budget.costs import Cost, PerWeight, Profile
from softprune.budget.units import KINDS, Units, UnitWords

# From the progress of the training, 0 to 1, to the fraction of the goal that holds then, 0 to 1.
Schedule = Callable[[float], float]


@dataclass(frozen=True)
class Ramp:
    """A rise from 0 at `begin` to 1 at `end`, both fractions of the training.

    >>> half_way = Ramp(begin=0.2, end=0.6, shape="linear")(0.4)
    >>> round(half_way, 3)
    0.5
    """

    begin: float = 0.1
    end: float = 0.7
    shape: Literal["cubic", "linear"] = "cubic"

    def __post_init__(self) -> None:
        if not 0.0 <= self.begin < self.end <= 1.0:
            raise ValueError(
                f"a ramp begins before it ends, both within the training from 0 to 1; got begin={self.begin}, "
                f"end={self.end}"
            )
        if self.shape not in ("cubic", "linear"):
            raise ValueError(f"a ramp is cubic or linear, got {self.shape!r}")

    def __call__(self, progress: float) -> float:
        if progress >= self.end:
            return 1.0
        x = max(0.0, (progress - self.begin) / (self.end - self.begin))
        return 1.0 - (1.0 - x) ** 3 if self.shape == "cubic" else x


@dataclass(frozen=True)
class Constant:
    """The whole goal from the first moment on."""

    def __call__(self, progress: float) -> float:
        return 1.0


def cubic(begin: float = 0.1, end: float = 0.7) -> Ramp:
    """Fast at first, ever slower towards the goal: the schedule of gradual magnitude pruning."""
    return Ramp(begin, end, "cubic")


def linear(begin: float = 0.1, end: float = 0.7) -> Ramp:
    """The same number of weights at every step."""
    return Ramp(begin, end, "linear")


def constant() -> Constant:
    """The whole goal at once, as for a trained model."""
    return Constant()


def asked(schedule: Schedule, progress: float) -> float:
    """What a schedule asks for; one of your own is held to its range."""
    fraction = float(schedule(min(max(progress, 0.0), 1.0)))
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"a schedule gives a fraction of the goal from 0 to 1, got {fraction} at {progress:.4f}")
    return fraction


@dataclass(frozen=True)
class Staircase:
    """A schedule that rises at the border of two rounds, so that what is left shrinks by the same factor each time.

    With R rounds and the density d at the end, the density in round r (from 0) is ``d^(r / (R - 1))``: the first round
    is dense, the last one has the whole goal.

    >>> steps = Staircase(3, density=0.01)
    >>> [round(1 - 0.99 * steps(progress), 6) for progress in (0.0, 0.3, 0.4, 0.7, 1.0)]
    [1.0, 1.0, 0.1, 0.01, 0.01]
    """

    rounds: int  # R, at least 2
    # d; known once there is a goal (see `towards`). Without one the steps of the goal are equal
    density: float | None = None

    def __call__(self, progress: float) -> float:
        last = self.rounds - 1
        # Progress is a quotient of whole numbers of steps: rounding must not move a border.
        level = int(progress * self.rounds + 1e-9)
        if level >= last:
            return 1.0
        if self.density is None or self.density >= 1.0:
            return level / last
        return float((1.0 - self.density ** (level / last)) / (1.0 - self.density))

    def towards(self, density: float) -> Staircase:
        """The staircase down to this density."""
        return replace(self, density=density)


def begins_round(step: int, total_steps: int, rounds: int) -> bool:
    """Whether another round begins once this many steps are done; the first one needs no border.

    >>> [step for step in range(11) if begins_round(step, 10, 4)]
    [3, 5, 8]
    """
    return 0 < step < total_steps and step * rounds // total_steps > (step - 1) * rounds // total_steps


def restarted(
    rate: Callable[[int], float], *, rounds: int, total_steps: int, later_from: float = 0.0
) -> Callable[[int], float]:
    """A learning rate schedule that is run through in every round, each time in as many times fewer steps.

    It takes a function from a step to a learning rate, or to a factor as for torch's `LambdaLR`, and gives one.

    Args:
        rate: the schedule of one training of `total_steps`.
        rounds: how often it is run through.
        total_steps: optimizer steps of all rounds together.
        later_from: the fraction of the schedule that all rounds but the first leave out: `IMP.restart_at`, as weights
            that are put back to where they were early in the first round go on from there.

    >>> falling = restarted(lambda step: 1 - step / 12, rounds=3, total_steps=12)
    >>> [round(falling(step), 2) for step in range(8)]
    [1.0, 0.75, 0.5, 0.25, 1.0, 0.75, 0.5, 0.25]
    """

    def again(step: int) -> float:
        number, place = divmod(step * rounds, total_steps)
        return rate(place if number == 0 else int(later_from * total_steps + (1.0 - later_from) * place))

    return again


# What is counted: the managed weights alone, as in the paper, or every parameter of the model.
Scope = Literal["managed", "all"]
# What is counted of a network without its dead units: weights of its layers, all parameters, multiply-adds.
Measure = Literal["weights", "params", "macs"]


@dataclass(frozen=True)
class Measured:
    """What a run was found to end with, for reports; None is not known."""

    units: int | None = None  # all weights, or other units, that are managed
    left: int | None = None  # those that are left
    stored: int | None = None  # parameters of the whole network without what is pruned, where units are not weights
    macs: int | None = None  # multiply-adds that are left


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
        scoped: whether a configuration's scope, managed weights or all parameters, has a meaning for it.
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
    scoped: ClassVar[bool] = False
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
        """How many of the weights are kept, for masks that divide a number; refused where other things count."""
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
