"""A worker: takes trials of a shared study and runs them, one after the other."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError

from softprune.budget.files import write_text
from softprune.nn.catalog import load_factory
from softprune.train.config import RunConfig, content_hash
from softprune.train.config.section import is_factory
from softprune.train.interruption import Interruption
from softprune.train.lock import locked
from softprune.train.run import Outcome, open_source, resume, train
from softprune.train.run_folder import CONFIG
from softprune.train.sweep.folder import trial_folder
from softprune.train.sweep.heartbeat import Heartbeat
from softprune.train.sweep.notes import notes_kept
from softprune.train.sweep.objective import objective_values
from softprune.train.sweep.results import Results, TrialResult
from softprune.train.sweep.study import Claim, SharedStudy
from softprune.train.sweep.watcher import TrialWatcher
from softprune.train.weights import initial_weights

ERROR = "error.txt"
_PAUSE = 0.5  # seconds between looks at what others do


class SweepObserver(Protocol):
    """Sees a sweep."""

    def on_trial(self, trial: TrialResult, results: Results) -> None:
        """After every trial that this worker ended."""

    def on_note(self, text: str) -> None:
        """For something that a person should read."""


class SilentObserver:
    """An observer that looks away."""

    def on_trial(self, trial: TrialResult, results: Results) -> None:
        """Nothing."""

    def on_note(self, text: str) -> None:
        """Nothing."""


class Worker:
    """Runs trials of a study until all have ended.

    Args:
        study: shared with other workers.
        folder: of the sweep.
        observer: who watches.
        threads: of a trial whose configuration leaves them open; None for torch's choice.
        parent: id of the process that started this one; with it this one stops, too.
    """

    def __init__(
        self, study: SharedStudy, folder: Path, *, observer: SweepObserver, threads: int | None, parent: int | None
    ) -> None:
        self.study, self.folder, self.observer = study, folder, observer
        self._threads, self._parent = threads, parent
        self._checked = False

    def run(self) -> bool:
        """Work until every trial of the study has ended, here or elsewhere.

        While others still run some it waits, and takes over the trials of those that die.

        Returns:
            False if a signal asked to stop before that.

        Raises:
            OSError: if this machine is at fault, such as a full disk; the trial is put back.
        """
        waited = False
        with Interruption() as interruption:
            while self._reason_to_stop(interruption) is None:
                left = [slot for slot in self.study.slots() if not slot.ended]
                if not left:
                    return True
                self.study.revive()
                self._check_machine()
                claim = self.study.claim()
                if claim is not None:
                    self._run(claim, interruption)
                    self._report(claim.slot.number)
                    waited = False
                    continue
                if not waited:
                    self.observer.on_note(
                        f"waiting for {len(left)} trial{'s' if len(left) > 1 else ''} of other workers"
                    )
                waited = True
                time.sleep(_PAUSE)
        return False

    def _check_machine(self) -> None:
        """Find model and data once: what is missing here should stop this worker, not fail every trial it can get."""
        if not self._checked:
            config = self.study.sweep.run_config(self.study.sweep.space.corners(1)[0])
            if is_factory(config.model.name):
                load_factory(config.model.name)
            initial_weights(config)
            open_source(config)
            self._checked = True

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
        self.study.place(claim, folder)
        with locked(folder, patience=sweep.config.grace_seconds), notes_kept(folder, watcher.notes):
            config = self._config(claim.slot.number, values)
            if not (folder / CONFIG).exists():
                return train(config, folder, observer=watcher)
            _refuse_another(folder, config)
            return resume(folder, observer=watcher, trust=True)  # it names no other code than this sweep

    def _config(self, number: int, values: Mapping[str, Any]) -> RunConfig:
        sweep = self.study.sweep
        own: dict[str, Any] = {"name": f"{sweep.config.name}-{number:04d}"}
        if self._threads is not None and sweep.run_config(values).threads is None:
            own["threads"] = self._threads
        return sweep.run_config({**values, **own})

    def _report(self, number: int) -> None:
        results = Results.of(self.study.sweep, self.study.slots(), self.folder)
        results.write(self.folder)
        self.observer.on_trial(results.trials[number], results)


def _refuse_another(folder: Path, config: RunConfig) -> None:
    """A run is continued only by the trial that it belongs to. Threads may differ: a run keeps those it began with."""
    there = RunConfig.load(folder / CONFIG, trust=True)  # which imports nothing
    same = content_hash(there.model_copy(update={"threads": config.threads})) == content_hash(config)
    # Loggers do not count in the hash, and yet their code is run.
    if not same or there.code() != config.code():
        raise ValueError(f"{folder} holds a run of another configuration; move it away and start the sweep again")
