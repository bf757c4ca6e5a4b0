"""The trials of a sweep as a person counts them: one per number and run folder, however often it was begun.

A study never changes a trial that has ended, so one whose worker died is continued by a new trial of the study: its
next attempt. What a slot's attempts say is worked out anew by whoever looks, so a worker that is killed at any moment
leaves nothing undone that the next one would not do.
"""

from __future__ import annotations

import socket
import sqlite3
import time
import warnings
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import Connection, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from softprune.train.schedule import stretch
from softprune.train.sweep.sweep import Sweep

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
    number: int  # from 0; names the run folder
    attempts: tuple[FrozenTrial, ...]  # the study's trials for it, oldest first
    retries: int  # how many deaths of its worker it may survive

    @property
    def last(self) -> FrozenTrial:
        return self.attempts[-1]

    @property
    def deaths(self) -> int:
        """How many attempts lost their worker; those that were asked to stop do not count."""
        return sum(_was_lost(a) and not a.user_attrs.get(INTERRUPTED, False) for a in self.attempts)

    @property
    def needs_attempt(self) -> bool:
        return _was_lost(self.last) and self.deaths <= self.retries

    @property
    def state(self) -> State:
        return "waiting" if self.needs_attempt else _STATES[self.last.state]

    @property
    def ended(self) -> bool:
        return self.state not in ("waiting", "running")

    @property
    def begun(self) -> list[dict[str, Any]]:
        """Attributes of the attempts that some worker has begun."""
        return [attempt.user_attrs for attempt in self.attempts if FOLDER in attempt.user_attrs]

    def folder_from(self, folder: Path) -> str:
        """Its run folder, relative to the sweep folder, or with the machine in front; empty before it is begun."""
        if not self.begun:
            return ""
        last, here = self.begun[-1], folder.resolve()
        path = Path(last[FOLDER])
        if path.is_relative_to(here):
            return path.relative_to(here).as_posix()
        return str(path) if last[HOST] == socket.gethostname() else f"{last[HOST]}:{path}"

    @property
    def reason(self) -> str:
        """Why it failed; empty if it did not."""
        died = f"its worker died {self.deaths} times"
        return str(self.last.user_attrs.get(ERROR, died)) if self.state == "failed" else ""


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


# The database of a study: a file that processes of one machine share, or a server that machines share.

_PATIENCE = 120  # seconds that SQLite waits for another process to finish writing
_OPENINGS = 3
_HIDDEN = "***"  # what SQLAlchemy writes in the place of a password


def open_file(path: Path, *, grace_seconds: int) -> RDBStorage:
    """The storage in an SQLite file, which is made if need be."""

    def connect() -> sqlite3.Connection:
        # Not by URL: there a path may not have a question mark or a brace.
        return sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)

    return _open("sqlite:///study.db", grace_seconds, creator=connect)


def open_url(url: str, *, grace_seconds: int) -> RDBStorage:
    """The storage that a database URL names; a ValueError without its password if it cannot be reached."""
    if f":{_HIDDEN}@" in url:
        raise ValueError(f"the password of {url} is not kept: give the whole URL with --storage or SOFTPRUNE_STORAGE")
    try:
        if not make_url(url).drivername.startswith("sqlite"):
            return _open(url, grace_seconds)
        return _open(url, grace_seconds, connect_args={"timeout": _PATIENCE, "isolation_level": None})
    except (SQLAlchemyError, StorageInternalError, ImportError) as error:
        cause = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(f"the storage {without_password(url)} cannot be used: {cause}") from error


def without_password(url: str) -> str:
    """A database URL as it may be written down.

    Example:
        >>> without_password("postgresql://ann:secret@host/studies")
        'postgresql://ann:***@host/studies'
    """
    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return url


def prefer_log(storage: RDBStorage) -> None:
    """Let readers of an SQLite file, such as a dashboard, go on while a worker writes. Stays with the file."""
    with storage.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.execute("PRAGMA journal_mode=WAL")


def _open(url: str, grace_seconds: int, **engine: Any) -> RDBStorage:
    for opening in range(1, _OPENINGS + 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                storage = RDBStorage(
                    url, engine_kwargs=engine, heartbeat_interval=max(1, grace_seconds // 4), grace_period=grace_seconds
                )
            break
        except (SQLAlchemyError, StorageInternalError):
            # Two workers that make the tables of a new database at once get in each other's way, once.
            if opening == _OPENINGS:
                raise
            time.sleep(0.5)
    if storage.engine.dialect.name == "sqlite":
        event.listen(storage.engine, "begin", _begin_writing)
    return storage


def _begin_writing(connection: Connection) -> None:
    # SQLite knows no SELECT .. FOR UPDATE, by which Optuna makes sure that one worker gets a trial. Without this, two
    # that read "waiting" at once would both take it.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


# The study that all workers of a sweep share.


@dataclass(frozen=True)
class Claim:
    slot: Slot  # that this worker has to run
    trial: optuna.Trial  # the attempt, in the study
    id: int  # of the attempt, in the storage


class SharedStudy:
    """A study whose trials were all laid out when it was made, and are taken one by one.

    So their number is exact, and each is taken once, however many workers there are and whenever they come and go.
    """

    def __init__(self, sweep: Sweep, storage: RDBStorage) -> None:
        self.sweep, self.storage = sweep, storage
        self._id = storage.get_study_id_from_name(sweep.config.name)
        sampler = optuna.samplers.RandomSampler()  # until a trial is claimed
        self._study = optuna.load_study(
            study_name=sweep.config.name, storage=storage, sampler=sampler, pruner=_pruner(sweep)
        )

    def close(self) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()

    def slots(self) -> list[Slot]:
        return slots_of(self._study.get_trials(deepcopy=False), retries=self.sweep.config.retries)

    def revive(self) -> None:
        """Put back the trials whose worker gave no sign of life, and those that were cut short."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(self._study)
        for slot in self.slots():
            if slot.needs_attempt:
                # What was reported and decided so far holds for the run folder, which goes on.
                kept = ("params", "distributions", "intermediate_values", "system_attrs")
                given = {key: getattr(slot.last, key) for key in kept}
                marks = {SLOT: slot.number, AFTER: slot.last.number}
                self._study.add_trial(create_trial(state=TrialState.WAITING, user_attrs=marks, **given))

    def claim(self) -> Claim | None:
        """Take a waiting trial, which no other worker gets, too; None if none waits."""
        for slot in self.slots():
            if slot.last.state != TrialState.WAITING:
                continue
            key = self.storage.get_trial_id_from_study_id_trial_number(self._id, slot.last.number)
            # Before it runs: a worker that dies in between would never be missed without a first sign of life.
            self.storage.record_heartbeat(key)
            with suppress(UpdateFinishedTrialError):
                if self.storage.set_trial_state_values(key, state=TrialState.RUNNING):
                    self._study.sampler = _sampler(self.sweep, slot.number)
                    return Claim(slot, optuna.Trial(self._study, key), key)
        return None

    def note_folder(self, claim: Claim, folder: Path) -> None:
        claim.trial.set_user_attr(FOLDER, str(folder.resolve()))
        claim.trial.set_user_attr(HOST, socket.gethostname())

    # A trial that others took for dead has ended already; what becomes of it is theirs to say.

    def complete(self, claim: Claim, values: Sequence[float]) -> None:
        self._tell(claim, TrialState.COMPLETE, values)

    def prune(self, claim: Claim) -> None:
        self._tell(claim, TrialState.PRUNED)

    def fail(self, claim: Claim, reason: str) -> None:
        """The trial itself is at fault; it is not tried again."""
        self._tell(claim, TrialState.FAIL, note=(ERROR, reason))

    def give_back(self, claim: Claim, *, asked: bool) -> None:
        """The trial was cut short and is to go on later; if nobody asked for it, it counts as its worker's death."""
        self._tell(claim, TrialState.FAIL, note=(INTERRUPTED, True) if asked else None)
        self.revive()

    def _tell(
        self,
        claim: Claim,
        state: TrialState,
        values: Sequence[float] | None = None,
        note: tuple[str, Any] | None = None,
    ) -> None:
        with suppress(UpdateFinishedTrialError):
            if note is not None:
                claim.trial.set_user_attr(*note)
            self._study.tell(claim.trial, values, state=state, skip_if_finished=True)


def _sampler(sweep: Sweep, slot: int) -> optuna.samplers.BaseSampler:
    # A seed per trial: with one for all, a worker that begins later would draw the first trial's values again.
    seed = zlib.crc32(f"{sweep.config.seed}/{slot}".encode())
    # Every value of a grid is laid out, and no sampler is asked.
    kind = optuna.samplers.TPESampler if sweep.config.sampler == "tpe" else optuna.samplers.RandomSampler
    return kind(seed=seed)


def _pruner(sweep: Sweep) -> optuna.pruners.BasePruner:
    given = sweep.config.pruner
    if given is None:
        return optuna.pruners.NopPruner()
    first, factor, epochs = given.warmup_epochs, given.factor, stretch(sweep.base).epochs
    if given.name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=given.startup_trials, n_warmup_steps=first)
    if given.name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=factor)
    return optuna.pruners.HyperbandPruner(min_resource=first, max_resource=epochs, reduction_factor=factor)
