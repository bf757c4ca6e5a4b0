"""The promises of a source: ranks share out one batch, resuming skips, nothing but seed and epoch decides."""

import pytest
import torch

from softprune.train.data.augment import CropFlip, Normalise
from softprune.train.data.source import Epoch, IndexedSource, MemorySamples

TRAIN, TEST = 103, 21


class Counting(MemorySamples):
    """Remembers which samples were asked for."""

    asked: list

    def batch(self, indices, *, draws):
        self.asked.append(indices.tolist())
        return super().batch(indices, draws=draws)


def make(workers=0):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (TRAIN + TEST, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.arange(TRAIN + TEST)  # a label names its sample
    normalise = Normalise((0.5,) * 3, (0.25,) * 3)
    train = Counting(images[:TRAIN], labels[:TRAIN], augment=CropFlip(2, flip=True), normalise=normalise)
    train.asked = []
    test = MemorySamples(images[TRAIN:], labels[TRAIN:], normalise=normalise)
    return IndexedSource(
        "noise", train=train, test=test, classes=TRAIN + TEST, example_shape=(1, 3, 8, 8), workers=workers
    )


def by_label(batches):
    return {int(label): image for images, labels in batches for image, label in zip(images, labels, strict=True)}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def test_an_epoch_has_every_sample_once_in_shuffled_order():
    source = make()
    epoch = list(source.train_epoch(Epoch(number=0, seed=0, batch=10)))
    labels = torch.cat([labels for _, labels in epoch])
    assert labels.sort().values.tolist() == list(range(TRAIN))
    assert labels.tolist() != list(range(TRAIN))
    assert [len(labels) for _, labels in epoch] == [10] * 10 + [3]
    assert epoch[0][0].shape == (10, *source.example_shape[1:])
    assert (source.train_size, source.test_size) == (TRAIN, TEST)


@pytest.mark.parametrize("batch", [1, 2, 10, 16, 103, 200])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_the_union_over_ranks_is_the_batch_of_one_process(batch, world):
    source = make()
    alone = list(source.train_epoch(Epoch(number=3, seed=5, batch=batch)))
    ranks = [list(source.train_epoch(Epoch(number=3, seed=5, batch=batch, rank=r, world=world))) for r in range(world)]
    assert {len(rank) for rank in ranks} == {len(alone)} == {source.steps(batch, drop_last=False)}
    for whole, *shares in zip(alone, *ranks, strict=True):
        assert same(by_label(shares), by_label([whole]))
        assert sum(len(labels) for _, labels in shares) == len(whole[1])
        sizes = [len(labels) for _, labels in shares]
        assert max(sizes) - min(sizes) <= 1


def test_rank_r_takes_every_world_th_sample():
    source = make()
    alone = next(source.train_epoch(Epoch(number=0, seed=0, batch=10)))
    share = next(source.train_epoch(Epoch(number=0, seed=0, batch=10, rank=1, world=3)))
    assert torch.equal(share[1], alone[1][1::3])
    assert torch.equal(share[0], alone[0][1::3])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rank_without_samples_gets_an_empty_batch_of_the_right_shape(workers):
    *_, (images, labels) = make(workers).train_epoch(Epoch(number=0, seed=0, batch=100, rank=3, world=4))
    assert images.shape == (0, 3, 8, 8)
    assert images.dtype == torch.float32
    assert labels.shape == (0,)
    assert labels.dtype == torch.int64


@pytest.mark.parametrize("drop_last", [False, True])
def test_steps_are_what_an_epoch_has(drop_last):
    source = make()
    for batch in (1, 10, 50, 103):
        steps = source.steps(batch, drop_last=drop_last)
        assert steps == (TRAIN // batch if drop_last else -(-TRAIN // batch))
        sizes = [len(y) for _, y in source.train_epoch(Epoch(number=0, seed=0, batch=batch, drop_last=drop_last))]
        assert len(sizes) == steps
        assert not drop_last or set(sizes) == {batch}


@pytest.mark.parametrize("start", [0, 1, 4, 11])
@pytest.mark.parametrize("world", [1, 2])
def test_start_skips_without_reading(start, world):
    source = make()
    whole = list(source.train_epoch(Epoch(number=1, seed=0, batch=10, rank=world - 1, world=world)))
    source._train.asked.clear()
    rest = list(source.train_epoch(Epoch(number=1, seed=0, batch=10, rank=world - 1, world=world, start=start)))
    assert len(source._train.asked) == len(rest) == 11 - start
    for (images, labels), (expected_images, expected_labels) in zip(rest, whole[start:], strict=True):
        assert torch.equal(images, expected_images)
        assert torch.equal(labels, expected_labels)


def test_a_sample_is_augmented_alike_for_any_batch_world_and_workers():
    source = make()
    reference = by_label(source.train_epoch(Epoch(number=2, seed=9, batch=10)))
    assert same(by_label(source.train_epoch(Epoch(number=2, seed=9, batch=33))), reference)
    assert same(by_label(make(workers=1).train_epoch(Epoch(number=2, seed=9, batch=16))), reference)
    ranks = [batch for r in range(3) for batch in source.train_epoch(Epoch(number=2, seed=9, batch=8, rank=r, world=3))]
    assert same(by_label(ranks), reference)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_neither_the_batches_nor_torchs_generator(workers):
    before = torch.get_rng_state()
    found = list(make(workers).train_epoch(Epoch(number=0, seed=0, batch=16, start=2)))
    assert torch.equal(torch.get_rng_state(), before)
    for (images, labels), (expected_images, expected_labels) in zip(
        found, make().train_epoch(Epoch(number=0, seed=0, batch=16, start=2)), strict=True
    ):
        assert torch.equal(images, expected_images)
        assert torch.equal(labels, expected_labels)


def test_epochs_and_seeds_differ_in_order_and_augmentation():
    source = make()
    base = list(source.train_epoch(Epoch(number=0, seed=0, batch=TRAIN)))
    for other in ({"number": 1, "seed": 0}, {"number": 0, "seed": 1}):
        changed = list(source.train_epoch(Epoch(**other, batch=TRAIN)))
        assert not torch.equal(changed[0][1], base[0][1])
        here, there = by_label(base), by_label(changed)
        assert sum(torch.equal(here[key], there[key]) for key in here) < TRAIN // 4
    again = list(source.train_epoch(Epoch(number=0, seed=0, batch=TRAIN)))
    assert torch.equal(again[0][0], base[0][0])


@pytest.mark.parametrize("world", [1, 2, 5, 30])
@pytest.mark.parametrize("batch", [4, 21, 100])
def test_a_test_epoch_has_every_sample_once_over_the_ranks_and_never_changes(world, batch):
    source = make()
    ranks = [list(source.test_epoch(batch=batch, rank=r, world=world)) for r in range(world)]
    assert len({len(rank) for rank in ranks}) == 1
    labels = torch.cat([labels for rank in ranks for _, labels in rank])
    assert labels.sort().values.tolist() == list(range(TRAIN, TRAIN + TEST))
    alone = by_label(source.test_epoch(batch=TEST))
    assert same(by_label([batch for rank in ranks for batch in rank]), alone)


def test_what_cannot_be_is_refused_before_anything_is_read():
    source = make()
    with pytest.raises(ValueError, match="at least one sample; got 0"):
        source.steps(0, drop_last=False)
    with pytest.raises(ValueError, match="no batch of 104 is full with 103"):
        source.steps(104, drop_last=True)
    with pytest.raises(ValueError, match="11 steps of 10; cannot start at 12"):
        source.train_epoch(Epoch(number=0, seed=0, batch=10, start=12))
    with pytest.raises(ValueError, match="of 2 processes is 0 to 1; got 2"):
        source.train_epoch(Epoch(number=0, seed=0, batch=10, rank=2, world=2))
    with pytest.raises(ValueError, match="at least one sample; got -1"):
        source.test_epoch(batch=-1)
    assert source._train.asked == []
