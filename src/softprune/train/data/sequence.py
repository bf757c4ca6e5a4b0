"""Data sets of sequences: what is held out, and the normalisation of their features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from softprune.train.data.samples import MemorySamples

Held: TypeAlias = Literal["test", "validation"]
"""What a network is tested on: the official test samples, or a part of the training samples kept for choosing."""

# A feature that hardly changes is left as it is, shifted to zero.
_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True)
class Sequences:
    """Sequences of equal length.

    Args:
        values: float32 [n, steps, features].
        labels: int64 [n].
    """

    values: Tensor
    labels: Tensor

    def at(self, chosen: Tensor) -> Sequences:
        """Some of them, by index or mask."""
        return Sequences(self.values[chosen], self.labels[chosen])


def normalised(train: Sequences, test: Sequences) -> tuple[MemorySamples, MemorySamples]:
    """Both with zero mean and unit deviation of every feature at every step, as the training sequences have them.

    Args:
        train: what mean and deviation are taken from; nothing of ``test`` enters them.
        test: treated alike.

    >>> train = Sequences(torch.tensor([[[0.0]], [[4.0]]]), torch.tensor([0, 1]))
    >>> normalised(train, Sequences(torch.tensor([[[6.0]]]), torch.tensor([0])))[1].images
    tensor([[[2.]]])
    """
    mean = train.values.double().mean(0)
    deviation = (train.values.double() - mean).square_().mean(0).sqrt_()
    scale = torch.where(deviation < _LEAST_DEVIATION, 1.0, deviation)
    made = [MemorySamples(((part.values - mean) / scale).float(), part.labels) for part in (train, test)]
    return made[0], made[1]
