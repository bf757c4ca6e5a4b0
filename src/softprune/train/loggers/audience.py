"""All who watch a run, as one observer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from softprune.train.observer import Beginning, Ending, Observer, Progress, Row, StopRun


class Audience:
    """The observer of a run, and its loggers.

    What the observer raises ends the run. A logger that cannot begin does too, since nothing is lost yet. Later it does
    not: if a service is out of reach after days of training, this is told once, and the logger left out from then on.

    Args:
        observer: who is told about loggers that fail.
        loggers: by the name to tell.
    """

    def __init__(self, observer: Observer, loggers: Mapping[str, Observer]) -> None:
        self._observer = observer
        self._loggers = dict(loggers)
        self._begun: dict[str, Observer] = {}
        self._listening: dict[str, Observer] = {}

    def on_begin(self, beginning: Beginning) -> None:
        """Let everyone begin.

        Raises:
            ValueError: if a logger cannot, with its reason.
        """
        for name, logger in self._loggers.items():
            self._begun[name] = logger
            try:
                logger.on_begin(beginning)
            except Exception as error:
                raise ValueError(f"log.{name} could not begin: {error}") from error
        self._listening = dict(self._begun)
        self._observer.on_begin(beginning)

    def on_step(self, progress: Progress) -> None:
        self._tell(lambda watcher: watcher.on_step(progress))

    def on_layers(self, rows: Sequence[Row]) -> None:
        self._tell(lambda watcher: watcher.on_layers(rows))

    def on_metrics(self, metrics: Row) -> None:
        self._tell(lambda watcher: watcher.on_metrics(metrics))

    def on_note(self, text: str) -> None:
        self._tell(lambda watcher: watcher.on_note(text))

    def on_end(self, ending: Ending) -> None:
        # Also for those that have failed: what they hold open would otherwise be in the way of the next run.
        failed = {name: logger for name, logger in self._begun.items() if name not in self._listening}
        for logger in failed.values():
            with suppress(Exception):  # told when it failed first
                logger.on_end(ending)
        self._tell(lambda watcher: watcher.on_end(ending))

    def _tell(self, see: Callable[[Observer], None]) -> None:
        wish: StopRun | None = None
        for name, logger in list(self._listening.items()):
            try:
                see(logger)
            except StopRun as stop:
                wish = stop
            except Exception as error:
                del self._listening[name]
                problem = f"{type(error).__name__}: {error}"
                self._observer.on_note(f"log.{name} has failed and is left out; the run goes on ({problem})")
        see(self._observer)
        if wish is not None:
            raise wish
