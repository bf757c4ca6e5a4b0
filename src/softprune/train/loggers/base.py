"""What the values of a run are called in a logger: one rule for all of them.

    train/loss, train/lr                       a logged step
    epoch/accuracy, epoch/sparsity, ...        an epoch
    density/conv1.weight, alpha/conv1.weight   a tensor, by column of layers.csv

The last part is the key of metrics.jsonl, or the tensor.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from softprune.records import parse_json, read_text, require_format, write_text
from softprune.train.observer import Beginning, Ending, Observer, Progress, Row, Silent, StopRun

_GROUPS = {"step": "train", "epoch": "epoch"}
_PLACES = ("kind", "epoch", "step", "name")  # they say where a value belongs, and are none themselves


def metric_scalars(metrics: Row) -> dict[str, float]:
    """The values of a line of metrics.jsonl."""
    group = _GROUPS[str(metrics["kind"])]
    return {f"{group}/{key}": value for key, value in _values(metrics)}


def layer_scalars(rows: Sequence[Row]) -> dict[str, float]:
    """The values of the lines of an epoch in layers.csv."""
    return {f"{key}/{row['name']}": value for row in rows for key, value in _values(row)}


def _values(row: Row) -> list[tuple[str, float]]:
    # NaN and infinity are left out: each service has its own idea of them, from a refusal to the largest number.
    numbers = [(key, float(value)) for key, value in row.items() if key not in _PLACES]
    return [(key, value) for key, value in numbers if math.isfinite(value)]


# A run as a service knows it, which cannot forget what it was told.


FORMAT, VERSION = "softprune-service-run", 1


class ServiceRun:
    """Which run of a service belongs to a run folder, and which lines of metrics.jsonl it has.

    A continued run logs again what came after its checkpoint, the same values bit for bit. Lines that the service has
    are passed over, so that each is there once.

    Args:
        file: in the run folder, where this is remembered.
        beginning: of the run, or of its continuation.
    """

    def __init__(self, file: Path, beginning: Beginning) -> None:
        self._file = file
        self.id: str | None = None
        self.line = beginning.kept
        self._sent = 0
        if file.is_file():
            remembered = parse_json(read_text(file), str(file))
            require_format(remembered, FORMAT, version=VERSION, origin=str(file))
            self.id = remembered["id"]
            self._sent = max(beginning.logged, remembered["sent"])

    def remember(self, run_id: str) -> None:
        """Write down the run's id in the service. Once is enough: lines that follow are counted by metrics.jsonl."""
        self.id = run_id
        facts = {"format": FORMAT, "version": VERSION, "id": run_id, "sent": self._sent}
        write_text(self._file, json.dumps(facts, indent=2) + "\n")

    def is_news(self) -> bool:
        """Count the next line; whether the service does not have it yet."""
        self.line += 1
        return self.line > self._sent


# What loggers to a service have in common.


class ServiceLogger(Silent):
    """Sends every line of metrics.jsonl once, those of an epoch with the values of its layers.

    A subclass sets `_service` when the run begins.
    """

    _service: ServiceRun

    def __init__(self) -> None:
        self._layers: dict[str, float] = {}

    def on_layers(self, rows: Sequence[Row]) -> None:
        self._layers = layer_scalars(rows)

    def on_metrics(self, metrics: Row) -> None:
        values = metric_scalars(metrics)
        if metrics["kind"] == "epoch":
            values, self._layers = {**values, **self._layers}, {}
        if self._service.is_news():
            self._send(metrics, values)

    @abstractmethod
    def _send(self, metrics: Row, values: Mapping[str, float]) -> None:
        """Tell the service the values of one line."""


# All who watch a run, as one observer.


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
