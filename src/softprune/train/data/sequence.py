"""Data sets of sequences: what is held out, and the normalisation of their features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

from softprune.train.data.normalisation import Normalisation
from softprune.train.data.samples import Augment, MemorySamples

Held: TypeAlias = Literal["test", "validation"]
"""What a network is tested on: the official test samples, or a part of the training samples kept for choosing."""


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


class NormalisedSamples(MemorySamples):
    """Sequences after a normalisation, and the normalisation.

    Args:
        raw: the sequences before.
        normalisation: what is done to them.
        augment: what is done to training sequences before that.
    """

    def __init__(self, raw: Sequences, normalisation: Normalisation, augment: Augment | None = None) -> None:
        if augment is None:
            super().__init__(normalisation(raw.values), raw.labels)
        else:
            super().__init__(raw.values, raw.labels, augment=augment, normalise=normalisation)
        self.normalisation = normalisation


def normalised(
    train: Sequences, test: Sequences, augment: Augment | None = None
) -> tuple[NormalisedSamples, NormalisedSamples]:
    """Both with zero mean and unit deviation of every feature at every step, as the training sequences have them.

    Args:
        train: what mean and deviation are taken from; nothing of ``test`` enters them.
        test: treated alike.
        augment: what is done to training sequences, before they are normalised.

    >>> import torch
    >>> train = Sequences(torch.tensor([[[0.0]], [[4.0]]]), torch.tensor([0, 1]))
    >>> normalised(train, Sequences(torch.tensor([[[6.0]]]), torch.tensor([0])))[1].images
    tensor([[[2.]]])
    """
    normalisation = Normalisation.of(train.values)
    return NormalisedSamples(train, normalisation, augment), NormalisedSamples(test, normalisation)
