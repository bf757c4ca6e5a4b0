"""Data sets as a training loop meets them: epochs of batches, whose order and augmentation are pure functions of seed,
epoch and sample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from softprune.train.data.augment import Draws, Purpose

Batch = tuple[Tensor, Tensor]  # inputs [n, ...] and labels [n], int64
# What a network is tested on: the official test samples, or a part of the training samples kept for choosing.
Held: TypeAlias = Literal["test", "validation"]
_LEAST_DEVIATION = 1e-6  # a feature that varies less is shifted to zero and not scaled


@dataclass(frozen=True, eq=False)
class Normalisation:
    """What makes raw sequences what a network is trained on: (values - mean) / scale, float64 [steps, features]."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Normalisation:
        """To zero mean and unit deviation of every feature at every step."""
        mean = values.double().mean(0)
        deviation = (values.double() - mean).square_().mean(0).sqrt_()
        return cls(mean, torch.where(deviation < _LEAST_DEVIATION, 1.0, deviation))

    def __call__(self, values: Tensor) -> Tensor:
        """Sequences [n, steps, features], as float32."""
        return ((values - self.mean) / self.scale).float()

    def over_steps(self) -> Normalisation:
        """The same numbers [features] for all steps: mean and deviation of the values of all steps together.

        >>> both = Normalisation(torch.tensor([[1.0], [9.0]]), torch.tensor([[3.0], [3.0]])).over_steps()
        >>> both.mean, both.scale
        (tensor([5.]), tensor([5.]))
        """
        mean = self.mean.mean(0)
        return Normalisation(mean, (self.scale.square() + (self.mean - mean).square()).mean(0).sqrt())


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One pass over the training samples, as one of ``world`` processes makes it."""

    number: int  # which epoch; another one has another order and other augmentations
    seed: int  # of order and augmentation
    batch: int  # samples of one step over all ranks
    rank: int = 0  # which process this is, 0 to ``world - 1``
    world: int = 1  # how many processes there are
    start: int = 0  # steps of this epoch that are already done and are skipped
    drop_last: bool = False  # leave out the last batch if it is not full


class Source(ABC):
    """A data set for training and testing, in any number of processes.

    ``batch`` is always the global batch, the samples of one optimizer step. Each rank gets its share of every global
    batch, so the union over the ranks is what one process would have got, whatever their number. A rank for which a
    last, partial batch has no sample yields an empty batch of the right shape: all ranks take equally many steps.
    """

    name: str
    classes: int | None  # labels are 0 to classes - 1; None where a user's own loaders do not tell
    example_shape: tuple[int, ...]  # of one input with batch 1, such as (1, 3, 32, 32)
    train_size: int  # samples over all ranks
    test_size: int
    normalisation: Normalisation | None = None  # what was done to raw sequences, if a device has to do it too

    @abstractmethod
    def steps(self, batch: int, *, drop_last: bool) -> int:
        """Optimizer steps of one epoch; with ``drop_last`` without a last batch that is not full."""

    @abstractmethod
    def train_epoch(self, epoch: Epoch) -> Iterator[Batch]:
        """The training batches of one epoch for one rank, shuffled and augmented."""

    @abstractmethod
    def test_epoch(self, *, batch: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """The test batches for one rank, in a fixed order: over all ranks every test sample exactly once."""


class Samples(Protocol):
    """The training or the test half of a data set, which makes a batch from indices."""

    labels: Tensor  # int64 [n]
    normalisation: Normalisation | None  # what was done to raw sequences

    def batch(self, indices: Tensor, *, draws: Draws | None) -> Batch:
        """The samples ``indices``, of which there may be none; augmented with ``draws``, unchanged without."""


class Augment(Protocol):
    """Changes training samples, of which it is told the indices, at random."""

    def __call__(self, samples: Tensor, indices: Tensor, /, *, draws: Draws) -> Tensor: ...


class MemorySamples:
    """Samples that all lie in memory; they are augmented first and normalised then.

    Images are [n, c, h, w], uint8, or float if they are not normalised; sequences are [n, steps, features].
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        augment: Augment | None = None,
        normalise: Callable[[Tensor], Tensor] | None = None,
        normalisation: Normalisation | None = None,
    ) -> None:
        self.images, self.labels = images, labels
        self.normalisation = normalisation  # what was or is done to raw sequences
        self._augment, self._normalise = augment, normalise

    def batch(self, indices: Tensor, *, draws: Draws | None) -> Batch:
        images = self.images.index_select(0, indices)
        if self._augment is not None and draws is not None:
            images = self._augment(images, indices, draws=draws)
        return images if self._normalise is None else self._normalise(images), self.labels[indices]


class SubsetSamples:
    """The samples with the indices ``chosen``. Each keeps the augmentation it has in the whole set."""

    def __init__(self, samples: Samples, chosen: Tensor) -> None:
        self.labels = samples.labels[chosen]
        self.normalisation = samples.normalisation
        self._samples, self._chosen = samples, chosen

    def batch(self, indices: Tensor, *, draws: Draws | None) -> Batch:
        return self._samples.batch(self._chosen[indices], draws=draws)


def balanced(labels: Tensor, count: int) -> Tensor:
    """``count`` indices of a fixed permutation with the classes as equal as they can be; fewer are the first of more.

    Each class is queued in the order of the permutation, and the queues take turns.
    """
    if not 1 <= count <= len(labels):
        raise ValueError(f"a subset has 1 to {len(labels)} training samples; got {count}")
    order = Draws(seed=0, epoch=0).order(len(labels))
    by_class = order[labels[order].argsort(stable=True)]
    sizes = torch.bincount(labels)
    turn = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return by_class[turn.argsort(stable=True)][:count]


class IndexedSource(Source):
    """Two sets of samples, in an order that is a pure function of seed and epoch.

    Of a global batch, rank r takes the samples r, r + world, r + 2 world and so on. Steps that are skipped are never
    read. ``workers`` processes make the batches, with 0 this one does; the batches are the same.
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
    ) -> None:
        self.name = name
        self.classes = classes
        self.example_shape = example_shape
        self.train_size, self.test_size = len(train.labels), len(test.labels)
        self.normalisation = train.normalisation
        self._train, self._test, self._workers = train, test, workers

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
                collate_fn=_unchanged,
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


@dataclass(frozen=True)
class _WholeBatches(Dataset[Batch]):
    """What the worker processes hold: an item is a batch."""

    samples: Samples
    draws: Draws | None

    def __getitem__(self, indices: list[int]) -> Batch:
        return self.samples.batch(torch.tensor(indices, dtype=torch.int64), draws=self.draws)


def _unchanged(batch: Any) -> Any:
    return batch


@dataclass(frozen=True)
class Sequences:
    """Sequences of equal length, float32 [n, steps, features], and labels, int64 [n]."""

    values: Tensor
    labels: Tensor

    def at(self, chosen: Tensor) -> Sequences:
        return Sequences(self.values[chosen], self.labels[chosen])


def normalised(
    train: Sequences, test: Sequences, augment: Augment | None = None
) -> tuple[MemorySamples, MemorySamples]:
    """Both with zero mean and unit deviation of every feature at every step, as the training sequences have them.

    Nothing of ``test`` enters mean and deviation; ``augment`` changes training sequences before they are normalised.

    >>> import torch
    >>> train = Sequences(torch.tensor([[[0.0]], [[4.0]]]), torch.tensor([0, 1]))
    >>> normalised(train, Sequences(torch.tensor([[[6.0]]]), torch.tensor([0])))[1].images
    tensor([[[2.]]])
    """
    made = Normalisation.of(train.values)
    if augment is None:
        samples = MemorySamples(made(train.values), train.labels, normalisation=made)
    else:
        samples = MemorySamples(train.values, train.labels, augment=augment, normalise=made, normalisation=made)
    return samples, MemorySamples(made(test.values), test.labels, normalisation=made)


# A source made of the user's own loaders.


class LoaderSource(Source):
    """Two loaders, iterated anew every epoch. Order, batch size and augmentation are the loaders' own.

    What the caller of an epoch asks for is checked where a loader can tell: its batch size times the number of ranks
    is the global batch. A sampler with ``set_epoch`` is told the epoch. Before an epoch torch's generator is seeded
    from seed and epoch. Skipped steps are read and thrown away. With more than one rank the samplers must give each
    its own share, as torch's DistributedSampler does.

    Args:
        train_loader: a DataLoader, or anything with a length that can be iterated again and again.
        test_loader: likewise.
        classes: how many labels there are; by default as many as ``train_loader.dataset.classes`` has, if there are.
        example_shape: one input with batch 1; by default from the first training batch.
        train_size: training samples; by default the length of the loader's data set; ``test_size`` likewise.

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
        self._train, self._test = train_loader, test_loader

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
