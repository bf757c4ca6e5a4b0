"""The trials of a sweep as a person counts them: one per number and run folder, however often it was begun.

A study never changes a trial that has ended, so one whose worker died is continued by a new trial of the study: its
next attempt. What a slot's attempts say is worked out anew by whoever looks, so a worker that is killed at any moment
leaves nothing undone that the next one would not do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from optuna.trial import FrozenTrial, TrialState

# Attributes of a study's trials.
SLOT, AFTER, ERROR, INTERRUPTED, FOLDER, HOST = "slot", "after", "error", "interrupted", "folder", "host"

State = Literal["waiting", "running", "complete", "pruned", "failed"]
_STATES: dict[TrialState, State] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class Slot:
    """One trial of the sweep.

    Attributes:
        number: 0 to one below the number of trials; names the run folder.
        attempts: the study's trials for it, oldest first.
        retries: how many deaths of its worker it may survive.
    """

    number: int
    attempts: tuple[FrozenTrial, ...]
    retries: int

    @property
    def last(self) -> FrozenTrial:
        return self.attempts[-1]

    @property
    def deaths(self) -> int:
        """Attempts whose worker died; one that was asked to stop is none."""
        return sum(_was_lost(a) and not a.user_attrs.get(INTERRUPTED, False) for a in self.attempts)

    @property
    def needs_attempt(self) -> bool:
        """Whether the last attempt was cut short and there may be another."""
        return _was_lost(self.last) and self.deaths <= self.retries

    @property
    def state(self) -> State:
        return "waiting" if self.needs_attempt else _STATES[self.last.state]

    @property
    def ended(self) -> bool:
        return self.state not in ("waiting", "running")

    @property
    def reason(self) -> str:
        """Why it failed; empty if it did not."""
        if self.state != "failed":
            return ""
        return str(self.last.user_attrs.get(ERROR, f"its worker died {self.deaths} times"))


def slots_of(trials: Iterable[FrozenTrial], *, retries: int) -> list[Slot]:
    """The slots that a study's trials fill, by number.

    Two workers may add the next attempt of a slot at once. The older one counts, the other is passed over by everyone.
    """
    found: dict[int, dict[int | None, FrozenTrial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        if SLOT in trial.user_attrs:
            found.setdefault(trial.user_attrs[SLOT], {}).setdefault(trial.user_attrs.get(AFTER), trial)
    return [Slot(number, tuple(attempts.values()), retries) for number, attempts in sorted(found.items())]


def _was_lost(attempt: FrozenTrial) -> bool:
    return attempt.state == TrialState.FAIL and ERROR not in attempt.user_attrs
