"""What goals leave to the tensors that they are for, by hand; and totals that no densities reach."""

from dataclasses import replace

import pytest

from softprune import Filters, Flops, Latency, Params, Sparsity
from softprune.budget.costs import Profile, TensorCost
from softprune.budget.latency import LatencyTable, LayerTime

# Two tensors under the goal and one that is not, with 4, 10 and 1 multiply-adds for each weight, and 7 besides.
PROFILE = Profile(
    (TensorCost("a", (10, 10), 400), TensorCost("b", (50,), 500), TensorCost("c", (3,), 3)), other_macs=7, pool_macs=20
)
SIZES = {"a": 100, "b": 50}


def under(names, other_params=0):
    """The costs as a goal for these tensors sees them."""
    return replace(PROFILE.only(names), other_params=other_params)


@pytest.mark.parametrize(
    ("goal", "allowed"),
    [
        (Sparsity(0.9), 15.0),  # of 150
        (Sparsity(0.9, scope="all"), 6.0),  # of 160 are 16 left, 10 of which are others
        (Params(150), 150.0),
        (Params(1), 1.0),
        (Params(160, scope="all"), 150.0),
        (Params(11, scope="all"), 1.0),
        (Filters(1), 1.0),
        (Filters(150), 150.0),
        (Flops(930), 900.0),  # 3 + 7 + 20 are fixed
        (Flops(31), 1.0),
    ],
    ids=str,
)
def test_what_is_left_for_the_tensors(goal, allowed):
    assert goal.allowance(under(SIZES, 10)) == allowed


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (Params(151), "more than 0 and at most 150 weights"),
        (Params(10, scope="all"), "more than 10 and at most 160 weights"),
        (Params(161, scope="all"), "more than 10 and at most 160 weights"),
        (Filters(151), "more than 0 and at most 150 filters"),
        (Flops(30), "more than 30 and at most 930 multiply-adds"),
        (Flops(931), "more than 30 and at most 930 multiply-adds"),
        (Sparsity(0.94, scope="all"), "10 of the 160 parameters of the model are not managed"),  # exactly those 10
    ],
    ids=str,
)
def test_totals_that_cannot_be_are_refused_with_the_range(goal, words):
    with pytest.raises(ValueError, match=words):
        goal.allowance(under(SIZES, 10))


def test_one_weight_of_all_parameters_is_the_least():
    # 11 of 160 are kept: 10 others, and one.
    assert Sparsity(0.93, scope="all").allowance(under(SIZES, 10)) == 1.0


def test_weights_cost_their_multiply_adds_under_flops_and_one_each_else():
    assert {name: price.each for name, price in Flops(930).costs(under(SIZES)).items()} == {"a": 4.0, "b": 10.0}
    assert {name: price.each for name, price in Sparsity(0.5).costs(under(SIZES)).items()} == {
        "a": 1.0,
        "b": 1.0,
    }


def table():
    """Seconds from 1 to 3 and from 2 to 4 as densities go from 0 to 1, and 10 besides."""
    layers = [LayerTime("a", (10, 10), (0.5, 1.0), (2.0, 3.0)), LayerTime("b", (50,), (0.5, 1.0), (3.0, 4.0))]
    return LatencyTable(tuple(layers), fixed=10.0, processor="p", level="none", threads=1, batch=1)


def test_fixed_times_belong_to_the_total_and_not_to_the_tensors():
    # Of 15 seconds 10 are fixed.
    assert Latency(15_000.0, table()).allowance(under(SIZES)) == pytest.approx(5.0)
    # Where one of them is left dense its 4 are fixed, too.
    assert Latency(16_000.0, table()).allowance(under(["a"])) == pytest.approx(2.0)
    prices = Latency(15_000.0, table()).costs(under(SIZES))
    assert [prices["a"].of(n) for n in (0, 50, 100)] == pytest.approx([1.0, 2.0, 3.0])
    assert [prices["b"].of(n) for n in (0, 25, 50)] == pytest.approx([2.0, 3.0, 4.0])


@pytest.mark.parametrize("ms", [13_000.0, 17_001.0])
def test_times_outside_the_table_are_refused(ms):
    with pytest.raises(ValueError, match=r"from 13,000\.0000 to 17,000\.0000 milliseconds"):
        Latency(ms, table()).allowance(under(SIZES))
