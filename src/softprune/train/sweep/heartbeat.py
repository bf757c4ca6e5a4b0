"""Signs of life of a worker while it runs a trial."""

from __future__ import annotations

import threading
from types import TracebackType

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import TrialState


class Heartbeat:
    """Says every few seconds that the worker of a trial lives, and notices if others took it for dead.

    A thread of its own, because a step may take long. Signals still go to the main thread, where the run hears them.

    Args:
        storage: of the study.
        trial: its id in the storage.
    """

    def __init__(self, storage: RDBStorage, trial: int) -> None:
        self.lost = False
        self._storage, self._trial = storage, trial
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
