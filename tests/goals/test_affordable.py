"""Joint costs by hand, and how many units they allow."""

import numpy as np
import pytest
import torch

from softprune.goals.select import Ranked
from softprune.goals.solve import affordable, most_that_fit
from softprune.structure.joint_cost import StoredUnits, SumOfUnits


@pytest.mark.parametrize(
    ("most", "about", "asked"),
    [
        (37, 37, [37, 38]),
        (50, 1, [1, 2, 4, 8, 16, 32, 64, 48, 56, 52, 50, 51]),
        (20, 37, [37, 36, 34, 30, 22, 6, 14, 18, 20, 21]),
        (0, -5, [1]),
        (100, 1000, [100]),
        (100, 99, [99, 100]),
        (0, 2, [2, 1]),
        (2, 1, [1, 2, 4, 3]),
    ],
)
def test_the_search_goes_in_growing_steps_and_then_by_halves(most, about, asked):
    seen = []
    assert most_that_fit(lambda n: seen.append(n) or n <= most, 100, about) == most
    assert seen == asked


def candidates():
    return [Ranked(torch.tensor(row), torch.ones(1)) for row in ([5.0, -4.0, 3.0, 2.0], [0.1, -0.2, 0.0])]


COST = SumOfUnits([np.array([1.0] * 4), np.array([10.0] * 3)], fixed=100.0)


@pytest.mark.parametrize(
    ("floors", "allowed", "units"),
    [
        ((1, 1), 113.0, 4),  # 5 and 0.2 cost 11; then 4 and 3
        ((1, 1), 112.9, 3),
        ((1, 2), 123.0, 5),  # 5, 0.2 and 0.1 cost 21; then 4 and 3
        ((1, 3), 123.0, 5),  # a unit that is 0 by itself cannot be kept
        ((0, 0), 103.0, 3),
        ((0, 0), 1000.0, 6),
    ],
)
def test_floors_come_first_and_then_the_largest(floors, allowed, units):
    for about in (0, 3, 7):
        assert affordable(COST, candidates(), floors, allowed, about=about) == (units, [1.0, 10.0])


def test_the_prices_are_those_of_what_is_kept():
    # Four of the first are stored in 16, and one more is not there; the slope from 3 to 4 is 7. None of the second.
    cost = StoredUnits([4, 3], [lambda n: float(n * n), lambda n: 100.0 * n], fixed=0.0)
    assert affordable(cost, candidates(), (0, 0), 16.0, about=1) == (4, [7.0, 100.0])


def test_blocks_cost_what_each_of_them_costs():
    cost = SumOfUnits([np.array([1.0, 5.0, 3.0]), np.array([7.0, 2.0])], fixed=100.0)
    assert cost.full() == 118.0
    assert cost.total([np.array([True, False, True]), np.array([False, True])]) == 106.0
    assert cost.least([2, 1]) == 115.0, "the dearest"
    assert cost.marginal([]) == [3.0, 4.5]
    assert cost.now() is cost and cost.on(torch.nn.Linear(1, 1)) is cost


@pytest.mark.parametrize(("density", "total"), [(0.0, 2.0), (0.25, 3.0), (0.5, 10.0), (1.0, 25.0)])
def test_equal_densities_keep_at_least_one_unit_of_each(density, total):
    # Of 10 and 4 units 1 and 1, 2 and 1, 5 and 2, 10 and 4; one of the second costs what their number is.
    cost = StoredUnits([10, 4], [float, lambda n: {1: 1.0, 2: 5.0, 4: 15.0}[n]], fixed=0.0)
    assert cost.at_density(density) == total


@pytest.mark.parametrize(
    ("count", "slope"),
    [(20, 40.0), (1, 2.0), (0, 1.0), (50, 95.0), (49, 94.0)],
    # From 18 to 22, from 0 to 2, from 0 to 1, from 45 to 50, and from 44 to 50, as 4.9 is rounded to 5.
)
def test_the_price_of_a_direction_is_the_slope_around_the_present_rank(count, slope):
    cost = StoredUnits([50], [lambda n: float(n * n)], fixed=3.0)
    assert cost.marginal([np.arange(50) < count]) == [slope]


def test_the_least_that_floors_can_cost():
    cost = StoredUnits([10, 4], [lambda n: float(n * n), lambda n: 100.0 * n], fixed=3.0)
    assert cost.least([2, 1]) == 107.0 and cost.least([0, 4]) == 403.0 and cost.full() == 503.0


def test_equal_units_go_by_place():
    # The first two cost 1 and 2, the others 100.
    costs = np.full(300, 100.0)
    costs[:2] = 1.0, 2.0
    equal = [Ranked(torch.ones(300), torch.ones(1))]
    for floor in (0, 1, 2):
        assert affordable(SumOfUnits([costs], 0.0), equal, (floor,), 3.0, about=1)[0] == 2


@pytest.mark.parametrize("floor", [0, 120])
def test_equal_units_among_others_go_by_place_too(floor):
    keys = torch.tensor([1.0, 3.0, 2.0] * 100)
    # The 150 largest, earlier ones first, cost 1.
    costs = np.full(300, 1000.0)
    costs[sorted(range(300), key=lambda n: (-float(keys[n]), n))[:150]] = 1.0
    assert affordable(SumOfUnits([costs], 0.0), [Ranked(keys, torch.ones(1))], (floor,), 150.0, about=3)[0] == 150


class Asked(SumOfUnits):
    """Remembers how many units it was asked for."""

    def total(self, alive):
        self.asked.append(sum(int(np.count_nonzero(on)) for on in alive))
        return super().total(alive)


def test_the_search_begins_where_the_units_are_now():
    cost = Asked([np.ones(100)], 0.0)
    cost.asked = []
    found = affordable(cost, [Ranked(torch.arange(1.0, 101.0), torch.ones(1))], (10,), 60.0, about=60)
    assert found[0] == 60 and cost.asked == [60, 61]


def test_the_cost_is_that_of_now():
    class Dearer(SumOfUnits):
        def now(self):
            return SumOfUnits([2 * cost for cost in self._costs], self._fixed)

    cost = Dearer([np.array([1.0] * 4), np.array([10.0] * 3)], fixed=100.0)
    assert affordable(cost, candidates(), (1, 1), 126.0, about=3) == (4, [2.0, 20.0])
