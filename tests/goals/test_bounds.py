"""Where the border is looked for, by hand: brackets from samples and from the last borders."""

import math

import numpy as np
import pytest
import torch

from softprune.budget.costs import PerWeight
from softprune.goals.scan import rows_of
from softprune.goals.select import Bounds, Predictor, Sample, density_at_border, sample, sampled_bounds


def falling(count):
    """The keys count, count - 1, ..., 1, all of them seen."""
    return Sample(np.arange(count, 0.0, -1.0), np.ones(1), 1, None)


@pytest.mark.parametrize(
    ("price", "allowed", "bounds"),
    [
        # Two weights to either side of the fourth.
        (1.0, 4.0, (2.0, 7.0)),
        (3.0, 12.0, (2.0, 7.0)),
        (1.0, 1.0, (5.0, math.inf)),
        (1.0, 7.0, (0.0, 4.0)),
        (1.0, 3.0, (3.0, 8.0)),
    ],
)
def test_where_all_weights_are_seen_two_to_either_side_are_enough(price, allowed, bounds):
    assert sampled_bounds([falling(8)], [8], [PerWeight(price)], allowed) == Bounds(*bounds)


def test_the_dearest_weight_says_how_far_to_look():
    # Costs 1 and 3 for keys 8, 7, ... in turn: 1, 4, 5, 8, 9, 12, 13, 16 in all; 6 to either side of 8.
    first, second = (Sample(np.arange(top, 0.0, -2.0), np.ones(1), 1, None) for top in (8.0, 7.0))
    assert sampled_bounds([first, second], [4, 4], [PerWeight(1.0), PerWeight(3.0)], 8.0) == Bounds(1.0, 8.0)


def test_of_many_weights_a_part_is_sorted_and_three_deviations_are_added():
    # Of 64 every second: 64, 62, ..., 2, which stand for 2 each. 16 of them are 32; 3 * sqrt(16 * 2^2) + 2 * 2 = 28.
    assert sampled_bounds([falling(64)], [64], [PerWeight()], 32.0) == Bounds(4.0, 62.0)


def test_a_sample_of_every_third_weight_is_no_certainty():
    # 8 of 24 weights, which stand for 3 each: 4 of them are 12, and 3 * sqrt(4 * 3^2) + 2 * 3 = 24 is more than all.
    few = Sample(np.arange(8, 0.0, -1.0), np.ones(1), 3, None)
    assert sampled_bounds([few], [24], [PerWeight()], 12.0) == Bounds(0.0, math.inf)


def test_a_sample_of_every_second_weight_is_no_certainty_either():
    # 40 weights that stand for 2 each: 10 of them are 20; 3 * sqrt(10 * 2^2) + 2 * 2 = 22.97 to either side.
    few = Sample(np.arange(40.0, 0.0, -1.0), np.ones(1), 2, None)
    assert sampled_bounds([few], [80], [PerWeight()], 20.0) == Bounds(19.0, math.inf)
    # With room for not even one of them the deviation is that of one: 3 * 2 + 2 * 2 = 10, five weights.
    assert sampled_bounds([few], [80], [PerWeight()], 1.0) == Bounds(35.0, math.inf)


def test_thresholds_that_are_zero_have_infinite_keys_and_weights_that_are_zero_none():
    with np.errstate(divide="ignore", invalid="ignore"):
        # The keys are inf for each of the first five, and 0 for the others, 0 / 0.
        odd = Sample(np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0]), np.zeros(1), 1, None)
        assert sampled_bounds([odd], [8], [PerWeight()], 3.0) == Bounds(0.0, math.inf)
        assert sampled_bounds([odd], [8], [PerWeight()], 2.0) == Bounds(math.inf, math.inf)
        half = Sample(np.array([0.0, 0.0, 0.5, 0.25, 0.2, 0.1]), np.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0]), 1,
                      np.arange(6))  # fmt: skip
        assert sampled_bounds([half], [6], [PerWeight()], 1.0) == Bounds(0.1, math.inf)


def test_keys_are_sizes_over_scales():
    halves = Sample(np.array([4.0, 3.0, 2.0, 1.0]), np.array([0.5, 0.5, 1.0, 1.0]), 1, np.array([0, 0, 1, 1]))
    # The keys are 8, 6, 2 and 1.
    assert sampled_bounds([halves], [4], [PerWeight()], 3.0) == Bounds(0.0, 8.0)
    assert sampled_bounds([halves], [4], [PerWeight()], 1.0) == Bounds(1.0, math.inf)


def test_a_sample_has_every_so_many_weights_but_at_least_a_thousand():
    w = torch.arange(-2048.0, 0.0)
    seen = sample(rows_of(w, (1,)), np.ones(1), 8)
    assert seen.step == 2 and seen.row is None and seen.size[:3].tolist() == [2048.0, 2046.0, 2044.0]
    assert sample(rows_of(w[:10], (1,)), np.ones(1), 8).step == 1
    rows = sample(rows_of(w.view(4, 512), (4, 1)), np.array([1.0, 2.0, 3.0, 4.0]), 8)
    assert rows.step == 2 and rows.row.tolist() == [r for r in range(4) for _ in range(256)]
    assert rows.scale[[0, 255, 256, 1023]].tolist() == [1.0, 1.0, 2.0, 4.0]


def test_crossings_are_counted_within_a_tenth_of_log_alpha():
    # From exp(-0.05) = 0.951 to exp(0.05) = 1.051, in tens per unit of log alpha.
    w = torch.tensor([[1.0, -0.96, 2.0], [1.04, 0.5, 0.1]])
    one = rows_of(w, (1,))
    assert density_at_border(one, sample(one, np.ones(1), 1), 1.0) == pytest.approx([30.0])
    two = rows_of(w, (2, 1))
    assert density_at_border(two, sample(two, np.ones(2), 1), 1.0) == pytest.approx([20.0, 10.0])
    assert density_at_border(two, sample(two, np.ones(2), 1)._replace(step=4), 1.0) == pytest.approx([80.0, 40.0])


def test_what_lies_at_the_lower_end_of_the_window_is_not_met_and_what_lies_at_the_upper_is():
    low, high = 1.0 / math.exp(0.05), 1.0 * math.exp(0.05)
    rows = rows_of(torch.tensor([low, high], dtype=torch.float64), (1,))
    assert density_at_border(rows, sample(rows, np.ones(1), 1), 1.0) == pytest.approx([10.0])
    # The last of three rows has no weight there: it is counted all the same, with none.
    three = rows_of(torch.tensor([[1.0], [9.0], [9.0]], dtype=torch.float64), (3, 1))
    assert density_at_border(three, sample(three, np.ones(3), 1), 1.0) == pytest.approx([10.0, 0.0, 0.0])


def test_a_guess_of_exactly_eight_times_the_usual_number_is_still_one():
    # A quarter of a weight is usual of one; a miss of 1 means 4 to either side, at a quarter of a weight for each: 2.
    predictor = Predictor()
    predictor.note(1.0, weights_per_log=0.25)
    predictor.note(math.e, weights_per_log=0.25)
    assert predictor.guess(1) == pytest.approx((math.exp(-2.0), math.exp(6.0)))
    assert (predictor.miss, predictor.stride, predictor.last) == (1.0, 1.0, 1.0)


def test_a_border_that_rests_is_looked_for_among_few():
    # 1000^(2/3) / 4 = 25 weights, at 100 per unit of log key.
    predictor = Predictor()
    for _ in range(2):
        predictor.note(2.0, weights_per_log=100.0)
    assert predictor.guess(1000) == pytest.approx((2 * math.exp(-0.125), 2 * math.exp(0.125)))
    sparse = Predictor()
    sparse.note(2.0, weights_per_log=0.5)
    assert sparse.guess(8) == pytest.approx((2 * math.exp(-1.0), 2 * math.exp(1.0)))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_border_that_jumps_is_looked_for_four_jumps_around_where_it_would_go(sign):
    predictor = Predictor()
    predictor.note(1.0, weights_per_log=100.0)
    predictor.note(math.exp(0.2 * sign), weights_per_log=100.0)
    assert predictor.guess(1000) == pytest.approx((math.exp(0.4 * sign - 0.8), math.exp(0.4 * sign + 0.8)))
    # Of 0.3 it would be 240 weights, more than eight times 25.
    predictor = Predictor()
    predictor.note(1.0, weights_per_log=100.0)
    predictor.note(math.exp(0.3 * sign), weights_per_log=100.0)
    assert predictor.guess(1000) is None


def test_without_a_border_there_is_no_guess():
    predictor = Predictor()
    predictor.note(1.0, weights_per_log=100.0)
    predictor.note(0.0, weights_per_log=100.0)
    assert predictor.last is None and predictor.guess(1000) is None
    predictor.note(1.0, weights_per_log=0.0)
    assert predictor.guess(1000) is None
