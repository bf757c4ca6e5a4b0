"""The study that all workers of a sweep share."""

from __future__ import annotations

import socket
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState, create_trial

from softprune.train.length import stretch
from softprune.train.sweep.slot import AFTER, ERROR, FOLDER, HOST, INTERRUPTED, SLOT, Slot, slots_of
from softprune.train.sweep.sweep import Sweep


@dataclass(frozen=True)
class Claim:
    """A trial that this worker has to run.

    Attributes:
        slot: which one.
        trial: the attempt, in the study.
        id: of the attempt, in the storage.
    """

    slot: Slot
    trial: optuna.Trial
    id: int


class SharedStudy:
    """A study whose trials were all laid out when it was made, and are taken one by one.

    So their number is exact, and each is taken once, however many workers there are and whenever they come and go.

    Args:
        sweep: what is searched.
        storage: of the study, which is in it.
    """

    def __init__(self, sweep: Sweep, storage: RDBStorage) -> None:
        self.sweep, self.storage = sweep, storage
        self._id = storage.get_study_id_from_name(sweep.config.name)
        self._study = optuna.load_study(
            study_name=sweep.config.name,
            storage=storage,
            sampler=optuna.samplers.RandomSampler(),
            pruner=_pruner(sweep),
        )

    def close(self) -> None:
        """Let go of the storage."""
        self.storage.remove_session()
        self.storage.engine.dispose()

    def slots(self) -> list[Slot]:
        """Every trial of the sweep, as it stands."""
        return slots_of(self._study.get_trials(deepcopy=False), retries=self.sweep.config.retries)

    def revive(self) -> None:
        """Put back the trials whose worker gave no sign of life, and those that were cut short."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(self._study)
        for slot in self.slots():
            if slot.needs_attempt:
                self._study.add_trial(_next_attempt(slot))

    def claim(self) -> Claim | None:
        """Take a waiting trial; None if there is none. No two workers get the same."""
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

    def place(self, claim: Claim, folder: Path) -> None:
        """Note where the trial runs."""
        claim.trial.set_user_attr(FOLDER, str(folder.resolve()))
        claim.trial.set_user_attr(HOST, socket.gethostname())

    def complete(self, claim: Claim, values: Sequence[float]) -> None:
        self._tell(claim, TrialState.COMPLETE, values)

    def prune(self, claim: Claim) -> None:
        self._tell(claim, TrialState.PRUNED)

    def fail(self, claim: Claim, reason: str) -> None:
        """The trial itself is at fault; it is not tried again."""
        self._note(claim, ERROR, reason)
        self._tell(claim, TrialState.FAIL)

    def give_back(self, claim: Claim, *, asked: bool) -> None:
        """The trial was cut short and is to go on later.

        Args:
            asked: by a signal; everything else counts as a death of its worker.
        """
        if asked:
            self._note(claim, INTERRUPTED, True)
        self._tell(claim, TrialState.FAIL)
        self.revive()

    # A trial that others took for dead has ended already; what becomes of it is theirs to say.

    def _note(self, claim: Claim, key: str, value: Any) -> None:
        with suppress(UpdateFinishedTrialError):
            claim.trial.set_user_attr(key, value)

    def _tell(self, claim: Claim, state: TrialState, values: Sequence[float] | None = None) -> None:
        with suppress(UpdateFinishedTrialError):
            self._study.tell(claim.trial, values, state=state, skip_if_finished=True)


def _next_attempt(slot: Slot) -> FrozenTrial:
    last = slot.last
    return create_trial(
        state=TrialState.WAITING,
        params=last.params,
        distributions=last.distributions,
        # What was reported and decided so far holds for the run folder, which goes on.
        intermediate_values=last.intermediate_values,
        system_attrs=last.system_attrs,
        user_attrs={SLOT: slot.number, AFTER: last.number},
    )


def _sampler(sweep: Sweep, slot: int) -> optuna.samplers.BaseSampler:
    # A seed per trial: with one for all, a worker that begins later would draw the first trial's values again.
    seed = zlib.crc32(f"{sweep.config.seed}/{slot}".encode())
    kinds: dict[str, Callable[..., optuna.samplers.BaseSampler]] = {
        "grid": optuna.samplers.RandomSampler,  # every value is laid out
        "random": optuna.samplers.RandomSampler,
        "tpe": optuna.samplers.TPESampler,
    }
    return kinds[sweep.config.sampler](seed=seed)


def _pruner(sweep: Sweep) -> optuna.pruners.BasePruner:
    given = sweep.config.pruner
    if given is None:
        return optuna.pruners.NopPruner()
    if given.name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=given.startup_trials, n_warmup_steps=given.warmup_epochs)
    if given.name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=given.warmup_epochs, reduction_factor=given.factor)
    return optuna.pruners.HyperbandPruner(
        min_resource=given.warmup_epochs, max_resource=stretch(sweep.base).epochs, reduction_factor=given.factor
    )
