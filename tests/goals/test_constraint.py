"""A constraint, by hand: what it allows when, when it is solved again, and what it refuses."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import softprune
from softprune import GMP, STR, Flops, Latency, Params, Sparsity, constant, linear
from softprune.budget.costs import Profile, TensorCost
from softprune.budget.latency import LatencyTable, LayerTime
from softprune.goals.constraint import FLOOR_SHARE, copied, make_constraint

PROFILE = Profile((TensorCost("0.weight", (4, 10), 400), TensorCost("1.weight", (5, 4), 20)), other_macs=7)


def sparsified(method=None, goal=None, schedule=None):
    """Weights 1 to 40 and 1 to 20, all alive."""
    model = nn.Sequential(nn.Linear(10, 4, bias=False), nn.Linear(4, 5, bias=False))
    for layer in model:
        size = layer.weight.numel()
        layer.weight.data = torch.arange(1.0, size + 1.0).view_as(layer.weight)
    return softprune.sparsify(model, method or STR(), goal=goal or Params(30), schedule=schedule or linear(0.0, 1.0))


def constraint(goal, schedule=None, method=None):
    targets = sparsified().targets
    return make_constraint(goal, schedule or linear(0.0, 1.0), [(t, method or STR()) for t in targets], PROFILE)


def test_what_is_allowed_falls_from_all_weights_to_the_goal():
    # 60 weights, of which 31 shall stay.
    given = constraint(Params(31))
    assert (given.full, given.final, given.density) == (60.0, 31.0, 31 / 60)
    assert [given.allowed(p) for p in (0.0, 0.5, 1.0)] == [60, 46, 31]  # 45.5 is rounded to the even one
    assert given.allowed(0.9) == 34  # 60 - 26.1


def test_multiply_adds_are_not_rounded():
    # 420 of the tensors and 7 besides; 217 shall stay, so 210 for the tensors.
    given = constraint(Flops(217))
    assert (given.full, given.final, given.density) == (420.0, 210.0, 0.5)
    assert given.allowed(0.25) == pytest.approx(420 - 52.5)
    assert [m.cost.each for m in given.tensors] == [10.0, 1.0]


class Square:
    """As many weights cost their number squared."""

    linear = False

    def of(self, count):
        return float(count * count)


def test_where_weights_cost_together_the_density_falls_evenly():
    given = constraint(Params(30))
    tensors = tuple(replace(t, cost=Square()) for t in given.tensors)
    squares = replace(given, tensors=tensors, full=2000.0, final=500.0)
    # Half way to half of them: 30 of 40 and 15 of 20.
    assert [squares.allowed(p) for p in (0.0, 0.5, 1.0)] == [2000, 1125, 500]
    assert [given.allowed(p) for p in (0.0, 0.5, 1.0)] == [60, 45, 30]
    # Of a square and a plain tensor: 30 * 30 + 15.
    mixed = replace(squares, tensors=(tensors[0], given.tensors[1]), full=1620.0, final=410.0)
    assert [mixed.allowed(p) for p in (0.0, 0.5, 1.0)] == [1620, 915, 410]


def test_one_density_meets_a_goal_whose_weights_cost_together():
    layers = (("0.weight", (4, 10), (0.003, 0.004, 0.02)), ("1.weight", (5, 4), (0.001, 0.009, 0.01)))
    times = tuple(LayerTime(name, shape, (0.1, 0.5, 1.0), seconds) for name, shape, seconds in layers)
    table = LatencyTable(times, fixed=0.001, processor="a", level="avx2", threads=1, batch=1)
    given = constraint(Latency(15.0, table))
    assert table.total(dict.fromkeys(("0.weight", "1.weight"), given.density)) == pytest.approx(0.015, rel=1e-3)
    # A straight line would have given 14 of 30.
    assert given.density > 0.5


def test_floors_are_a_twentieth_of_an_equal_share_and_one_weight_at_least():
    assert FLOOR_SHARE == 0.05
    # Half of 40 and of 20: a twentieth is 1 and 0.5.
    assert [m.floor for m in constraint(Params(30)).tensors] == [1, 1]
    # 59 of 60: a twentieth of 39.3 and of 19.7 is 1.97 and 0.98.
    assert [m.floor for m in constraint(Params(59)).tensors] == [2, 1]
    assert [m.floor for m in constraint(Params(59), method=STR(min_keep=7)).tensors] == [7, 7]
    # No tensor can keep more than it has.
    assert [m.floor for m in constraint(Params(59), method=STR(min_keep=25)).tensors] == [25, 20]


def test_floors_that_take_all_of_the_total_are_fine_and_more_are_refused():
    assert constraint(Params(14), method=STR(min_keep=7)).final == 14.0
    with pytest.raises(ValueError, match=r"leaves 13 to keep, but the floors of the 2 tensors \(min_keep\) take 14"):
        constraint(Params(13), method=STR(min_keep=7))


@pytest.mark.parametrize(
    ("schedule", "error", "message"),
    [
        ("cubic", TypeError, "a schedule is"),
        (lambda p: 0.5 * p, ValueError, "asks for 0.5 of the goal at the end"),
    ],
    ids=["word", "half"],
)
def test_a_schedule_that_does_not_end_at_the_goal_is_refused(schedule, error, message):
    with pytest.raises(error, match=message):
        constraint(Params(30), schedule)


def test_it_is_solved_again_after_every_so_many_steps_and_the_last():
    every = constraint(Params(30), method=GMP(every=4))
    assert [step for step in range(1, 11) if every.due(step, 10)] == [4, 8, 10]
    mixed = replace(every, tensors=(every.tensors[0], replace(every.tensors[1], settings=GMP(every=3).goal_settings)))
    assert [step for step in range(1, 11) if mixed.due(step, 10)] == [4, 8, 10]


def test_with_every_of_zero_it_is_solved_when_the_schedule_moves():
    stairs = constraint(Params(30), lambda p: 0.0 if p < 0.35 else 0.5 if p < 0.8 else 1.0, softprune.methods.ACDC())
    assert [step for step in range(1, 11) if stairs.due(step, 10)] == [4, 8]


def test_the_goal_is_met_to_the_cost_of_one_weight():
    sparsifier = sparsified(schedule=constant())
    (given,) = sparsifier.goals
    assert given.spent() == 30 and given.met(1.0)
    with torch.no_grad():
        sparsifier.targets[0].transform.alpha.fill_(1e9)
    # Of the largest 30 of 1..40 and 1..20 the first tensor has 25 (16 to 40), the second 5 (16 to 20).
    assert given.spent() == 5 and not given.met(1.0)
    with torch.no_grad():
        sparsifier.targets[0].transform.alpha.fill_(0.0)
    assert given.spent() == 45 and not given.met(1.0)


@pytest.mark.parametrize(
    ("cut", "spent", "met"), [(0.0, 400, False), (20.5, 200, False), (21.5, 190, True), (22.5, 180, False)]
)
def test_a_total_that_one_weight_more_would_exceed_is_met(cut, spent, met):
    # 195 are allowed, and the weights of the first cost ten each; none of the others is left.
    given = constraint(Flops(202))
    with torch.no_grad():
        for tensor, alpha in zip(given.tensors, (cut, 1e9), strict=True):
            tensor.target.transform.alpha.fill_(alpha)
    assert (given.spent(), given.met(1.0)) == (spent, met)


class Joint:
    """What units cost together: the square of their number."""

    def now(self):
        return self

    def total(self, alive):
        return sum(int(mask.sum()) for mask in alive) ** 2


def test_what_units_cost_together_is_asked_of_their_joint_cost():
    given = replace(sparsified(schedule=constant()).goals[0], joint=Joint())
    # Each time they must be solved for anew, since one unit may change what the others cost.
    assert given.spent() == 30**2 and not given.met(1.0)


def test_a_goal_is_reached_once_all_of_it_is_asked_for():
    given = constraint(Params(30), linear(0.0, 0.5))
    assert [given.reached(p) for p in (0.0, 0.49, 0.5, 1.0)] == [False, False, True, True]


def test_a_threshold_that_still_rises_has_not_reached_it_before_the_end():
    sparsifier = sparsified(softprune.methods.SLATS(), schedule=constant())
    (given,) = sparsifier.goals
    assert not given.reached(0.5) and given.reached(1.0)
    given.rise()
    assert given.reached(0.5)


def test_its_name_says_goal_and_schedule_and_marks_of_one_of_your_own():
    named = str(constraint(Sparsity(0.5), linear(0.0, 0.5)))
    assert named == "Sparsity(value=0.5) by Ramp(begin=0.0, end=0.5, shape='linear')"
    mine = str(constraint(Params(30), lambda p: p * p))
    assert mine == "Params(count=30) by a schedule of your own (0, 0.0625, 0.25, 0.5625, 1)"
    assert (Params(30).words(1234.4), Flops(217).words(1e6)) == ("1,234", "1,000,000")


def test_a_copy_has_the_thresholds_and_order_of_the_original():
    sparsifier, other = sparsified(schedule=constant()), sparsified(goal=Params(10), schedule=constant())
    ours, theirs = sparsifier.targets, other.targets
    assert float(theirs[0].transform.alpha) != float(ours[0].transform.alpha)
    assert copied(ours, theirs[::-1]) == tuple(theirs)
    for mine, copy in zip(ours, theirs, strict=True):
        for name, value in mine.transform.named_buffers():
            torch.testing.assert_close(copy.transform.get_buffer(name), value, rtol=0, atol=0, equal_nan=True)


def test_a_copy_takes_nothing_from_what_is_baked_already_and_the_rest_from_what_is_not():
    ours, theirs = sparsified(schedule=constant()).targets, sparsified(goal=Params(10), schedule=constant()).targets
    before = [float(t.transform.alpha) for t in theirs]
    parametrize.remove_parametrizations(ours[0].module, "weight")
    copied(ours, theirs)
    after = [float(t.transform.alpha) for t in theirs]
    assert after[0] == before[0] and after[1] == float(ours[1].transform.alpha) != before[1]


def test_what_is_no_copy_is_refused_by_name():
    ours = sparsified().targets
    with pytest.raises(ValueError, match=r"does not manage 1\.weight"):
        copied(ours, ours[:1])
    masks = sparsified(GMP()).targets
    with pytest.raises(ValueError, match=r"0\.weight was frozen since this copy was made"):
        copied(ours, masks)
    # Also where only a later one is, of a copy that nobody trained.
    with pytest.raises(ValueError, match=r"1\.weight was frozen since this copy was made"):
        copied(ours, [sparsified().targets[0], masks[1]])


def test_a_part_of_a_copy_has_its_targets_and_a_predictor_of_its_own():
    given, other = constraint(Params(30)), sparsified().targets
    theirs = given.on(nn.Linear(1, 1), other[::-1])
    assert [m.target for m in theirs.tensors] == list(other)
    assert theirs.predictor is not given.predictor and (theirs.final, theirs.joint) == (given.final, None)
