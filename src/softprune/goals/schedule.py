"""Schedules: which share of a goal holds at which step; and trainings of several equal rounds. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

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

    Args:
        rounds: R, at least 2.
        density: d; known once there is a goal (see `towards`). Without one the steps of the goal are equal.

    >>> steps = Staircase(3, density=0.01)
    >>> [round(1 - 0.99 * steps(progress), 6) for progress in (0.0, 0.3, 0.4, 0.7, 1.0)]
    [1.0, 1.0, 0.1, 0.01, 0.01]
    """

    rounds: int
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
