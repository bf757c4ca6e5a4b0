"""Schedules: how much of a goal is asked for at which point of the training. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
