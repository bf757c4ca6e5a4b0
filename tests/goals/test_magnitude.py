import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

from softprune import Filters, Flops, Params, Sparsity, global_magnitude, profile
from softprune.goals.base import Goal


def model_of(*rows, dtype=torch.float32):
    """Bias-free linear layers with the given weights, one row each."""
    layers = nn.ModuleList(nn.Linear(len(row), 1, bias=False, dtype=dtype) for row in rows)
    with torch.no_grad():
        for layer, row in zip(layers, rows, strict=True):
            layer.weight.copy_(torch.tensor([row], dtype=dtype))
    return layers


class Chain(nn.Module):
    """Linear 4 -> 2 used once and 2 -> 2 used three times: a weight of the second costs three MACs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 2, bias=False), nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([[8.0, 1.0, 6.0, 1.0], [5.0, 1.0, 1.0, 1.0]]))
            self.second.weight.copy_(torch.tensor([[7.0, 2.0], [4.0, 3.0]]))

    def forward(self, x):
        x = self.first(x)
        for _ in range(3):
            x = self.second(x)
        return x


def test_one_threshold_by_hand():
    model = model_of([0.1, -0.9, 0.3, 0.2], [-0.8, 0.05], [0.01, 0.02, 0.03])
    # the four largest of nine: 0.9, 0.8, 0.3, 0.2
    assert dict(global_magnitude(model, Params(4))) == {"0.weight": 0.75, "1.weight": 0.5, "2.weight": 0.0}
    # 5 of 9 zeros: round(0.55 * 9)
    assert dict(global_magnitude(model, Sparsity(0.55))) == dict(global_magnitude(model, Params(4)))


def test_ties_go_to_the_earlier_tensor():
    model = model_of([1.0, -1.0], [1.0, 1.0, 2.0], [1.0])
    assert dict(global_magnitude(model, Params(4))) == {"0.weight": 1.0, "1.weight": 2 / 3, "2.weight": 0.0}
    zeros = model_of([0.0, 0.0], [0.0, -0.0])
    assert dict(global_magnitude(zeros, Params(3))) == {"0.weight": 1.0, "1.weight": 0.5}


def test_flops_by_hand():
    model = Chain()
    costs = profile(model, torch.zeros(1, 4))
    assert [t.macs for t in costs] == [8, 12]
    # in order of size: 8 (1), 7 (3), 6 (1), 5 (1) make 6; the next, 4, costs 3 more
    for macs in (6, 7, 8):
        budget = global_magnitude(model, Flops(macs), profile=costs)
        assert dict(budget) == {"first.weight": 3 / 8, "second.weight": 1 / 4}
    assert dict(global_magnitude(model, Flops(9), profile=costs))["second.weight"] == 2 / 4
    assert global_magnitude(model, Flops(20), profile=costs).macs() == 20


def test_flops_ties_stop_at_the_first_that_does_not_fit():
    model = Chain()
    for layer in (model.first, model.second):
        nn.init.ones_(layer.weight)
    costs = profile(model, torch.zeros(1, 4))
    budget = global_magnitude(model, Flops(12), profile=costs)
    # eight weights of the first (8 MACs), then one of the second (3); another would make 14
    assert dict(budget) == {"first.weight": 1.0, "second.weight": 0.25}


def test_goals_that_cannot_be_met():
    model = Chain()
    costs = profile(model, torch.zeros(1, 4))
    with pytest.raises(ValueError, match="a Flops goal needs the costs"):
        global_magnitude(model, Flops(5))
    with pytest.raises(ValueError, match="choose more than 0 and at most 20 multiply-adds"):
        global_magnitude(model, Flops(21), profile=costs)
    with pytest.raises(ValueError, match="at most 12 weights"):
        global_magnitude(model, Params(13))
    # second's 12 MACs are fixed when it has no row
    with pytest.raises(ValueError, match="choose more than 12 and at most 20"):
        global_magnitude(model, Flops(12), profile=costs.only(["first.weight"]))


def test_goals_that_count_more_than_the_weights_are_refused():
    for goal, message in ((Params(9, "all"), "an allocator does not see"), (Filters(3), "counts filters")):
        with pytest.raises(ValueError, match=message):
            global_magnitude(Chain(), goal)


def test_a_goal_of_ones_own_that_counts_multiply_adds_needs_them():
    class Half(Goal):
        def amount(self, profile):
            return profile.macs / 2

    with pytest.raises(ValueError, match="multiply-adds were not counted"):
        global_magnitude(Chain(), Half())


def test_only_the_profiles_tensors_are_ranked():
    model = Chain()
    part = profile(model, torch.zeros(1, 4)).only(["first.weight"])
    budget = global_magnitude(model, Params(2), profile=part)
    assert dict(budget) == {"first.weight": 0.25}
    assert budget.profile is part


def test_foreign_profile_is_refused():
    costs = profile(Chain(), torch.zeros(1, 4))
    with pytest.raises(ValueError, match=r"no parameter first\.weight, second\.weight"):
        global_magnitude(nn.Linear(4, 2), Params(2), profile=costs)
    other = Chain()
    other.first = nn.Linear(5, 2)
    with pytest.raises(ValueError, match=r"another model: first\.weight"):
        global_magnitude(other, Params(2), profile=costs)


def test_weights_that_cannot_be_ranked_are_refused_by_name():
    model = model_of([1.0, 2.0], [float("nan"), 1.0])
    with pytest.raises(ValueError, match=r"1\.weight contains NaN"):
        global_magnitude(model, Params(2))
    with pytest.raises(ValueError, match=r"0\.weight is on the meta device"):
        global_magnitude(model.to("meta"), Params(2))
    with pytest.raises(ValueError, match="no prunable weights"):
        global_magnitude(nn.ReLU(), Params(2))


def test_infinite_weights_are_simply_large():
    assert dict(global_magnitude(model_of([1.0, 2.0], [-float("inf"), 0.0]), Params(1)))["1.weight"] == 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types(dtype):
    model = model_of([0.1, -0.9, 0.3, 0.2], [-0.8, 0.05], dtype=dtype)
    assert dict(global_magnitude(model, Params(3))) == {"0.weight": 0.5, "1.weight": 0.5}


def test_tied_weights_count_once():
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    assert dict(global_magnitude(nn.Sequential(first, second), Params(3))) == {"0.weight": 0.75}


def test_parametrized_weights_are_ranked_raw():
    class Zero(nn.Module):
        def forward(self, w):
            return w * 0

    model = model_of([0.1, -0.9, 0.3, 0.2], [-0.8, 0.05])
    plain = global_magnitude(model, Params(3))
    parametrize.register_parametrization(model[0], "weight", Zero())
    assert global_magnitude(model, Params(3)) == plain


values = st.lists(st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 2.0]), min_size=1, max_size=8)


@given(st.lists(values, min_size=1, max_size=4), st.data())
def test_it_is_the_prefix_of_a_stable_sort(rows, data):
    model = model_of(*rows)
    flat = [(-abs(v), i) for i, row in enumerate(rows) for v in row]
    count = data.draw(st.integers(1, len(flat)))
    kept = [i for _, i in sorted(flat)[:count]]
    expected = {f"{i}.weight": kept.count(i) / len(row) for i, row in enumerate(rows)}
    assert dict(global_magnitude(model, Params(count))) == expected
