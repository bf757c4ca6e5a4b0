"""Whoever watches a run: a progress bar, plain lines, a logger, something of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from softprune.train.config import RunConfig

Row = Mapping[str, float | int | str]
Ending = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class Beginning:
    """A run as it begins, or goes on.

    Attributes:
        folder: the run folder; an observer may keep a file of its own there.
        config: of the run.
        step: steps that are done: 0, or where the run is continued. What was seen after it will come again.
        kept: lines of metrics.jsonl up to that step.
        logged: lines that there were before the others were forgotten.
    """

    folder: Path
    config: RunConfig
    step: int
    kept: int
    logged: int


@dataclass(frozen=True)
class Progress:
    """Where a run stands; shown after each step."""

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


class Observer(Protocol):
    """Sees a run; may stop it with `StopRun`, but not change it. Only the first process calls it."""

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


class Silent:
    """An observer that looks away; a base for those that want some of what there is to see."""

    def on_begin(self, beginning: Beginning) -> None:
        """Nothing."""

    def on_step(self, progress: Progress) -> None:
        """Nothing."""

    def on_layers(self, rows: Sequence[Row]) -> None:
        """Nothing."""

    def on_metrics(self, metrics: Row) -> None:
        """Nothing."""

    def on_note(self, text: str) -> None:
        """Nothing."""

    def on_end(self, ending: Ending) -> None:
        """Nothing."""
