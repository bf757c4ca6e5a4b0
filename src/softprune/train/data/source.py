"""What the training loop asks of a data set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from softprune.train.data.normalisation import Normalisation

Batch = tuple[Tensor, Tensor]
"""Inputs [n, ...] and labels [n], int64."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One pass over the training samples, as one process makes it.

    Args:
        number: which epoch; another one has another order and other augmentations.
        seed: of order and augmentation.
        batch: samples of one step over all ranks.
        rank: which process this is, 0 to ``world - 1``.
        world: how many processes there are.
        start: steps of this epoch that are already done and are skipped.
        drop_last: leave out the last batch if it is not full.
    """

    number: int
    seed: int
    batch: int
    rank: int = 0
    world: int = 1
    start: int = 0
    drop_last: bool = False


class Source(ABC):
    """A data set for training and testing, in any number of processes.

    ``batch`` is always the global batch, the samples of one optimizer step. Each rank gets its share of every global
    batch, so the union over the ranks is what one process would have got, whatever their number. A rank for which a
    last, partial batch has no sample yields an empty batch of the right shape: all ranks take equally many steps.

    Attributes:
        name: what the data set is called.
        classes: how many labels there are, 0 to ``classes - 1``; None where loaders of a user's own do not tell.
        example_shape: the shape of one input with batch 1, such as (1, 3, 32, 32).
        train_size: training samples, over all ranks.
        test_size: test samples, over all ranks.
        normalisation: what was done to raw sequences, for a device that has to do it too; None where nothing was, or
            something else than that.
    """

    name: str
    classes: int | None
    example_shape: tuple[int, ...]
    train_size: int
    test_size: int
    normalisation: Normalisation | None = None

    @abstractmethod
    def steps(self, batch: int, *, drop_last: bool) -> int:
        """Optimizer steps of one epoch.

        Args:
            batch: samples of one step over all ranks.
            drop_last: leave out the last batch if it is not full.
        """

    @abstractmethod
    def train_epoch(self, epoch: Epoch) -> Iterator[Batch]:
        """The training batches of one epoch for one rank, shuffled and augmented."""

    @abstractmethod
    def test_epoch(self, *, batch: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """The test batches for one rank, in a fixed order: over all ranks every test sample exactly once."""
