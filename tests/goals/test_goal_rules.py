"""What each goal counts, allows, refuses and says, by hand on a profile of two tensors."""

import copy
import dataclasses
import math
from fractions import Fraction

import pytest

from softprune import Filters, Flops, Latency, Params, Rank, Sparsity
from softprune.budget.costs import Profile, TensorCost
from softprune.budget.latency import LatencyTable, LayerTime
from softprune.budget.units import KINDS, Units
from softprune.goals.base import (
    Constant,
    Goal,
    Measured,
    Ramp,
    Staircase,
    asked,
    begins_round,
    constant,
    cubic,
    linear,
    restarted,
)  # fmt: skip
from softprune.goals.goal import GOALS, checked_goal

# 100 and 300 weights that cost 1000 and 600 multiply-adds, in a network with 50 other parameters.
PROFILE = Profile(
    (TensorCost("a.weight", (10, 10), 1000), TensorCost("b.weight", (30, 10), 600)),
    other_macs=40, pool_macs=2, other_params=50,
)  # fmt: skip
WEIGHT, FILTER, RANK = KINDS["weight"], KINDS["filter"], KINDS["rank"]
UNKNOWN = Measured()
FOUND = Measured(units=400, left=39, stored=123, macs=777)
TABLE = LatencyTable(
    (
        LayerTime("a.weight", (10, 10), (0.1, 1.0), (0.002, 0.011)),
        LayerTime("b.weight", (30, 10), (0.1, 1.0), (0.003, 0.021)),
    ),
    fixed=0.001, processor="a", level="avx2", threads=3, batch=4,
)  # fmt: skip


def refuses(call, *arguments, match, **named):
    with pytest.raises(ValueError, match=match):
        call(*arguments, **named)


# totals


def test_totals_by_hand():
    assert (Sparsity(0.9).amount(PROFILE), Sparsity(0.9, "all").amount(PROFILE)) == (40, 45)
    assert (Sparsity(0.9).allowance(PROFILE), Sparsity(0.8, "all").allowance(PROFILE)) == (40.0, 40.0)
    assert (Params(30).allowance(PROFILE), Params(80, "all").allowance(PROFILE)) == (30.0, 30.0)
    assert Params(30).amount(PROFILE) == 30 and Filters(7).amount(PROFILE) == 7 and Flops(900).amount(PROFILE) == 900
    assert Flops(900).allowance(PROFILE) == 900 - 42
    assert isinstance(Params(30).allowance(PROFILE), float)
    assert (Params(1).fixed(PROFILE), Params(1, "all").fixed(PROFILE), Flops(1).fixed(PROFILE)) == (0, 50, 42)
    assert Rank(**{"a": 3, "b": 4}).amount(PROFILE) == 7


def test_what_can_be_reached_by_hand():
    assert Params(1).reach(PROFILE) == (0, 400) and Params(1, "all").reach(PROFILE) == (50, 450)
    assert Flops(1).reach(PROFILE) == (42, 1642)
    assert Latency(1, TABLE).reach(PROFILE) == pytest.approx((0.003, 0.033))


def test_what_a_weight_costs():
    assert {name: (cost.of(10), cost.at(1.0)) for name, cost in Params(1).costs(PROFILE).items()} == {
        "a.weight": (10, 100), "b.weight": (10, 300),
    }  # fmt: skip
    assert {name: (cost.of(10), cost.at(1.0)) for name, cost in Flops(1).costs(PROFILE).items()} == {
        "a.weight": (100, 1000), "b.weight": (20, 600),
    }  # fmt: skip
    costs = Latency(20, TABLE).costs(PROFILE)
    assert costs["a.weight"].of(100) == pytest.approx(0.011) and costs["b.weight"].of(300) == pytest.approx(0.021)


def test_a_latency_counts_seconds_and_what_no_zero_makes_faster_is_fixed():
    goal = Latency(20, TABLE)
    assert goal.seconds == goal.amount(PROFILE) == 0.02 and goal.words(0.0123456) == "12.3456"
    # The call and both layers at their fastest; what the weights of these can add is no part of it.
    low, high = goal.reach(PROFILE)
    costs = goal.costs(PROFILE).values()
    assert goal.fixed(PROFILE) + sum(cost.at(1.0) for cost in costs) == pytest.approx(high)
    assert goal.fixed(PROFILE) + sum(cost.at(0.0) for cost in costs) == pytest.approx(low)
    assert goal.allowance(PROFILE) == pytest.approx(0.02 - goal.fixed(PROFILE))
    other = Profile((TensorCost("a.weight", (10, 9), 1),))
    refuses(goal.costs, other, match="10x10 there and 10x9 here")


@pytest.mark.parametrize(
    ("goal", "fits"),
    [
        (lambda n: Params(n), (1, 400)),
        (lambda n: Params(n, "all"), (51, 450)),
        (lambda n: Flops(n), (43, 1642)),
    ],
)
def test_totals_are_refused_outside_of_what_can_be_reached(goal, fits):
    low, high = fits
    assert goal(low).allowance(PROFILE) < goal(high).allowance(PROFILE)
    for outside in (low - 1, high + 1):
        if outside > 0:
            refuses(goal(outside).allowance, PROFILE, match="cannot be reached")


def test_the_ends_of_what_can_be_reached_in_time_are_named_so_that_they_work():
    low, high = Latency(20, TABLE).reach(PROFILE)
    assert Latency(1e3 * high, TABLE).allowance(PROFILE) > Latency(1e3 * low + 1e-9, TABLE).allowance(PROFILE)
    refuses(Latency(20, TABLE).check_reachable, low, low, high, match=r"from 3\.0000 to 33\.0000 .* 3 threads .* of 4")
    refuses(Latency(20, TABLE).check_reachable, 1.0, 1.23456789e-3, 2.3456789e-3, match=r"from 1\.2346 to 2\.3456 ")
    refuses(Latency(20, TABLE).check_reachable, 1.0, 5.0, 12.34567891, match=r"from 5,000\.0000 to 12,345\.6789 ")
    assert Latency(20, TABLE).check_reachable(high, low, high) is None


def test_a_share_of_all_parameters_leaves_at_least_one_weight():
    few = dataclasses.replace(PROFILE, other_params=10_000)
    refuses(Sparsity(0.97, "all").allowance, few, match=r"10,000 of the 10,400 parameters of the model are not managed")
    goal = Sparsity(0.5, "all")
    assert goal.check_reachable(51.0, 50.0, 450.0) is None and goal.check_reachable(0.5, 0.0, 450.0) is None
    refuses(goal.check_reachable, 50.9, 50.0, 450.0, match="cannot be reached")


# goals as numbers, for masks


def test_the_number_that_masks_share_out():
    assert Sparsity(0.9).number(50) == 5
    assert (Params(30).number(50), Params(30).number(20)) == (30, 20)
    assert (Filters(30).number(50), Filters(30).number(20)) == (30, 20)
    for goal in (Sparsity(0.9, "all"), Params(30, "all")):
        refuses(goal.number, 50, match=r"counts parameters that these masks do not know: leave out scope=\"all\"")
    refuses(Flops(3).number, 50, match="counts multiply-adds: divide it first")


def test_what_an_allocator_cannot_share_out():
    for goal in (Sparsity(0.9, "all"), Params(30, "all")):
        refuses(goal.check_allocatable, match="counts parameters that an allocator does not see")
    refuses(Filters(3).check_allocatable, match="counts filters")
    refuses(Rank(3).check_allocatable, match="nothing to share out")
    for goal in (Sparsity(0.9), Params(30), Flops(9), Latency(9, TABLE)):
        assert goal.check_allocatable() is None


def test_what_each_tensor_keeps():
    assert Rank(a=3).kept_by_each({"a.weight": 5, "b.weight": 5}) == {"a.weight": 3}
    assert Rank(5).kept_by_each({"a.weight": 5, "b.c.weight": 6}) == {"a.weight": 5, "b.c.weight": 5}
    refuses(Rank(c=3).kept_by_each, {"a.weight": 5, "b.weight": 5}, match=r"names 'c'.* these are a, b")
    refuses(Rank(6).of, "a", 5, match="its rank is 1 to 5")
    refuses(Rank(6).of, "", 5, match="asks for 6 directions of the layer")
    refuses(Rank(c=3).require_known, [], match="these are none")
    with pytest.raises(NotImplementedError, match="one total for all tensors"):
        Params(3).kept_by_each({"a.weight": 5})


def test_ranks_are_written_as_they_are_given():
    assert [repr(goal) for goal in (Rank(8), Rank(w=9), Rank(**{"a.w": 9, "u": 8}))] == [
        "Rank(8)", "Rank(w=9)", "Rank(**{'a.w': 9}, u=8)",
    ]  # fmt: skip
    assert Rank(**{"u": 8, "rnn.u": 5}).of("rnn.u", 9) == 5


# units


@pytest.mark.parametrize(
    ("goal", "kinds"),
    [
        (Sparsity(0.5), "weight filter rank block"),
        (Sparsity(0.5, "all"), "weight"),
        (Params(5), "weight filter rank block"),
        (Params(5, "all"), "weight filter rank block"),
        (Filters(5), "filter"),
        (Flops(5), "weight filter rank block"),
        (Latency(5, TABLE), "weight"),
        (Rank(5), "rank"),
    ],
)
def test_which_units_can_have_a_goal(goal, kinds):
    taken = set()
    for units in (Units.weight, Units.filter, Units.rank, Units.block(2, 2)):
        try:
            goal.check_units(units, example=True)
            taken.add(units.kind)
        except ValueError as error:
            assert units.kind in str(error) or "units" in str(error)
    assert taken == set(kinds.split())


def test_multiply_adds_of_units_need_an_example():
    refuses(Flops(5).check_units, Units.filter, example=False, match="pass example=")
    assert Flops(5).check_units(Units.weight, example=False) is None


def test_a_goal_of_ones_own_is_for_weights_unless_it_says_otherwise():
    class Own(Goal):
        def amount(self, profile):
            return 3.0

    assert Own().check_units(Units.weight, example=False) is None
    refuses(Own().check_units, Units.filter, example=True, match="for single weights, not for units of kind 'filter'")
    assert (Own().fixed(PROFILE), Own().allowance(PROFILE), Own().words(1234.5)) == (0.0, 3.0, "1,234")
    assert (Own().sparsity, Own().measure, Own().shared, Own().whole) == (None, None, True, False)
    assert Own.compared(3, FOUND, WEIGHT) is None


# words


def test_what_a_configuration_asks_for_in_words():
    said = [
        Sparsity.described(0.9023, WEIGHT, "managed"), Sparsity.described(0.5, WEIGHT, "all"),
        Sparsity.described(0.5, FILTER, None), Sparsity.described(0.123456789, WEIGHT, None),
        Params.described(12345, WEIGHT, "managed"), Params.described(12345, WEIGHT, "all"),
        Params.described(12345, FILTER, "managed"), Filters.described(12, FILTER, None),
        Flops.described(4e8, WEIGHT, None), Latency.described({"ms": 7.5}, WEIGHT, None),
        Rank.described(4, RANK, None), Rank.described({"w": 9}, RANK, None),
    ]  # fmt: skip
    assert said == [
        "90.23 % sparsity", "50 % sparsity of all parameters", "50 % sparsity of the filters", "12.3457 % sparsity",
        "12,345 weights", "12,345 parameters", "12,345 parameters", "12 filters", "400,000,000 multiply-adds",
        "7.5 ms", "rank 4", "rank w 9",
    ]  # fmt: skip
    assert Sparsity.described(1.2e-9, WEIGHT, None) == "0 % sparsity"
    for kind in GOALS.values():
        assert kind.described(None, WEIGHT, None) == ""


def test_the_number_in_a_configuration_or_in_a_damaged_one():
    assert (Params.number_in("12"), Flops.number_in(3), Latency.number_in({"ms": 2.5})) == (12.0, 3.0, 2.5)
    for damaged in (True, None, "x", [1], math.nan, math.inf, 10**400):
        assert Params.number_in(damaged) is None
        assert Latency.number_in({"ms": damaged}) is None
    assert Latency.number_in(7.0) is None and Latency.number_in({}) is None


def test_what_was_wanted_and_what_a_run_ended_with():
    assert Sparsity.compared(0.9, FOUND, WEIGHT) == (40, 39, "weight")
    assert [Sparsity.compared(share, FOUND, WEIGHT) for share in (0.0, 1.0, -1.0, 2.0)] == [None] * 4
    assert Sparsity.compared(0.9, UNKNOWN, WEIGHT) is None
    assert Params.compared(40.0, FOUND, WEIGHT) == (40, 39, "weight")
    assert Params.compared(120.0, FOUND, FILTER) == (120, 123, "parameter")
    assert Filters.compared(9.0, FOUND, FILTER) == (9, 39, "filter")
    assert Flops.compared(700.0, FOUND, WEIGHT) == (700, 777, "multiply-add")
    assert Flops.compared(700.0, UNKNOWN, WEIGHT) == (700, None, "multiply-add")


def test_goals_are_read_from_a_configuration():
    assert Sparsity.configured(0.9, "all") == Sparsity(0.9, "all") != Sparsity(0.9)
    assert Params.configured(90, "managed") == Params(90)
    assert Flops.configured(90, "managed") == Flops(90) and Filters.configured(90, "managed") == Filters(90)
    assert Rank.configured({"w": 9}, "managed") == Rank(w=9) and Rank.configured(9, "managed") == Rank(9)
    assert Latency.configured({"ms": 7, "table": TABLE.to_dict()}, "managed") == Latency(7, TABLE)


def test_the_usual_scope_goes_without_saying():
    assert repr(Sparsity(0.9)) == "Sparsity(value=0.9)" and repr(Params(9)) == "Params(count=9)"
    assert repr(Sparsity(0.9, "all")) == "Sparsity(value=0.9, scope='all')"
    for kind in (Sparsity, Params):
        refuses(kind, 0.5 if kind is Sparsity else 5, "some", match=r"scope is 'managed' or 'all', got 'some'")
    assert repr(Latency(7, TABLE)) == f"Latency(ms=7.0, table {TABLE.digest})"


def test_any_number_becomes_one_of_python():
    assert repr(Sparsity(Fraction(9, 10))) == repr(Sparsity(0.9)) and type(Sparsity(Fraction(9, 10)).value) is float
    assert repr(Params(5.0)) == repr(Params(5)) and repr(Latency(Fraction(7), TABLE)) == repr(Latency(7, TABLE))


def test_what_a_goal_counts_of_a_network():
    assert [goal.measure for goal in (Params(9), Params(9, "all"), Flops(9), Sparsity(0.5), Filters(9), Rank(3))] == [
        "weights", "params", "macs", None, None, None,
    ]  # fmt: skip
    assert [goal.sparsity for goal in (Sparsity(0.9), Params(9))] == [0.9, None]
    # Time and multiply-adds are not rounded on the way; counts of weights are.
    assert [kind.whole for kind in GOALS.values()] == [True, True, True, False, False, False]
    assert [kind.shared for kind in GOALS.values()] == [True] * 5 + [False]


# mistakes


def test_the_ends_of_the_hints():
    for value in (1.0, 100.0, -0.5, 0.0):
        with pytest.raises(ValueError, match="strictly between 0 and 1") as refused:
            Sparsity(value)
        assert "did you mean" not in str(refused.value)
    refuses(Sparsity, 1.5, match=r"did you mean 0\.015\?")
    for value in (0.0, -0.5, 1.5):
        with pytest.raises(ValueError, match="at least 1") as refused:
            Params(value)
        assert "for a fraction" not in str(refused.value)
    refuses(Params, 0.999, match="for a fraction use Sparsity")
    refuses(Latency, 0.0, TABLE, match="positive number of milliseconds, got 0")
    refuses(Latency, -1.0, TABLE, match="positive number of milliseconds, got -1")
    assert Latency(0.5, TABLE).ms == 0.5
    with pytest.raises(TypeError, match="needs a table"):
        Latency(5, {"format": "table"})


def test_what_is_no_goal_is_refused_with_what_was_most_likely_meant():
    goal = Params(3)
    assert checked_goal(goal) is goal and checked_goal(Rank(3), total=False) == Rank(3)
    for value, hint in ((0.9, r"Sparsity\(0\.9\)"), (0, r"Params\(0\)"), (1, r"Params\(1\)"), (50, r"Params\(50\)")):
        with pytest.raises(TypeError, match=rf"did you mean {hint}\?"):
            checked_goal(value)
    for value in (True, "0.9", None, Rank(3)):
        with pytest.raises(TypeError, match="a goal is") as refused:
            checked_goal(value)
        assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize(
    "goal",
    [Staircase(3), Sparsity(0.5), Params(5), Filters(5), Flops(5), Latency(5, TABLE), Rank(w=5), Ramp(), FOUND],
)  # fmt: skip
def test_goals_and_schedules_do_not_change_and_equal_ones_are_one(goal):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(goal, [*vars(goal), "value"][0], 7)
    assert goal == copy.deepcopy(goal) and hash(goal) == hash(copy.deepcopy(goal))
    assert goal not in (Params(7), Rank(9))


# schedules


def test_ramps_by_hand():
    assert (cubic(), linear(), constant()) == (Ramp(0.1, 0.7, "cubic"), Ramp(0.1, 0.7, "linear"), Constant())
    assert [linear(0.25, 0.75)(p) for p in (0.0, 0.25, 0.375, 0.5, 0.75, 0.8, 1.0)] == [0, 0, 0.25, 0.5, 1, 1, 1]
    assert [cubic(0.25, 0.75)(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0, 0, 0.875, 1, 1]
    assert cubic(0.0, 1.0)(0.1) == pytest.approx(1 - 0.9**3)
    assert constant()(0.0) == 1.0
    # One that is over before it begins is refused, as is one outside of the training.
    for begin, end in ((0.5, 0.5), (0.5, 0.4), (-0.1, 0.5), (0.5, 1.1)):
        refuses(Ramp, begin, end, match="a ramp begins before it ends")
    refuses(Ramp, 0.1, 0.7, "square", match="cubic or linear, got 'square'")


def test_a_schedule_is_asked_within_the_training_and_gives_a_fraction():
    assert [asked(lambda p: p, progress) for progress in (-0.5, 0.0, 0.5, 1.0, 1.5)] == [0, 0, 0.5, 1, 1]
    for wrong in (-0.01, 1.01, math.nan):
        refuses(asked, lambda p, wrong=wrong: wrong, 0.5, match=r"from 0 to 1, got .* at 0\.5000")


def test_steps_of_a_staircase_by_hand():
    plain, towards = Staircase(5), Staircase(5).towards(0.0001)
    assert [plain(p) for p in (0.0, 0.19, 0.2, 0.4, 0.6, 0.8, 1.0)] == [0, 0, 0.25, 0.5, 0.75, 1, 1]
    assert [1 - 0.9999 * towards(p) for p in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)] == pytest.approx(
        [1, 0.1, 0.01, 1e-3, 1e-4, 1e-4]
    )
    assert Staircase(5, density=1.0)(0.4) == 0.5
    # 3 / 10 * 10 is not 3 in floats: the border is where it is in whole numbers.
    assert [Staircase(10)(n / 10) for n in range(10)] == pytest.approx([n / 9 for n in range(10)])


def test_rounds_begin_at_their_borders_alone():
    assert [step for step in range(-1, 9) if begins_round(step, 8, 8)] == [1, 2, 3, 4, 5, 6, 7]
    assert [step for step in range(9) if begins_round(step, 8, 2)] == [4]
    assert [step for step in range(9) if begins_round(step, 8, 1)] == []
    assert begins_round(4, 8, 2) is True


def test_a_restarted_learning_rate_by_hand():
    seen = restarted(lambda step: step, rounds=2, total_steps=8)
    assert [seen(step) for step in range(8)] == [0, 2, 4, 6, 0, 2, 4, 6]
    later = restarted(lambda step: step, rounds=2, total_steps=8, later_from=0.25)
    assert [later(step) for step in range(8)] == [0, 2, 4, 6, 2, 3, 5, 6]
