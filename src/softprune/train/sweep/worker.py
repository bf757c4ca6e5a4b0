"""A worker: takes trials of a shared study and runs them, one after the other."""

from __future__ import annotations

import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from softprune.nn.catalog import load_factory
from softprune.records import CONFIG, write_text
from softprune.train.assembly import open_source
from softprune.train.config import RunConfig, content_hash
from softprune.train.config.sections import is_factory
from softprune.train.load_run import initial_weights
from softprune.train.observer import Observer, Progress, StopRun
from softprune.train.run import Outcome, resume, train
from softprune.train.run_folder import locked
from softprune.train.sweep.folder import Results, TrialResult, trial_folder
from softprune.train.sweep.study import Claim, SharedStudy
from softprune.train.sweep.sweep_config import ObjectiveName, objective_values
from softprune.train.trainer import Interruption

NOTES, ERROR = "notes.txt", "error.txt"  # in the folder of a trial
_PAUSE = 0.5  # seconds between looks at what others do


class Heartbeat:
    """Says every few seconds that the worker of a trial lives, and notices if others took it for dead.

    A thread of its own, because a step may take long. Signals still go to the main thread, where the run hears them.
    """

    def __init__(self, storage: RDBStorage, trial_id: int) -> None:
        self.lost = False
        self._storage, self._trial = storage, trial_id
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        interval = self._storage.get_heartbeat_interval()
        while not self._ended.wait(interval):
            try:
                self._storage.record_heartbeat(self._trial)
                self.lost = self._storage.get_trial(self._trial).state != TrialState.RUNNING
            except StorageInternalError:
                # The database may be back before the grace period is over; if not, the trial is lost then.
                continue
        self._storage.remove_session()


@contextmanager
def notes_kept(folder: Path, notes: list[str]) -> Iterator[None]:
    """Write warnings, and the notes that the run is filling in, to the folder of a trial.

    On the screen those of many trials would bury the lines about results.
    """
    with warnings.catch_warnings(record=True) as caught:
        try:
            yield
        finally:
            lines = [*notes, *(f"{warning.category.__name__}: {warning.message}" for warning in caught)]
            with (folder / NOTES).open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)


class TrialWatcher(Observer):
    """The observer of a trial: reports its course to the study, and ends it early where that is right.

    Args:
        trial: in the study.
        judged_by: the objective by which the study prunes; None if it does not.
        reported: the epochs, counted from 1, whose result the study has.
        reason_to_stop: asked after every step; what speaks against going on, or None.
    """

    def __init__(
        self,
        trial: optuna.Trial,
        *,
        judged_by: ObjectiveName | None,
        reported: Iterable[int],
        reason_to_stop: Callable[[], str | None],
    ) -> None:
        self.pruned = False  # whether the study gave the trial up
        self.notes: list[str] = []  # what a person may want to read about the run
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


class SweepObserver(Protocol):
    """Sees a sweep."""

    def on_trial(self, trial: TrialResult, results: Results) -> None:
        """After every trial that this worker ended."""

    def on_note(self, text: str) -> None:
        """For something that a person should read."""


class SweepWorker:
    """Runs trials of a study until all have ended; the arguments are those of `run_sweep`."""

    def __init__(
        self,
        study: SharedStudy,
        folder: Path,
        *,
        observer: SweepObserver | None,
        threads: int | None,
        parent: int | None,
    ) -> None:
        self.study, self.folder, self.observer = study, folder, observer
        self._threads, self._parent = threads, parent

    def run(self) -> bool:
        """Work until every trial of the study has ended, here or elsewhere; False if a signal asked to stop before.

        While others still run some it waits, and takes over the trials of those that die.

        Raises:
            OSError: if this machine is at fault, such as a full disk; the trial is put back.
        """
        waited = checked = False
        with Interruption() as interruption:
            while self._reason_to_stop(interruption) is None:
                left = [slot for slot in self.study.slots() if not slot.ended]
                if not left:
                    return True
                self.study.revive()
                if not checked:
                    self._check_machine()
                    checked = True
                claim = self.study.claim()
                if claim is not None:
                    self._run(claim, interruption)
                    results = Results.of(self.study.sweep, self.study.slots(), self.folder)
                    results.write(self.folder)
                    if self.observer is not None:
                        self.observer.on_trial(results.trials[claim.slot.number], results)
                    waited = False
                    continue
                if not waited and self.observer is not None:
                    many = "s" if len(left) > 1 else ""
                    self.observer.on_note(f"waiting for {len(left)} trial{many} of other workers")
                waited = True
                time.sleep(_PAUSE)
        return False

    def _check_machine(self) -> None:
        """Find model and data once: what is missing here should stop this worker, not fail every trial it can get."""
        config = self.study.sweep.run_config(self.study.sweep.space.corners(1)[0])
        if is_factory(config.model.name):
            load_factory(config.model.name)
        initial_weights(config)
        open_source(config)

    def _reason_to_stop(self, interruption: Interruption) -> str | None:
        if interruption.asked_by is None and self._parent is not None and os.getppid() != self._parent:
            interruption.asked_by = "the end of the process that started it"
        return interruption.asked_by

    def _run(self, claim: Claim, interruption: Interruption) -> None:
        """Run a trial and tell the study what became of it."""
        study, names = self.study, self.study.sweep.config.objectives
        folder = trial_folder(self.folder, claim.slot.number)
        with Heartbeat(study.storage, claim.id) as heartbeat:
            watcher = TrialWatcher(
                claim.trial,
                judged_by=names[0] if study.sweep.config.pruner is not None else None,
                reported=claim.slot.last.intermediate_values,
                reason_to_stop=lambda: "another worker" if heartbeat.lost else self._reason_to_stop(interruption),
            )
            try:
                outcome = self._train(claim, folder, watcher)
                values = objective_values(outcome.result["last"], names) if outcome.finished else []
            except (BlockingIOError, UpdateFinishedTrialError):
                # A worker was taken for dead and lives after all: the one that holds the folder, or this one.
                study.give_back(claim, asked=True)
                return
            except (OSError, ImportError, StorageInternalError, KeyboardInterrupt) as error:
                study.give_back(claim, asked=isinstance(error, KeyboardInterrupt))
                raise
            except Exception as error:
                # Whatever a model, data or values of the search raise: it is this trial's, and the sweep goes on.
                folder.mkdir(parents=True, exist_ok=True)
                write_text(folder / ERROR, traceback.format_exc())
                study.fail(claim, f"{type(error).__name__}: {error}")
                return
        if outcome.finished:
            study.complete(claim, values)
        elif watcher.pruned:
            study.prune(claim)
        elif interruption.asked_by is None and not heartbeat.lost:
            study.fail(claim, "stopped by a logger of its own")
        else:
            study.give_back(claim, asked=True)

    def _train(self, claim: Claim, folder: Path, watcher: TrialWatcher) -> Outcome:
        sweep = self.study.sweep
        values = sweep.space.suggest(claim.trial)
        self.study.note_folder(claim, folder)
        with locked(folder, patience=sweep.config.grace_seconds), notes_kept(folder, watcher.notes):
            own: dict[str, Any] = {"name": f"{sweep.config.name}-{claim.slot.number:04d}"}
            if self._threads is not None and sweep.run_config(values).threads is None:
                own["threads"] = self._threads
            config = sweep.run_config({**values, **own})
            if not (folder / CONFIG).exists():
                return train(config, folder, observer=watcher)
            _refuse_another(folder, config)
            return resume(folder, observer=watcher, trust=True)  # it names no other code than this sweep


def _refuse_another(folder: Path, config: RunConfig) -> None:
    """A run is continued only by the trial that it belongs to. Threads may differ: a run keeps those it began with."""
    there = RunConfig.load(folder / CONFIG, trust=True)  # which imports nothing
    same = content_hash(there.model_copy(update={"threads": config.threads})) == content_hash(config)
    # Loggers do not count in the hash, and yet their code is run.
    if not same or there.code() != config.code():
        raise ValueError(f"{folder} holds a run of another configuration; move it away and start the sweep again")
