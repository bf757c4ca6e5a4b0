"""A case of the contract: a method in a setting, with the history of one whole training to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from softprune.methods.base import Method
from softprune.testing.trial import STEPS, Setting, Trial

# Whether masks may change in this step, counted from 1, of so many.
Timetable = Callable[[int, int], bool]


class UnmetError(AssertionError):
    """What was expected and what was seen."""


def require(holds: object, expected: str, seen: object) -> None:
    if not holds:
        raise UnmetError(f"expected {expected}; saw {seen}")


@dataclass(frozen=True)
class Frame:
    """A network after so many steps."""

    step: int
    living: dict[str, Tensor]
    effective: dict[str, Tensor]

    @property
    def counts(self) -> dict[str, int]:
        return {name: int(mask.sum()) for name, mask in self.living.items()}


class Case:
    """What the checks of a method are given."""

    def __init__(self, method: Method, setting: Setting, timetable: Timetable | None = None) -> None:
        self.method = method
        self.setting = setting
        self.timetable = timetable

    def trial(self, *, follow: bool = True) -> Trial:
        return Trial(self.method, self.setting, follow=follow)

    @cached_property
    def _watched(self) -> tuple[list[Frame], Trial]:
        trial = self.trial()
        frames = [Frame(0, trial.living(), trial.effective())]
        for step in range(1, STEPS + 1):
            trial.train()
            frames.append(Frame(step, trial.living(), trial.effective()))
        return frames, trial

    @property
    def frames(self) -> list[Frame]:
        """A whole training, from before its first step."""
        return self._watched[0]

    @property
    def finished(self) -> Trial:
        """The trial that made the frames; only the last check may change it."""
        return self._watched[1]


def unequal(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """The names of tensors that are not the same bit for bit."""
    return sorted(
        name for name in {*one, *other} if name not in one or name not in other or not same(one[name], other[name])
    )


def same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, with NaN equal to itself."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
