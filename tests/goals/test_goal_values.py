import math
from fractions import Fraction

import pytest

from softprune import Budget, Filters, Flops, Params, Rank, Sparsity, uniform


def test_sparsity():
    assert Sparsity(0.9).density == pytest.approx(0.1)
    assert Sparsity(Fraction(3, 4)).value == 0.75
    # 0.29 * 100 is 28.999999999999996 in floats: still 29 zeros.
    assert Sparsity(0.29).kept(100) == 71
    # by hand: 0.9023 * 25,502,912 = 23,011,277.4976 zeros
    assert Sparsity(0.9023).kept(25_502_912) == 2_491_635


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, -0.1, 1e9])
def test_sparsity_outside_is_refused(value):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        Sparsity(value)


def test_percent_gets_a_hint():
    with pytest.raises(ValueError, match=r"got 90; did you mean 0\.9\?"):
        Sparsity(90)
    with pytest.raises(ValueError, match=r"did you mean 0\.9023\?"):
        Sparsity(90.23)


@pytest.mark.parametrize("goal", [Sparsity, Params, Flops])
def test_things_that_are_no_numbers_are_refused(goal):
    for value in (True, "0.9", None):
        with pytest.raises(TypeError, match=f"{goal.__name__} needs a number"):
            goal(value)
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"{goal.__name__} needs a finite number"):
            goal(value)


def test_whole_floats_become_integers():
    assert (Params(2.5e6), Flops(400e6)) == (Params(2_500_000), Flops(400_000_000))
    assert isinstance(Params(2.5e6).count, int)
    assert Flops(2**60 + 1).macs == 2**60 + 1


@pytest.mark.parametrize("goal", [Params, Flops])
def test_counts_are_positive_and_whole(goal):
    for value in (0, -5, 10.5):
        with pytest.raises(ValueError, match=r"whole number of .*, at least 1"):
            goal(value)
    with pytest.raises(ValueError, match="for a fraction use Sparsity"):
        goal(0.1)


def test_reach():
    Params(10).check_reachable(10, 0, 10)
    with pytest.raises(
        ValueError, match=r"Params\(count=11\) cannot be reached: choose more than 0 and at most 10 weights"
    ):
        Params(11).check_reachable(11, 0, 10)
    with pytest.raises(ValueError, match="choose more than 1,000 and at most 2,000 multiply-adds"):
        Flops(1000).check_reachable(1000, 1000, 2000)


def test_ranks_are_for_all_layers_or_by_name():
    assert Rank(4).of("head", 10) == 4
    ranks = Rank(w=9, u=8, **{"second.u": 3})
    assert [ranks.of(path, 80) for path in ("rnn.cell.w", "u", "second.u", "head", "xu")] == [9, 8, 3, None, None]
    assert repr(Rank(w=9, u=8)) == "Rank(w=9, u=8)" and repr(Rank(2.0)) == "Rank(2)"
    assert Rank(w=9, u=8) == Rank(w=9, u=8) != Rank(w=9, u=7)


@pytest.mark.parametrize("make", [lambda: Rank(0), lambda: Rank(w=0), lambda: Rank(w=1.5), lambda: Rank(-1)])
def test_a_rank_is_a_whole_number_from_one(make):
    with pytest.raises(ValueError, match="whole number of directions, at least 1"):
        make()


@pytest.mark.parametrize("make", [lambda: Rank(), lambda: Rank(4, w=3)])
def test_a_rank_is_said_in_one_way(make):
    with pytest.raises(ValueError, match=r"for all layers, Rank\(8\), or by name"):
        make()


def test_a_rank_above_the_full_one_and_unknown_layers_are_refused():
    with pytest.raises(ValueError, match=r"asks for 10 directions of rnn\.cell\.w: its rank is 1 to 9"):
        Rank(w=10).of("rnn.cell.w", 9)
    with pytest.raises(ValueError, match=r"names 'v', which is no low-rank .* these are rnn\.cell\.w, rnn\.cell\.u"):
        Rank(w=9, v=8).require_known(["rnn.cell.w", "rnn.cell.u"])


def test_filters_are_no_goal_for_an_allocator():
    costs = Budget.load("resnet50/uniform-90").profile
    with pytest.raises(ValueError, match="counts filters"):
        uniform(costs, Filters(9))
    with pytest.raises(ValueError, match="whole number of filters"):
        Filters(0)
