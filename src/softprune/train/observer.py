"""Whoever watches a run: a progress bar, plain lines, a logger, something of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from softprune.train.config import RunConfig

Row = Mapping[str, float | int | str]
Ending = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class Beginning:
    folder: Path  # of the run; an observer may keep a file of its own there
    config: RunConfig
    step: int  # steps that are done: 0, or where the run is continued; what was seen after it will come again
    kept: int  # lines of metrics.jsonl up to that step
    logged: int  # lines that there were before the others were forgotten


@dataclass(frozen=True)
class Progress:
    step: int
    total_steps: int
    epoch: int
    epochs: int
    loss: float
    accuracy: float | None
    sparsity: float | None
    seconds_left: float | None


class StopRun(Exception):  # noqa: N818 - a wish, not an error
    """Raised by an observer that has seen enough: the run writes a checkpoint and stops, as if a signal had asked."""


class Observer:
    """Sees a run; may stop it with `StopRun`, but not change it. Only the first process calls it.

    Its methods do nothing: derive from it and write those that you want.
    """

    def on_begin(self, beginning: Beginning) -> None:
        """Before the first step, and before the first one after a resume."""

    def on_step(self, progress: Progress) -> None:
        """After every optimizer step."""

    def on_layers(self, rows: Sequence[Row]) -> None:
        """For the lines of an epoch in layers.csv, one for each managed tensor; before the epoch's metrics."""

    def on_metrics(self, metrics: Row) -> None:
        """For every line of metrics.jsonl."""

    def on_note(self, text: str) -> None:
        """For something that a person should read."""

    def on_end(self, ending: Ending) -> None:
        """When the run is over: at its end, stopped so that it can go on, or failed with an error."""


Silent = Observer  # the name under which it is documented


class Fanout(Observer):
    """The observer of a run and its loggers, as one observer.

    What the observer raises ends the run. A logger that cannot begin does too, since nothing is lost yet. Later it does
    not: if a service is out of reach after days of training, the observer is told its name once, and the logger left
    out from then on.
    """

    def __init__(self, observer: Observer, loggers: Mapping[str, Observer]) -> None:
        self._observer, self._loggers = observer, dict(loggers)
        self._begun: dict[str, Observer] = {}
        self._listening: dict[str, Observer] = {}

    def on_begin(self, beginning: Beginning) -> None:
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
        for name, logger in self._begun.items():
            if name not in self._listening:
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
