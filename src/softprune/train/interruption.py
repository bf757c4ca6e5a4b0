"""Stopping cleanly: a signal asks, the loop decides when."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """Remembers SIGINT and SIGTERM while it is entered, so that the loop can finish its step and checkpoint.

    A second SIGINT interrupts at once, as people expect of Ctrl-C.
    """

    def __init__(self) -> None:
        self.asked_by: str | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        # Python lets only the main thread set handlers; elsewhere (a notebook's worker) signals go where they went.
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM):
                self._previous[kind] = signal.signal(kind, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
            # What came too late to stop this one is not lost on the one around it.
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, Interruption):
                outer.asked_by = outer.asked_by or self.asked_by

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked_by is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked_by = signal.Signals(number).name
