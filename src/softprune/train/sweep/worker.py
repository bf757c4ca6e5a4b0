"""A worker: takes trials of a shared study and runs them, one after the other."""

from __future__ import annotations

import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
from softprune.train.sweep.folder import TRIALS, Results, TrialResult, write_results
from softprune.train.sweep.study import Claim, SharedStudy
from softprune.train.sweep.sweep_config import ObjectiveName, objective_values
from softprune.train.trainer import Interruption

NOTES, ERROR = "notes.txt", "error.txt"  # in the folder of a trial
_PAUSE = 0.5  # seconds between looks at what others do


@contextmanager
def heartbeat(storage: RDBStorage, trial_id: int) -> Iterator[threading.Event]:
    """Say every few seconds that the worker of a trial lives; yields what is set when others took it for dead.

    A thread of its own, because a step may take long. Signals still go to the main thread, where the run hears them.
    """
    lost, ended = threading.Event(), threading.Event()

    def beat() -> None:
        while not ended.wait(storage.get_heartbeat_interval()):
            # The database may be back before the grace period is over; if not, the trial is lost then.
            with suppress(StorageInternalError):
                storage.record_heartbeat(trial_id)
                if storage.get_trial(trial_id).state != TrialState.RUNNING:
                    lost.set()
        storage.remove_session()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        ended.set()
        thread.join()


@contextmanager
def notes_kept(folder: Path, notes: list[str]) -> Iterator[None]:
    """Write warnings and the run's notes to the folder of a trial: on screen those of many would bury the results."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            yield
        finally:
            lines = [*notes, *(f"{warning.category.__name__}: {warning.message}" for warning in caught)]
            with (folder / NOTES).open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)


@dataclass
class TrialWatcher(Observer):
    """The observer of a trial: reports its course to the study, and ends it early where that is right."""

    trial: optuna.Trial
    judged_by: ObjectiveName | None  # by which the study prunes
    reported: set[int]  # the epochs, counted from 1, whose result the study has
    reason_to_stop: Callable[[], str | None]  # asked after every step; None to go on
    pruned: bool = False  # whether the study gave the trial up
    notes: list[str] = field(default_factory=list)  # what a person may want to read about the run
    _steps_left: int = 1

    def on_step(self, progress: Progress) -> None:
        self._steps_left = progress.total_steps - progress.step
        if reason := self.reason_to_stop():
            raise StopRun(reason)

    def on_metrics(self, metrics: Mapping[str, float | int | str]) -> None:
        if metrics["kind"] != "epoch" or self.judged_by is None:
            return
        done = int(metrics["epoch"]) + 1
        # A run that goes on from a checkpoint may come by an epoch for the second time, with the same result.
        if done not in self.reported:
            (value,) = objective_values(metrics, [self.judged_by])
            self.trial.report(value, done)
            self.reported.add(done)
        # After the last epoch there is nothing to save by stopping.
        if self._steps_left > 0 and self.trial.should_prune():
            self.pruned = True
            raise StopRun("the pruner")

    def on_note(self, text: str) -> None:
        self.notes.append(text)


class SweepObserver(Protocol):
    """Sees a sweep: each trial that this worker ended, and notes for a person."""

    def on_trial(self, trial: TrialResult, results: Results) -> None: ...

    def on_note(self, text: str) -> None: ...


@dataclass
class SweepWorker:
    """Runs trials of a study until all have ended; the fields are arguments of `run_sweep`."""

    study: SharedStudy
    folder: Path
    observer: SweepObserver | None
    threads: int | None
    parent: int | None

    def run(self) -> bool:
        """Work until every trial of the study has ended, here or elsewhere; False if a signal asked to stop before.

        While others still run some it waits, and takes over the trials of those that die. If this machine is at fault,
        such as a full disk, the trial is put back and the OSError raised.
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
                    results = write_results(self.study, self.folder)
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
        if interruption.asked_by is None and self.parent is not None and os.getppid() != self.parent:
            interruption.asked_by = "the end of the process that started it"
        return interruption.asked_by

    def _run(self, claim: Claim, interruption: Interruption) -> None:
        """Run a trial and tell the study what became of it."""
        study, names = self.study, self.study.sweep.config.objectives
        folder = self.folder / TRIALS / f"{claim.slot.number:04d}"
        with heartbeat(study.storage, claim.id) as lost:
            watcher = TrialWatcher(
                claim.trial,
                judged_by=names[0] if study.sweep.config.pruner is not None else None,
                reported=set(claim.slot.last.intermediate_values),
                reason_to_stop=lambda: "another worker" if lost.is_set() else self._reason_to_stop(interruption),
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
        elif interruption.asked_by is None and not lost.is_set():
            study.fail(claim, "stopped by a logger of its own")
        else:
            study.give_back(claim, asked=True)

    def _train(self, claim: Claim, folder: Path, watcher: TrialWatcher) -> Outcome:
        sweep = self.study.sweep
        values = sweep.space.suggest(claim.trial)
        self.study.note_folder(claim, folder)
        with locked(folder, patience=sweep.config.grace_seconds), notes_kept(folder, watcher.notes):
            own: dict[str, Any] = {"name": f"{sweep.config.name}-{claim.slot.number:04d}"}
            if self.threads is not None and sweep.run_config(values).threads is None:
                own["threads"] = self.threads
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
