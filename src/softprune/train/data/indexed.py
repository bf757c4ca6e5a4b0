"""The source for everything that can make a batch from indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from softprune.train.data.normalisation import Normalisation
from softprune.train.data.randomness import Draws
from softprune.train.data.samples import Samples
from softprune.train.data.source import Batch, Epoch, Source


class IndexedSource(Source):
    """Two sets of samples, in an order that is a pure function of seed and epoch.

    Of a global batch, rank r takes the samples r, r + world, r + 2 world and so on. Steps that are skipped are never
    read.

    Args:
        name: what the data set is called.
        train: the training samples.
        test: the test samples.
        classes: how many labels there are.
        example_shape: one input with batch 1.
        workers: processes that make the batches; 0 makes them in this one. The batches are the same.
        normalisation: what was done to sequences.
    """

    def __init__(
        self,
        name: str,
        *,
        train: Samples,
        test: Samples,
        classes: int,
        example_shape: tuple[int, ...],
        workers: int = 0,
        normalisation: Normalisation | None = None,
    ) -> None:
        self.name = name
        self.classes = classes
        self.example_shape = example_shape
        self.train_size = len(train.labels)
        self.test_size = len(test.labels)
        self.normalisation = normalisation
        self._train = train
        self._test = test
        self._workers = workers

    def steps(self, batch: int, *, drop_last: bool) -> int:
        if batch < 1:
            raise ValueError(f"a batch has at least one sample; got {batch}")
        steps = self.train_size // batch if drop_last else -(-self.train_size // batch)
        if steps == 0:
            raise ValueError(f"{self.name}: no batch of {batch} is full with {self.train_size} training samples")
        return steps

    def train_epoch(self, epoch: Epoch) -> Iterator[Batch]:
        steps = self.steps(epoch.batch, drop_last=epoch.drop_last)
        if not 0 <= epoch.start <= steps:
            raise ValueError(f"{self.name}: an epoch has {steps} steps of {epoch.batch}; cannot start at {epoch.start}")
        draws = Draws(epoch.seed, epoch.number)
        shares = share(draws.order(self.train_size), epoch.batch, rank=epoch.rank, world=epoch.world)
        return self._batches(self._train, shares[epoch.start : steps], draws)

    def test_epoch(self, *, batch: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        return self._batches(self._test, share(torch.arange(self.test_size), batch, rank=rank, world=world), None)

    def _batches(self, samples: Samples, shares: list[Tensor], draws: Draws | None) -> Iterator[Batch]:
        if self._workers == 0:
            return (samples.batch(indices, draws=draws) for indices in shares)
        return iter(
            DataLoader(
                _WholeBatches(samples, draws),
                batch_size=None,  # each item the sampler yields is a whole batch, and may be an empty one
                sampler=[indices.tolist() for indices in shares],
                collate_fn=_as_it_is,
                num_workers=self._workers,
                # Its own generator, or starting the workers would draw from the one that the model uses.
                generator=torch.Generator(),
            )
        )


def share(order: Tensor, batch: int, *, rank: int, world: int) -> list[Tensor]:
    """The indices that one rank has of every global batch.

    Example:
        >>> [indices.tolist() for indices in share(torch.arange(5), 4, rank=1, world=2)]
        [[1, 3], []]
    """
    if batch < 1:
        raise ValueError(f"a batch has at least one sample; got {batch}")
    if not 0 <= rank < world:
        raise ValueError(f"the rank of one of {world} processes is 0 to {world - 1}; got {rank}")
    return [indices[rank::world] for indices in order.split(batch)]


class _WholeBatches(Dataset[Batch]):
    """What the worker processes hold: an item is a batch."""

    def __init__(self, samples: Samples, draws: Draws | None) -> None:
        self._samples = samples
        self._draws = draws

    def __getitem__(self, indices: list[int]) -> Batch:
        return self._samples.batch(torch.tensor(indices, dtype=torch.int64), draws=self._draws)


def _as_it_is(batch: Any) -> Any:
    return batch
