"""The observer of a trial: reports its course to the study, and ends it early where that is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import optuna

from softprune.train.observer import Progress, Silent, StopRun
from softprune.train.sweep.objective import ObjectiveName, objective_values


class TrialWatcher(Silent):
    """Watches the run of one trial.

    Args:
        trial: in the study.
        judged_by: the objective by which the study prunes; None if it does not.
        reported: the epochs, counted from 1, whose result the study has.
        reason_to_stop: asked after every step; what speaks against going on, or None.

    Attributes:
        pruned: whether the study gave the trial up.
        notes: what a person may want to read about the run.
    """

    def __init__(
        self,
        trial: optuna.Trial,
        *,
        judged_by: ObjectiveName | None,
        reported: Iterable[int],
        reason_to_stop: Callable[[], str | None],
    ) -> None:
        self.pruned = False
        self.notes: list[str] = []
        self._trial, self._judged_by, self._reason_to_stop = trial, judged_by, reason_to_stop
        self._reported = set(reported)
        self._steps_left = 1

    def on_step(self, progress: Progress) -> None:
        self._steps_left = progress.total_steps - progress.step
        if reason := self._reason_to_stop():
            raise StopRun(reason)

    def on_metrics(self, metrics: Mapping[str, float | int | str]) -> None:
        if metrics["kind"] != "epoch" or self._judged_by is None:
            return
        done = int(metrics["epoch"]) + 1
        # A run that goes on from a checkpoint may come by an epoch for the second time, with the same result.
        if done not in self._reported:
            (value,) = objective_values(metrics, [self._judged_by])
            self._trial.report(value, done)
            self._reported.add(done)
        # After the last epoch there is nothing to save by stopping.
        if self._steps_left > 0 and self._trial.should_prune():
            self.pruned = True
            raise StopRun("the pruner")

    def on_note(self, text: str) -> None:
        self.notes.append(text)
