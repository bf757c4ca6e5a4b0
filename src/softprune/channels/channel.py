"""Channels: which of a network's are one and the same, and which have to stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class Channels:
    """Numbers for channels; those that can only go together are joined, those that must stay are pinned."""

    def __init__(self) -> None:
        self._above: list[int] = []
        self._pins: dict[int, str] = {}

    def fresh(self, count: int) -> list[int]:
        """So many new ones."""
        first = len(self._above)
        self._above.extend(range(first, first + count))
        return list(range(first, first + count))

    def find(self, channel: int) -> int:
        """The one that stands for all that are joined with it."""
        while self._above[channel] != channel:
            self._above[channel] = self._above[self._above[channel]]
            channel = self._above[channel]
        return channel

    def join(self, some: Sequence[int], others: Sequence[int]) -> None:
        """Tell that two lists are of the same channels, in this order."""
        for one, other in zip(some, others, strict=True):
            a, b = self.find(one), self.find(other)
            if a != b:
                self._above[b] = a
                if b in self._pins:
                    self._pins.setdefault(a, self._pins.pop(b))

    def pin(self, channels: Iterable[int], why: str) -> None:
        """Tell that these must stay; the first reason is kept."""
        for channel in channels:
            self._pins.setdefault(self.find(channel), why)

    def pins(self) -> dict[int, str]:
        """Those that must stay, by the one that stands for each, and why."""
        return {self.find(channel): why for channel, why in self._pins.items()}

    @property
    def count(self) -> int:
        """How many numbers were given out."""
        return len(self._above)


@dataclass(frozen=True)
class Flow:
    """What is known of a tensor that flows through the network.

    Args:
        axis: where its channels are.
        channels: the number of each.
        constant: where the tape tells what each holds if that is the same everywhere and for every input, else NaN.
    """

    axis: int
    channels: Sequence[int]
    constant: int


@dataclass(frozen=True)
class Reader:
    """A layer with weights, as it is used at one place.

    Args:
        path: of its module.
        kind: "convolution", "transposed", "linear" or "norm".
        inputs: the channels that it reads; those of a norm are its outputs as well.
        constant: where the tape tells what each of them holds.
        outputs: the channels that it makes.
        groups: of a convolution.
        exact: whether a constant input adds the same to every output position; not so next to padding.
    """

    path: str
    kind: str
    inputs: Sequence[int]
    constant: int
    outputs: Sequence[int]
    groups: int = 1
    exact: bool = True

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == len(self.inputs)
