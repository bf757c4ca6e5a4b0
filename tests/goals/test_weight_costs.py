"""Costs by hand: of weights that all cost the same, and along a curve."""

import numpy as np
import pytest

from softprune.budget.costs import AlongCurve, PerWeight, equal_density
from softprune.budget.latency import Curve
from softprune.goals.select import in_order

# Of 10 weights the first five cost 2 each, the others 4, and none of them 1.
BENT = AlongCurve(Curve((0.0, 0.5, 1.0), (1.0, 11.0, 31.0)), 10)


def test_without_a_curve_every_weight_costs_the_same():
    price = PerWeight(3.0)
    assert (price.of(4), price.slope(100), price.most) == (12.0, 1.0, 3.0)
    assert price.steps(7, 2).tolist() == [3.0, 3.0]
    # Four weights that stand for ten.
    assert price.sampled(10, 4).tolist() == [7.5] * 4
    assert PerWeight().of(5) == 5.0


def test_along_a_curve():
    assert [BENT.of(n) for n in (0, 1, 5, 6, 10)] == pytest.approx([1.0, 3.0, 11.0, 15.0, 31.0])
    assert BENT.of(11) == 31.0, "more than all is all"
    assert BENT.steps(3, 4).tolist() == pytest.approx([2.0, 2.0, 4.0, 4.0])
    assert BENT.sampled(10, 4).tolist() == pytest.approx([5.0, 5.0, 10.0, 10.0])
    assert BENT.most == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("count", "slope"),
    [(0, 2.0), (3, 2.0), (5, 3.0), (8, 4.0), (10, 4.0)],
    # Over one weight to either side, as a tenth of them is less.
)
def test_the_slope_is_that_of_a_tenth_to_either_side_and_of_one_weight_at_least(count, slope):
    assert BENT.slope(count) == pytest.approx(slope)


def test_the_slope_of_many_weights_reaches_a_tenth():
    wide = AlongCurve(Curve((0.0, 0.5, 1.0), (0.0, 100.0, 300.0)), 1000)
    # From 450 to 550 of 500 weights: 90 and then 0.4 a weight, to 120.
    assert wide.slope(500) == pytest.approx(0.3)
    # From 414 to 506: (102.4 - 82.8) / 92.
    assert wide.slope(460) == pytest.approx((102.4 - 82.8) / 92)


def test_the_largest_key_takes_the_first_step_and_equal_ones_go_in_order():
    keys = np.array([2.0, 5.0, 2.0, 1.0])
    assert in_order(keys, np.array([1.0, 2.0, 3.0, 4.0])).tolist() == [2.0, 1.0, 3.0, 4.0]
    many = np.repeat([1.0, 2.0], 500)
    placed = in_order(many, np.arange(1000.0))
    assert placed.tolist() == [*range(500, 1000), *range(500)]
    assert in_order(np.array([1.0, 2.0]), np.array([3.0, 4.0])).tolist() == [4.0, 3.0]
    assert in_order(np.array([7.0]), np.array([3.0])).tolist() == [3.0]
    assert in_order(np.empty(0), np.empty(0)).tolist() == []


def test_the_density_at_which_a_total_is_met():
    assert equal_density(lambda d: d * d, 0.25) == pytest.approx(0.5, abs=1e-12)
    assert equal_density(lambda d: 10 * d, 3.0) == pytest.approx(0.3, abs=1e-12)
    # One halving says in which half it is, and it is the upper end that is given: the total is met there.
    assert equal_density(lambda d: d, 0.3, halvings=1) == 0.5
    assert equal_density(lambda d: d, 0.7, halvings=2) == 0.75
    assert equal_density(lambda d: d, 0.5, halvings=1) == 0.5
