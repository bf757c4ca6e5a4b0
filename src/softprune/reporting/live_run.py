"""A run that goes on: its files, read as they grow."""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from softprune.budget.units import UnitWords, unit_words
from softprune.records import CONFIG, LAYERS, METRICS, RESULT, require_regular
from softprune.reporting.labels import configured_units, goal_text, label, name_of, part
from softprune.reporting.reading import known, read_object

MOST_BYTES = 16 << 20  # read at once, so that a file of gigabytes does not fill the memory
HISTORY = 400  # points that are kept of a curve; more would not be seen
MOST_EPOCHS = 1e9  # more are a mistake
RECENT = 20  # logged steps that the speed is taken from


class Tail:
    """The whole lines of a file that may grow, appear later, or be replaced by a shorter one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.behind = False  # whether the last read has left something for the next one
        self._place = 0
        self._file: tuple[int, int] | None = None
        self._part = b""

    def read(self) -> tuple[list[str], bool]:
        """Lines added since the last read, without their ends, and whether they are the first of a replaced file."""
        try:
            require_regular(self.path)
            with self.path.open("rb") as file:
                facts = os.fstat(file.fileno())
                identity = (facts.st_dev, facts.st_ino)
                anew = self._file is not None and (identity != self._file or facts.st_size < self._place)
                if anew:
                    self._place, self._part = 0, b""
                self._file = identity
                file.seek(self._place)
                data = file.read(MOST_BYTES)
        except (OSError, ValueError):  # not there yet, just being replaced, or no file: the next look tells
            self.behind = False
            return [], False
        self.behind = len(data) == MOST_BYTES
        self._place += len(data)
        *lines, self._part = (self._part + data).split(b"\n")
        return [line.decode("utf-8", errors="replace").rstrip("\r") for line in lines], anew


class WatchedRun:
    """A run folder while it is written; `look` reads what was added since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Mapping[str, Any] = {}  # empty before its file is there, as is the result
        self.result: Mapping[str, Any] = {}
        self._metrics, self._table = Tail(path / METRICS), Tail(path / LAYERS)
        self._forget_metrics()
        self._forget_layers()

    def look(self) -> None:
        if not self.config:
            self.config = read_object(self.path / CONFIG, [], optional=True)
        if not self.result:
            self.result = read_object(self.path / RESULT, [], optional=True)
        # The metrics after the result: a run that is finished has written them before.
        self._read(self._metrics, self._forget_metrics, self._add_metrics)
        self._read(self._table, self._forget_layers, self._add_layers)

    def _read(self, tail: Tail, forget: Callable[[], None], add: Callable[[Sequence[str]], None]) -> None:
        while True:
            lines, anew = tail.read()
            if anew:  # the run was continued from a checkpoint and has forgotten what came after it
                forget()
            add(lines)
            if not tail.behind:
                return

    @property
    def finished(self) -> bool:
        return bool(self.result)

    @property
    def title(self) -> str:
        words = [label(self.config), name_of(self.config, "model"), name_of(self.config, "data")]
        return "  ".join([self.path.resolve().name, *(word for word in words if word and self.config)])

    @property
    def words(self) -> UnitWords:
        """The words for what is kept or pruned as a whole."""
        return unit_words(configured_units(self.config))

    @property
    def goal(self) -> str:
        return goal_text(self.config)

    @property
    def goal_sparsity(self) -> float | None:
        """The sparsity of the goal; None if the goal is of another kind."""
        goal = part(self.config, "goal")
        return known(goal.get("sparsity")) if goal.get("scope", "managed") == "managed" else None

    @property
    def epochs(self) -> int | None:
        found = known(self.config.get("epochs"))
        return None if found is None or found > MOST_EPOCHS else max(1, round(found))

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run: exact after an evaluation, before that estimated; None while it is unknown."""
        if self.epochs is None or self.per_epoch is None:
            return None
        return max(self.step, round(self.epochs * self.per_epoch))

    @property
    def per_epoch(self) -> float | None:
        if self._exact is not None:
            return self._exact
        return (self._low + self._high) / 2 if math.isfinite(self._high) else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the speed of the last logged steps; None while it is unknown."""
        total = self.total_steps
        if total is None or len(self._times) < 2:
            return None
        (first, began), (last, ended) = self._times[0], self._times[-1]
        return (total - self.step) * max(0.0, ended - began) / (last - first) if last > first else None

    @property
    def quiet_seconds(self) -> float | None:
        """Seconds since the run last wrote its metrics; None if it has not."""
        try:
            return max(0.0, time.time() - (self.path / METRICS).stat().st_mtime)
        except OSError:
            return None

    def _forget_metrics(self) -> None:
        self.step, self.epoch, self.seconds = 0, 0, 0.0
        self.rate: float | None = None
        self.macs: float | None = None
        self.losses: deque[float] = deque(maxlen=HISTORY)  # of logged steps; the others of epochs
        self.accuracies: deque[float] = deque(maxlen=HISTORY)
        self.sparsities: deque[float] = deque(maxlen=HISTORY)  # of all managed weights or other units
        self._times: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._exact: float | None = None
        # A step in the n-th epoch bounds the steps of an epoch from below and from above.
        self._low, self._high = 1.0, math.inf

    def _forget_layers(self) -> None:
        self.layers: dict[str, Mapping[str, str]] = {}  # the last row of every tensor, by name
        self.densities: dict[str, deque[float]] = {}  # of every tensor, by epoch
        self._columns: Sequence[str] = ()

    def _add_metrics(self, lines: Sequence[str]) -> None:
        for line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(row, dict) or (step := known(row.get("step"))) is None:
                continue
            epoch = known(row.get("epoch")) or 0.0
            if step < 0 or epoch < 0:
                continue
            self.step, self.epoch = int(step), int(epoch)
            self.seconds = known(row.get("seconds")) or self.seconds
            self.rate = known(row.get("lr")) if "lr" in row else self.rate
            self.macs = known(row.get("macs")) if "macs" in row else self.macs
            self._times.append((self.step, self.seconds))
            for key, curve in (("loss", self.losses), ("accuracy", self.accuracies), ("sparsity", self.sparsities)):
                if (value := known(row.get(key))) is not None:
                    curve.append(value)
            if row.get("kind") == "epoch":
                self._exact = step / (epoch + 1)
            self._low = max(self._low, step / (epoch + 1))
            if epoch > 0:
                self._high = min(self._high, step / epoch)

    def _add_layers(self, lines: Sequence[str]) -> None:
        # A NUL is refused by the csv module of older Pythons, and in no name.
        rows = csv.reader(line.replace("\0", "\ufffd") for line in lines)
        while True:
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error:  # a cell longer than any name
                continue
            self._columns = self._columns or cells
            if cells is self._columns or len(cells) != len(self._columns):
                continue
            row = dict(zip(self._columns, cells, strict=True))
            self.layers[row.get("name", "")] = row
            if (density := known(row.get("density"))) is not None:
                self.densities.setdefault(row.get("name", ""), deque(maxlen=HISTORY)).append(density)
