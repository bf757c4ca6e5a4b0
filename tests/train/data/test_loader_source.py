"""The user's own loaders as a source."""

from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from softprune.train.data.source import Epoch, LoaderSource


class Named(TensorDataset):
    classes = ("cat", "dog", "owl")


def data(count=20):
    return Named(torch.arange(count * 4.0).view(count, 1, 2, 2), torch.arange(count) % 3)


def loaders(**options):
    return DataLoader(data(), batch_size=4, **options), DataLoader(data(7), batch_size=4)


def firsts(batches):
    return [images[:, 0, 0, 0].tolist() for images, _ in batches]


def test_everything_is_taken_from_the_loaders():
    source = LoaderSource(*loaders(shuffle=True), name="mine")
    assert (source.name, source.classes, source.example_shape) == ("mine", 3, (1, 1, 2, 2))
    assert (source.train_size, source.test_size) == (20, 7)
    assert source.steps(4, drop_last=False) == 5
    assert [len(labels) for _, labels in source.test_epoch(batch=99)] == [4, 3]


def test_looking_at_the_first_batch_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    LoaderSource(*loaders(shuffle=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_order_depends_on_seed_and_epoch_alone():
    source = LoaderSource(*loaders(shuffle=True))
    base = firsts(source.train_epoch(Epoch(number=0, seed=0, batch=4)))
    torch.rand(7)
    assert firsts(source.train_epoch(Epoch(number=0, seed=0, batch=4))) == base
    assert firsts(source.train_epoch(Epoch(number=1, seed=0, batch=4))) != base
    assert firsts(source.train_epoch(Epoch(number=0, seed=1, batch=4))) != base
    assert sorted(chain(*base)) == [4.0 * i for i in range(20)]


def test_start_skips_batches():
    source = LoaderSource(*loaders(shuffle=True))
    whole = firsts(source.train_epoch(Epoch(number=0, seed=0, batch=4)))
    assert firsts(source.train_epoch(Epoch(number=0, seed=0, batch=4, start=2))) == whole[2:]
    assert firsts(source.train_epoch(Epoch(number=0, seed=0, batch=4, start=5))) == []
    with pytest.raises(ValueError, match="5 steps; cannot start at 6"):
        source.train_epoch(Epoch(number=0, seed=0, batch=4, start=6))


def test_samplers_are_told_the_epoch_and_share_out():
    def of_rank(rank):
        sampler = DistributedSampler(data(), num_replicas=2, rank=rank, shuffle=True)
        return LoaderSource(DataLoader(data(), batch_size=2, sampler=sampler), [], example_shape=(1, 1, 2, 2))

    first, second = (firsts(of_rank(r).train_epoch(Epoch(number=3, seed=0, batch=4, rank=r, world=2))) for r in (0, 1))
    assert sorted(chain(*first, *second)) == [4.0 * i for i in range(20)]
    assert firsts(of_rank(0).train_epoch(Epoch(number=4, seed=0, batch=4, rank=0, world=2))) != first
    assert of_rank(0).train_size == 20


def test_loaders_that_give_every_rank_everything_are_refused():
    for options in ({"shuffle": True}, {"shuffle": False}):
        with pytest.raises(ValueError, match="each of 2 ranks would get all samples"):
            LoaderSource(*loaders(**options)).train_epoch(Epoch(number=0, seed=0, batch=8, world=2))
    with pytest.raises(ValueError, match="each of 2 ranks would get all samples"):
        LoaderSource(*loaders()).test_epoch(batch=8, world=2)


def test_a_batch_that_is_not_the_loaders_is_refused():
    with pytest.raises(ValueError, match="batches of 4 on 1 ranks are not the global batch of 64"):
        LoaderSource(*loaders()).train_epoch(Epoch(number=0, seed=0, batch=64))


def test_lists_of_batches_will_do():
    batches = [(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64)), (torch.ones(2, 5), torch.ones(2).long())]
    source = LoaderSource(batches, batches[:1], classes=2)
    assert (source.train_size, source.test_size, source.example_shape) == (5, 3, (1, 5))
    assert source.steps(3, drop_last=False) == 2
    found = list(source.train_epoch(Epoch(number=0, seed=0, batch=3, start=1)))
    assert torch.equal(found[0][0], torch.ones(2, 5))


def test_an_object_of_ones_own_with_set_epoch():
    class Stream:
        epoch = None

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __len__(self):
            return 3

        def __iter__(self):
            return ((torch.full((2, 1), float(self.epoch or 0)), torch.zeros(2).long()) for _ in range(3))

    source = LoaderSource(Stream(), Stream(), classes=1, train_size=6, test_size=6)
    assert [images[0, 0].item() for images, _ in source.train_epoch(Epoch(number=8, seed=0, batch=2))] == [8.0] * 3


def test_what_cannot_be_known_is_asked_for():
    plain = DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4).long()), batch_size=2)
    assert LoaderSource(plain, plain).classes is None
    assert LoaderSource(plain, plain, classes=2).classes == 2

    class Endless:
        def __iter__(self):
            return iter([(torch.zeros(1, 2), torch.zeros(1).long())])

    with pytest.raises(ValueError, match=r"how many samples there are.*train_size"):
        LoaderSource(Endless(), plain, classes=2)
    with pytest.raises(ValueError, match="has no length"):
        LoaderSource(Endless(), plain, classes=2, train_size=1).steps(1, drop_last=False)


def test_what_is_no_loader_is_refused():
    good = [(torch.zeros(1, 2), torch.zeros(1).long())]
    with pytest.raises(TypeError, match="used up after one epoch"):
        LoaderSource(iter(good), good, classes=2)
    with pytest.raises(TypeError, match=r"\(inputs, labels\), both tensors; it gave a dict"):
        LoaderSource([{"x": 1}], good, classes=2)
    with pytest.raises(ValueError, match="loader is empty"):
        LoaderSource([], good, classes=2)
