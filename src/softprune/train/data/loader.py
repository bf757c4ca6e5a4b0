"""A source made of the user's own loaders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from softprune.train.data.augment import Draws, Purpose
from softprune.train.data.source import Batch, Epoch, Source


class LoaderSource(Source):
    """Two loaders, iterated anew every epoch. Order, batch size and augmentation are the loaders' own.

    What the caller of an epoch asks for is checked where a loader can tell: its batch size times the number of ranks
    is the global batch. A sampler with ``set_epoch`` is told the epoch. Before an epoch torch's generator is seeded
    from seed and epoch. Skipped steps are read and thrown away. With more than one rank the samplers must give each
    its own share, as torch's DistributedSampler does.

    Args:
        train_loader: a DataLoader, or anything with a length that can be iterated again and again.
        test_loader: likewise.
        name: what the data set is called.
        classes: how many labels there are; by default as many as ``train_loader.dataset.classes`` has, if there are.
        example_shape: one input with batch 1; by default from the first training batch.
        train_size: training samples; by default the length of the loader's data set.
        test_size: likewise.

    Example:
        >>> batches = [(torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))]
        >>> source = LoaderSource(batches, batches, classes=10)
        >>> source.example_shape, source.train_size
        ((1, 1, 8, 8), 4)
    """

    def __init__(
        self,
        train_loader: Iterable[Any],
        test_loader: Iterable[Any],
        *,
        name: str = "loaders",
        classes: int | None = None,
        example_shape: tuple[int, ...] | None = None,
        train_size: int | None = None,
        test_size: int | None = None,
    ) -> None:
        for loader in (train_loader, test_loader):
            if isinstance(loader, Iterator):
                raise TypeError(f"a {type(loader).__name__} is used up after one epoch: give what it is made from")
        self.name = name
        names = getattr(getattr(train_loader, "dataset", None), "classes", None)
        self.classes = len(names) if classes is None and names is not None else classes
        self.example_shape = _example_shape(train_loader) if example_shape is None else example_shape
        self.train_size = _size(train_loader, "train_size") if train_size is None else train_size
        self.test_size = _size(test_loader, "test_size") if test_size is None else test_size
        self._train = train_loader
        self._test = test_loader

    def steps(self, batch: int, *, drop_last: bool) -> int:
        """The length of the training loader, which has its own ``batch`` and ``drop_last``."""
        try:
            return len(self._train)  # type: ignore[arg-type]
        except TypeError as error:
            raise ValueError("the training loader has no length: give it a __len__, the steps of one epoch") from error

    def train_epoch(self, epoch: Epoch) -> Iterator[Batch]:
        _check_share(self._train, epoch.world)
        size = getattr(self._train, "batch_size", None)
        if isinstance(size, int) and size * epoch.world != epoch.batch:
            raise ValueError(
                f"the loader's batches of {size} on {epoch.world} ranks are not the global batch of {epoch.batch}"
            )
        steps = self.steps(epoch.batch, drop_last=epoch.drop_last)
        if not 0 <= epoch.start <= steps:
            raise ValueError(f"{self.name}: an epoch has {steps} steps; cannot start at {epoch.start}")
        return self._iterate(Draws(epoch.seed, epoch.number), epoch.start)

    def test_epoch(self, *, batch: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        _check_share(self._test, world)
        return (_pair(item) for item in self._test)

    def _iterate(self, draws: Draws, start: int) -> Iterator[Batch]:
        for part in (self._train, getattr(self._train, "sampler", None), getattr(self._train, "batch_sampler", None)):
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(draws.epoch)
        # The same on all ranks: a sampler that shuffles with torch's generator shuffles alike before it shares out.
        torch.manual_seed(int(draws.integers(torch.zeros((), dtype=torch.int64), Purpose.LOADER, below=2**31)))
        yield from map(_pair, islice(self._train, start, None))


def _pair(item: Any) -> Batch:
    if isinstance(item, Sequence) and len(item) == 2 and isinstance(item[0], Tensor) and isinstance(item[1], Tensor):
        return item[0], item[1]
    raise TypeError(f"a loader must give (inputs, labels), both tensors; it gave a {type(item).__name__}")


def _example_shape(loader: Iterable[Any]) -> tuple[int, ...]:
    with torch.random.fork_rng(devices=[]):  # looking must not change what comes later
        item = next(iter(loader), None)
    if item is None:
        raise ValueError("the training loader is empty")
    return (1, *_pair(item)[0].shape[1:])


def _size(loader: Iterable[Any], keyword: str) -> int:
    if isinstance(loader, Sequence):
        return sum(len(_pair(item)[1]) for item in loader)
    try:
        return len(loader.dataset)  # type: ignore[attr-defined]
    except (AttributeError, TypeError) as error:
        raise ValueError(f"cannot tell how many samples there are: LoaderSource(train, test, {keyword}=...)") from error


def _check_share(loader: Iterable[Any], world: int) -> None:
    if world == 1 or not isinstance(loader, DataLoader):
        return
    if type(loader.batch_sampler) is BatchSampler and type(loader.sampler) in (RandomSampler, SequentialSampler):
        raise ValueError(
            f"each of {world} ranks would get all samples: give the loader a sampler that shares them out, "
            "such as torch.utils.data.DistributedSampler"
        )
