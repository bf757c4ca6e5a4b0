"""Samples by index: the training or the test half of a data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from softprune.train.data.randomness import Draws
from softprune.train.data.source import Batch

SUBSET = Draws(seed=0, epoch=0)
"""The fixed permutation that subsets are taken from."""


class Samples(Protocol):
    """Anything that knows its labels and can make a batch from indices."""

    labels: Tensor
    """The label of every sample, int64 [n]; their number is the number of samples."""

    def batch(self, indices: Tensor, *, draws: Draws | None) -> Batch:
        """The samples ``indices``, also when there are none; augmented with ``draws``, as they are without."""


class Augment(Protocol):
    """Changes training samples at random."""

    def __call__(self, samples: Tensor, indices: Tensor, /, *, draws: Draws) -> Tensor:
        """The samples with these indices, changed."""


class MemorySamples:
    """Images, or other inputs, that all lie in memory.

    Args:
        images: [n, c, h, w], uint8, or float if they are not normalised; sequences are [n, steps, features].
        labels: int64 [n].
        augment: what is done to training images.
        normalise: what makes floats of them.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        augment: Augment | None = None,
        normalise: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.images = images
        self.labels = labels
        self._augment = augment
        self._normalise = normalise

    def batch(self, indices: Tensor, *, draws: Draws | None) -> Batch:
        images = self.images.index_select(0, indices)
        if self._augment is not None and draws is not None:
            images = self._augment(images, indices, draws=draws)
        return images if self._normalise is None else self._normalise(images), self.labels[indices]


class SubsetSamples:
    """Some of the samples. Each keeps the augmentation it has in the whole set.

    Args:
        samples: the whole set.
        chosen: indices into it.
    """

    def __init__(self, samples: Samples, chosen: Tensor) -> None:
        self.labels = samples.labels[chosen]
        self._samples = samples
        self._chosen = chosen

    def batch(self, indices: Tensor, *, draws: Draws | None) -> Batch:
        return self._samples.batch(self._chosen[indices], draws=draws)


def balanced(labels: Tensor, count: int) -> Tensor:
    """``count`` indices of a fixed permutation with the classes as equal as they can be; fewer are the first of more.

    Each class is queued in the order of the permutation, and the queues take turns.

    Args:
        labels: int64 [n].
        count: 1 to n.
    """
    if not 1 <= count <= len(labels):
        raise ValueError(f"a subset has 1 to {len(labels)} training samples; got {count}")
    order = SUBSET.order(len(labels))
    by_class = order[labels[order].argsort(stable=True)]
    sizes = torch.bincount(labels)
    turn = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return by_class[turn.argsort(stable=True)][:count]
