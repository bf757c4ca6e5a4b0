"""Random numbers without a state: each is a pure function of (seed, epoch, sample index, purpose).

A generator with a state gives a sample other numbers when the batch, the number of worker processes or of ranks
changes. Here a number depends on what it is for and on nothing else. The function is SplitMix64: position i of the
stream that starts at k is

    mix(k + (i + 1) * GAMMA)

with 64-bit arithmetic that wraps. Seed, epoch and purpose are absorbed one after the other, each as the position in
the stream that starts at the value before; the last position is the sample index, for a whole tensor at once.

Reference: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import torch
from torch import Tensor


class Purpose(IntEnum):
    """What a number is for. The values are part of every result: new purposes get new numbers, none is reused."""

    ORDER = 0
    ROW = 1
    COLUMN = 2
    FLIP = 3
    LOADER = 4
    NOISE = 5
    PLACE = 6
    VOLUME = 7
    AXIS_HEIGHT = 8
    AXIS_TURN = 9
    ANGLE = 10
    MOMENT = 11
    CROP_AREA = 100  # to 109, one for each attempt
    CROP_RATIO = 200  # to 209


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MULTIPLIERS = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def _step(position: int) -> int:
    """How far the stream is at a position: (position + 1) * GAMMA, wrapped."""
    return _signed((position + 1) * _GAMMA)


def _shifted(x: Tensor, by: int) -> Tensor:
    # torch shifts int64 with its sign; SplitMix64 shifts zeros in.
    return (x >> by) & (2 ** (64 - by) - 1)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of int64 in which every input bit reaches every output bit."""
    x = (x ^ _shifted(x, 30)) * _MULTIPLIERS[0]
    x = (x ^ _shifted(x, 27)) * _MULTIPLIERS[1]
    return x ^ _shifted(x, 31)


@dataclass(frozen=True)
class Draws:
    """The random numbers of one epoch.

    Args:
        seed: any integer.
        epoch: any integer.

    Example:
        >>> draws = Draws(seed=0, epoch=3)
        >>> few, more = torch.tensor([7]), torch.tensor([5, 6, 7])
        >>> bool(draws.floats(few, Purpose.FLIP) == draws.floats(more, Purpose.FLIP)[2])
        True
    """

    seed: int
    epoch: int

    @cached_property
    def _key(self) -> Tensor:
        key = torch.zeros((), dtype=torch.int64)
        for value in (self.seed, self.epoch):
            key = mix(key + _step(value))
        return key

    def bits(self, indices: Tensor, purpose: int) -> Tensor:
        """64 random bits for each index, as int64 of the same shape."""
        key = mix(self._key + _step(purpose))
        return mix(key + (indices + 1) * _GAMMA)

    def floats(self, indices: Tensor, purpose: int) -> Tensor:
        """Uniform in [0, 1), float64, multiples of 2^-53."""
        return _shifted(self.bits(indices, purpose), 11).double() * 2.0**-53

    def integers(self, indices: Tensor, purpose: int, *, below: int) -> Tensor:
        """Uniform in 0 to ``below - 1``, int64; ``below`` is at most 2^31, where the bias is under 2^-31."""
        return (_shifted(self.bits(indices, purpose), 32) * below) >> 32

    def order(self, count: int) -> Tensor:
        """A permutation of 0 to ``count - 1``: the indices sorted by their random bits."""
        return self.bits(torch.arange(count), Purpose.ORDER).argsort(stable=True)
