"""Random numbers from counters: the function is SplitMix64, pinned, uniform, and blind to everything but its key."""

import numpy as np
import pytest
import torch

from softprune.train.data.augment import Draws, Purpose, mix

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15

# Results of every run depend on these: they may never change.
PINNED_BITS = [2391539541053276776, 920862675595841680, -6081368185890229076, -5708505318385050158]
PINNED_ROWS = [5, 2, 6, 0, 5, 3, 2, 0, 0, 3, 5, 2]
PINNED_FLOATS = [0.36846232903163356, 0.2029690483428881, 0.8764178063249254, 0.7857786892535421]
PINNED_ORDER = [7, 2, 3, 5, 1, 9, 0, 8, 4, 6]
PINNED_OTHER_ORDER = [1, 2, 0, 8, 3, 9, 5, 7, 4, 6]


def signed(value):
    return value - 2**64 if value >= 2**63 else value


def mix_by_hand(x):
    """SplitMix64 in Python's unbounded integers."""
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_mix_gives_the_published_sequence():
    # The first outputs of SplitMix64 from the state 1234567, as in the test vectors of its public implementations.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    states = torch.tensor([signed((1234567 + (i + 1) * GAMMA) & MASK) for i in range(4)])
    assert mix(states).tolist() == [signed(value) for value in published]


@pytest.mark.parametrize(("seed", "epoch", "purpose"), [(0, 0, 0), (1, 0, 3), (-5, 7, 100), (2**64 - 1, 2**40, 209)])
def test_bits_absorb_seed_epoch_purpose_and_index_in_turn(seed, epoch, purpose):
    indices = [0, 1, 2, 49_999, 1_281_166, 2**40]
    expected = []
    for index in indices:
        key = 0
        for value in (seed, epoch, purpose, index):
            key = mix_by_hand(key + (value + 1) * GAMMA)
        expected.append(signed(key))
    assert Draws(seed, epoch).bits(torch.tensor(indices), purpose).tolist() == expected


def test_values_are_pinned():
    draws, indices = Draws(seed=0, epoch=0), torch.arange(4)
    assert draws.bits(indices, Purpose.ORDER).tolist() == PINNED_BITS
    assert draws.integers(torch.arange(12), Purpose.ROW, below=9).tolist() == PINNED_ROWS
    assert draws.floats(indices, Purpose.FLIP).tolist() == PINNED_FLOATS
    assert draws.order(10).tolist() == PINNED_ORDER
    assert Draws(seed=1, epoch=2).order(10).tolist() == PINNED_OTHER_ORDER


def test_purposes_keep_their_numbers():
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "ORDER": 0, "ROW": 1, "COLUMN": 2, "FLIP": 3, "LOADER": 4, "NOISE": 5, "PLACE": 6, "VOLUME": 7,
        "AXIS_HEIGHT": 8, "AXIS_TURN": 9, "ANGLE": 10, "MOMENT": 11, "CROP_AREA": 100, "CROP_RATIO": 200,
    }  # fmt: skip


def test_a_number_depends_on_its_index_and_not_on_its_neighbours():
    draws = Draws(3, 4)
    together = draws.floats(torch.arange(1000), Purpose.ROW)
    picked = torch.tensor([999, 0, 500])
    assert torch.equal(draws.floats(picked, Purpose.ROW), together[picked])
    assert draws.floats(torch.empty(0, dtype=torch.int64), Purpose.ROW).shape == (0,)


@pytest.mark.parametrize("purpose", [Purpose.ROW, Purpose.FLIP, Purpose.CROP_AREA + 9])
@pytest.mark.parametrize("bins", [2, 9, 64])
def test_integers_are_uniform(purpose, bins):
    count = 100_000
    found = torch.bincount(Draws(0, 1).integers(torch.arange(count), purpose, below=bins), minlength=bins).double()
    expected = count / bins
    chi_squared = ((found - expected) ** 2 / expected).sum().item()
    freedom = bins - 1
    assert len(found) == bins
    assert chi_squared < freedom + 5 * (2 * freedom) ** 0.5


def test_floats_are_uniform_in_the_half_open_unit_interval():
    floats = Draws(0, 1).floats(torch.arange(100_000), Purpose.CROP_AREA)
    assert floats.dtype == torch.float64
    assert 0 <= floats.min() < 1e-3
    assert 1 - 1e-3 < floats.max() < 1
    # Kolmogorov's distance; 1.63 / sqrt(n) is passed by one in a hundred.
    steps = torch.arange(1, 100_001) / 100_000
    assert (floats.sort().values - steps).abs().max() < 1.63 / 100_000**0.5 + 1e-5


def test_neighbours_in_each_direction_are_uncorrelated():
    count = 100_000
    indices = torch.arange(count)
    base = Draws(5, 5).floats(indices, Purpose.ROW)
    others = {
        "next index": Draws(5, 5).floats(indices + 1, Purpose.ROW),
        "next purpose": Draws(5, 5).floats(indices, Purpose.COLUMN),
        "next epoch": Draws(5, 6).floats(indices, Purpose.ROW),
        "next seed": Draws(6, 5).floats(indices, Purpose.ROW),
        "epoch and seed swapped": Draws(4, 6).floats(indices, Purpose.ROW),
    }
    for name, other in others.items():
        correlation = np.corrcoef(base.numpy(), other.numpy())[0, 1]
        assert abs(correlation) < 4 / count**0.5, name


def test_one_input_bit_changes_half_of_the_output_bits():
    indices = torch.arange(2000)
    for bit in range(0, 40, 3):
        changed = Draws(0, 0).bits(indices, 0) ^ Draws(0, 0).bits(indices ^ (1 << bit), 0)
        ones = sum(((changed >> place) & 1).sum().item() for place in range(64)) / (64 * len(indices))
        assert 0.49 < ones < 0.51


def test_an_order_is_a_permutation_that_moves_everything_around():
    orders = [Draws(seed, epoch).order(1000) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(1000))
        # A random permutation leaves about one element in place; the mean distance moved is a third of the length.
        assert (order == torch.arange(1000)).sum() < 8
        assert 300 < (order - torch.arange(1000)).abs().double().mean() < 366
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
