"""The tape: how the constants that channels hold follow from each other, step by step.

It is recorded once. Played with the values of a network it tells what each channel holds; played with other values,
what it would hold.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from softprune.channels.values import Values

Step = Callable[..., Tensor]


class Tape:
    """Steps, each of which makes one vector, in double precision with NaN for what is no constant, of earlier ones."""

    def __init__(self) -> None:
        self._steps: list[tuple[Step, tuple[int, ...]]] = []

    def note(self, step: Step, *given: int) -> int:
        """Add a step that is called with the values and these earlier vectors; its place."""
        self._steps.append((step, given))
        return len(self._steps) - 1

    def unknown(self, count: int) -> int:
        """A vector of channels that hold no constant."""
        nothing = torch.full((count,), torch.nan, dtype=torch.double)
        return self.note(lambda values: nothing)

    def play(self, values: Values) -> list[Tensor]:
        """All vectors, by their places."""
        made: list[Tensor] = []
        for step, given in self._steps:
            made.append(step(values, *[made[place] for place in given]))
        return made
