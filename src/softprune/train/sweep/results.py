"""The results of a sweep in files that need no Optuna: trials.csv and best.json."""

from __future__ import annotations

import csv
import io
import json
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from softprune.records import write_text
from softprune.train.sweep.study import FOLDER, HOST, Slot, State
from softprune.train.sweep.sweep import Sweep
from softprune.train.sweep.sweep_config import COUNTS, DIRECTIONS, costs

FORMAT, VERSION = "softprune-sweep", 1
TABLE, BEST = "trials.csv", "best.json"


@dataclass(frozen=True)
class TrialResult:
    """What became of a trial so far."""

    number: int  # also names its folder
    state: State
    params: dict[str, Any]  # the values it has; empty until they are chosen
    objectives: dict[str, float]  # by name; empty unless it is complete
    attempts: int  # how often it was begun or continued
    folder: str  # its run folder, relative to the sweep folder; with the machine in front if it is not below it
    reason: str  # why it failed


@dataclass(frozen=True)
class Results:
    """All trials of a sweep at one moment."""

    sweep: Sweep
    trials: tuple[TrialResult, ...]  # by number

    @classmethod
    def of(cls, sweep: Sweep, slots: Sequence[Slot], folder: Path) -> Results:
        """The results that the slots of a study hold, seen from this sweep folder."""
        return cls(sweep, tuple(_result(sweep, slot, folder) for slot in slots))

    @property
    def counts(self) -> Counter[State]:
        return Counter(trial.state for trial in self.trials)

    @property
    def ended(self) -> int:
        """How many trials need no more work."""
        return len(self.trials) - self.counts["waiting"] - self.counts["running"]

    @cached_property
    def best(self) -> list[TrialResult]:
        """The trials that no other beats: for one objective the best, for two the Pareto set in order of the first.

        Where several are equal in one objective, the first trial.
        """
        names = self.sweep.config.objectives
        complete = [(costs(t.objectives, names), t.number) for t in self.trials if t.state == "complete"]
        front: list[tuple[tuple[float, ...], int]] = []
        # From the best of the first objective on, one is beaten unless it is better in the last one than all before.
        for cost, number in sorted(complete):
            if not front or cost[-1] < front[-1][0][-1] or (len(names) > 1 and cost == front[-1][0]):
                front.append((cost, number))
        return [self.trials[number] for _, number in front]

    def write(self, folder: Path) -> None:
        """Write both files, each as a whole."""
        config, text = self.sweep.config, io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["number", "state", *config.search, *config.objectives, "attempts", "folder", "reason"])
        for t in self.trials:
            params = [_cell(t.params[key]) if key in t.params else "" for key in config.search]
            objectives = [t.objectives.get(name, "") for name in config.objectives]
            writer.writerow([t.number, t.state, *params, *objectives, t.attempts, t.folder, t.reason])
        best = ("number", "params", "objectives", "folder")
        summary = {
            "format": FORMAT,
            "version": VERSION,
            "name": config.name,
            "objectives": {name: DIRECTIONS[name] for name in config.objectives},
            "trials": dict(self.counts),
            "best": [{key: getattr(trial, key) for key in best} for trial in self.best],
        }
        write_text(folder / TABLE, text.getvalue())
        write_text(folder / BEST, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def _result(sweep: Sweep, slot: Slot, folder: Path) -> TrialResult:
    values = slot.last.values if slot.state == "complete" else []
    begun = [attempt.user_attrs for attempt in slot.attempts if FOLDER in attempt.user_attrs]
    return TrialResult(
        number=slot.number,
        state=slot.state,
        params=sweep.space.chosen(slot.last.params),
        objectives={
            name: int(value) if name in COUNTS else value
            for name, value in zip(sweep.config.objectives, values, strict=False)
        },
        attempts=len(begun),
        folder=_shown_folder(begun[-1], folder) if begun else "",
        reason=slot.reason,
    )


def _shown_folder(attributes: dict[str, Any], folder: Path) -> str:
    path, here = Path(attributes[FOLDER]), folder.resolve()
    if path.is_relative_to(here):
        return path.relative_to(here).as_posix()
    return str(path) if attributes[HOST] == socket.gethostname() else f"{attributes[HOST]}:{path}"


def _cell(value: Any) -> Any:
    return value if isinstance(value, str | float | int) and not isinstance(value, bool) else json.dumps(value)
