"""The sweep folder: what is searched, the study, a run folder per trial, and the results.

The first worker makes it and lays out all trials, the others find them.
"""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError, StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import SQLAlchemyError

from softprune.records import CONFIG, require_regular, write_text, write_whole
from softprune.train.config import RunConfig
from softprune.train.run_folder import locked
from softprune.train.sweep.study import (
    SLOT,
    SharedStudy,
    Slot,
    State,
    open_file,
    open_url,
    prefer_log,
    without_password,
)
from softprune.train.sweep.sweep import BASE, Sweep, description, differences
from softprune.train.sweep.sweep_config import COUNTS, DIRECTIONS, SweepConfig, costs

DATABASE, SWEEP, TRIALS, TABLE, BEST = "study.db", "sweep.yaml", "trials", "trials.csv", "best.json"
FORMAT, VERSION = "softprune-sweep", 1  # of best.json
DESCRIPTION, READY = "sweep", "ready"  # attributes of the study
_PATIENCE = 120  # seconds to wait for another process that is making the same folder


def enter(sweep: Sweep, folder: Path) -> SharedStudy:
    """Make the folder of a sweep and its study, or join them; those of something else are refused."""
    if (folder / CONFIG).exists():
        raise ValueError(f"{folder} holds a run, not a sweep; choose another folder with --out")
    with locked(folder, patience=_PATIENCE):
        if (folder / SWEEP).exists():
            _refuse_another_folder(sweep, folder)
        study = open_study(sweep, folder)
        if not (folder / SWEEP).exists():
            (folder / TRIALS).mkdir(exist_ok=True)
            write_text(folder / BASE, sweep.base.dump())
            # Last: a folder with a sweep file is a sweep that can be joined.
            write_text(folder / SWEEP, _kept(sweep).dump())
        return study


def _kept(sweep: Sweep) -> SweepConfig:
    """As the folder keeps it: the base is a file beside it, and no password is written down."""
    storage = sweep.config.storage and without_password(sweep.config.storage)
    return sweep.config.model_copy(update={"base": BASE, "changes": {}, "storage": storage})


def _refuse_another_folder(sweep: Sweep, folder: Path) -> None:
    stored = SweepConfig.load(folder / SWEEP)
    different = differences(
        description(stored, RunConfig.load(folder / BASE, trust=True)), description(sweep.config, sweep.base)
    )
    if stored.storage != _kept(sweep).storage:
        different.append("storage")
    if different:
        raise ValueError(
            f"{folder} holds another sweep: {', '.join(different)} differ. Start the one that is there with "
            f"softprune sweep {folder / SWEEP} --out {folder}, or choose another folder with --out"
        )


def open_study(sweep: Sweep, folder: Path) -> SharedStudy:
    """Join the study of a sweep, or make it; its folder is locked, so that no other process makes it meanwhile."""
    url, grace = sweep.config.storage, sweep.config.grace_seconds
    if url is None:
        path = folder / DATABASE
        if not path.exists():
            write_whole(path, partial(_write_database, sweep))
        require_regular(path)
        try:
            storage = open_file(path, grace_seconds=grace)
            _refuse_incomplete(sweep, storage)
        except (SQLAlchemyError, StorageInternalError, KeyError, TypeError, ValueError, RuntimeError) as error:
            if _is_busy(error):
                raise
            cause = str(error.__cause__ or error).partition("\n")[0]
            raise ValueError(
                f"{path} is damaged, or not a study of this sweep: {cause}. Put a whole one back; to search anew, "
                "choose another folder with --out"
            ) from error
    else:
        storage = open_url(url, grace_seconds=grace)
        _create(sweep, storage)
        _wait_until_ready(sweep, storage, patience=grace)
    attributes = optuna.load_study(study_name=sweep.config.name, storage=storage).user_attrs
    if different := differences(attributes.get(DESCRIPTION, {}), description(sweep.config, sweep.base)):
        where = "this folder" if url is None else without_password(url)
        raise ValueError(
            f"the study {sweep.config.name!r} in {where} searches something else: {', '.join(different)} differ; "
            "choose another name, or another folder with --out"
        )
    return SharedStudy(sweep, storage)


def _refuse_incomplete(sweep: Sweep, storage: RDBStorage) -> None:
    """The study of a file is put in its place whole, so whatever is missing from it was lost."""
    study = optuna.load_study(study_name=sweep.config.name, storage=storage)
    numbers = {trial.user_attrs.get(SLOT) for trial in study.get_trials(deepcopy=False)}
    if study.user_attrs.get(READY) and (lost := [n for n in range(sweep.trials) if n not in numbers]):
        raise ValueError(f"it has lost the trials {', '.join(map(str, lost[:5]))}")


def _is_busy(error: Exception) -> bool:
    """Whether a database is whole and can only not be used now: locked, or on a disk that is full or read-only."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, sqlite3.OperationalError):
            return True
        cause = getattr(cause, "orig", None) or cause.__cause__
    return False


def _write_database(sweep: Sweep, path: Path) -> None:
    storage = open_file(path, grace_seconds=sweep.config.grace_seconds)
    _create(sweep, storage)
    prefer_log(storage)
    storage.remove_session()
    storage.engine.dispose()


def _create(sweep: Sweep, storage: RDBStorage) -> None:
    """Make the study and lay out its trials, unless it is there."""
    config, directions = sweep.config, [DIRECTIONS[name] for name in sweep.config.objectives]
    try:
        study = optuna.create_study(study_name=config.name, storage=storage, directions=directions)
    except DuplicatedStudyError:
        return
    study.set_user_attr(DESCRIPTION, description(config, sweep.base))
    for number, point in enumerate(sweep.points() or [{}] * sweep.trials):
        study.enqueue_trial(sweep.space.fixed(point), user_attrs={SLOT: number})
    study.set_user_attr(READY, True)


def _wait_until_ready(sweep: Sweep, storage: RDBStorage, *, patience: float) -> None:
    """Wait for another machine that is laying out the trials."""
    study = optuna.load_study(study_name=sweep.config.name, storage=storage)
    count, since = -1, time.monotonic()
    while not study.user_attrs.get(READY):
        seen, count = count, len(study.get_trials(deepcopy=False))
        since = time.monotonic() if count > seen else since
        made_elsewhere = count > 0 and DESCRIPTION not in study.user_attrs
        if made_elsewhere or time.monotonic() - since > patience:
            url = without_password(sweep.config.storage or "")
            half = "was never filled: whoever made it stopped half way"
            why = "is not a study of a sweep" if made_elsewhere else half
            raise ValueError(
                f"the study {sweep.config.name!r} in {url} {why}. Choose another name, or delete it with "
                f"optuna delete-study --study-name {sweep.config.name} --storage URL"
            )
        time.sleep(0.5)


# The results, in files that need no Optuna.


@dataclass(frozen=True)
class TrialResult:
    number: int  # also names its folder
    state: State
    params: dict[str, Any]  # the values it has; empty until they are chosen
    objectives: dict[str, float]  # by name; empty unless it is complete
    attempts: int  # how often it was begun or continued
    folder: str  # its run folder, relative to the sweep folder; with the machine in front if it is not below it
    reason: str  # why it failed


@dataclass(frozen=True)
class Results:
    sweep: Sweep
    trials: tuple[TrialResult, ...]  # by number

    @classmethod
    def of(cls, sweep: Sweep, slots: Sequence[Slot], folder: Path) -> Results:
        found, names = [], sweep.config.objectives
        for slot in slots:
            values = zip(names, slot.last.values if slot.state == "complete" else (), strict=False)
            objectives: dict[str, float] = {name: int(value) if name in COUNTS else value for name, value in values}
            params, place = sweep.space.chosen(slot.last.params), slot.folder_from(folder)
            found.append(TrialResult(slot.number, slot.state, params, objectives, len(slot.begun), place, slot.reason))
        return cls(sweep, tuple(found))

    @property
    def counts(self) -> Counter[State]:
        return Counter(trial.state for trial in self.trials)

    @property
    def ended(self) -> int:
        return len(self.trials) - self.counts["waiting"] - self.counts["running"]

    @cached_property
    def best(self) -> list[TrialResult]:
        """The first of the best trials; for two objectives the Pareto set, in order of the first objective."""
        names = self.sweep.config.objectives
        complete = [(costs(t.objectives, names), t.number) for t in self.trials if t.state == "complete"]
        front: list[tuple[tuple[float, ...], int]] = []
        # From the best of the first objective on, one is beaten unless it is better in the last one than all before.
        for cost, number in sorted(complete):
            if not front or cost[-1] < front[-1][0][-1] or (len(names) > 1 and cost == front[-1][0]):
                front.append((cost, number))
        return [self.trials[number] for _, number in front]

    def write(self, folder: Path) -> None:
        config, text = self.sweep.config, io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["number", "state", *config.search, *config.objectives, "attempts", "folder", "reason"])
        for t in self.trials:
            params = [_cell(t.params[key]) if key in t.params else "" for key in config.search]
            objectives = [t.objectives.get(name, "") for name in config.objectives]
            writer.writerow([t.number, t.state, *params, *objectives, t.attempts, t.folder, t.reason])
        best = ("number", "params", "objectives", "folder")
        summary = {
            **{"format": FORMAT, "version": VERSION, "name": config.name},
            "objectives": {name: DIRECTIONS[name] for name in config.objectives},
            "trials": dict(self.counts),
            "best": [{key: getattr(trial, key) for key in best} for trial in self.best],
        }
        write_text(folder / TABLE, text.getvalue())
        write_text(folder / BEST, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def write_results(study: SharedStudy, folder: Path) -> Results:
    results = Results.of(study.sweep, study.slots(), folder)
    results.write(folder)
    return results


def _cell(value: Any) -> Any:
    return value if isinstance(value, str | float | int) and not isinstance(value, bool) else json.dumps(value)
