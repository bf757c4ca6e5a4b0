"""Whoever watches a run: a progress bar, plain lines, TensorBoard, a service of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


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


class Observer(Protocol):
    """Sees a run; must not change it. Only the first process calls it."""

    def on_step(self, progress: Progress) -> None:
        """After every optimizer step."""

    def on_metrics(self, metrics: Mapping[str, float | int | str]) -> None:
        """For every line of metrics.jsonl."""

    def on_note(self, text: str) -> None:
        """For something that a person should read."""


class Silent:
    """An observer that looks away; a base for those that want one of the three."""

    def on_step(self, progress: Progress) -> None:
        """Nothing."""

    def on_metrics(self, metrics: Mapping[str, float | int | str]) -> None:
        """Nothing."""

    def on_note(self, text: str) -> None:
        """Nothing."""
