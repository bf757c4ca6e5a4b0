import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softprune import Budget, Flops, Params, Profile, Sparsity, erk, scaled, uniform
from softprune.budget.costs import TensorCost

# raw ERK values: (4+2+3+3)/72 = 1/6, (8+4)/32 = 3/8, (2+8)/16 = 5/8
PROFILE = Profile(
    (TensorCost("a", (4, 2, 3, 3), 720), TensorCost("b", (8, 4), 64), TensorCost("c", (2, 8), 16)),
    other_macs=100,
    pool_macs=10,
)


def test_uniform():
    budget = uniform(PROFILE, Sparsity(0.75))
    assert dict(budget) == {"a": 0.25, "b": 0.25, "c": 0.25}
    assert budget.overall == 0.75
    assert budget.source == "uniform, Sparsity(value=0.75)"


def test_uniform_params_and_flops_by_hand():
    # 120 weights, 800 prunable MACs, 110 fixed
    assert dict(uniform(PROFILE, Params(30))) == {"a": 0.25, "b": 0.25, "c": 0.25}
    assert dict(uniform(PROFILE, Flops(310))) == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.25})


def test_dense_tensors_are_left_out_of_the_sparsity_but_not_of_the_counts():
    assert dict(uniform(PROFILE, Sparsity(0.75), dense=["c"])) == {"a": 0.25, "b": 0.25, "c": 1.0}
    # 16 of 29 weights are c's: 13 are left for 104
    assert dict(uniform(PROFILE, Params(29), dense=["c"])) == {"a": 0.125, "b": 0.125, "c": 1.0}
    # 16 MACs are c's and 110 fixed: 98 are left for 784
    assert dict(uniform(PROFILE, Flops(224), dense=["c"])) == pytest.approx({"a": 0.125, "b": 0.125, "c": 1.0})


def test_erk_by_hand():
    # zeros 54 + 24 + 12 leave 30 weights; eps = 30 / (12 + 12 + 10) = 15/17
    eps = 15 / 17
    budget = erk(PROFILE, Sparsity(0.75))
    assert dict(budget) == pytest.approx({"a": eps / 6, "b": eps * 3 / 8, "c": eps * 5 / 8})
    assert budget.params == 30


def test_erk_keeps_tensors_whole_that_would_pass_one():
    # zeros 36 + 16 + 8 leave 60; eps = 60/34 makes c 1.1: c whole, eps = (60 - 16)/24 makes b 0.6875
    eps = 44 / 24
    assert dict(erk(PROFILE, Sparsity(0.5))) == pytest.approx({"a": eps / 6, "b": eps * 3 / 8, "c": 1.0})


def test_erk_rounds_zeros_down():
    # floor(0.9 * 72) + floor(0.9 * 32) + floor(0.9 * 16) = 64 + 28 + 14 = 106 zeros
    assert erk(PROFILE, Sparsity(0.9)).params == 14


def test_erk_takes_all_layers_at_the_maximum():
    twins = Profile((TensorCost("x", (2, 2), 4), TensorCost("y", (2, 2), 4), TensorCost("z", (32, 32), 1024)))
    # zeros 2 + 2 + 512 leave 516; raw 1, 1, 1/16; eps = 516/72 > 1: both twins whole, z gets 508/1024
    assert dict(erk(twins, Sparsity(0.5))) == {"x": 1.0, "y": 1.0, "z": 508 / 1024}


def test_erk_power_zero_is_uniform():
    assert dict(erk(PROFILE, Params(30), power=0.0)) == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.25})


def test_erk_leaves_dense_tensors_out_of_eps():
    # without c: zeros 54 + 24 leave 26 of 104; eps = 26/24
    assert dict(erk(PROFILE, Sparsity(0.75), dense=["c"])) == pytest.approx(
        {"a": 26 / 144, "b": 26 / 24 * 3 / 8, "c": 1.0}
    )


@pytest.mark.parametrize("power", [-1.0, math.nan, math.inf])
def test_bad_power_is_refused(power):
    with pytest.raises(ValueError, match="power must be a finite number >= 0"):
        erk(PROFILE, Sparsity(0.5), power=power)


@pytest.mark.parametrize("allocate", [uniform, erk])
def test_impossible_wishes_are_refused(allocate):
    with pytest.raises(ValueError, match=r"Params\(count=121\) cannot be reached: choose more than 0 and at most 120"):
        allocate(PROFILE, Params(121))
    with pytest.raises(ValueError, match="choose more than 16 and at most 120 weights"):
        allocate(PROFILE, Params(16), dense=["c"])
    with pytest.raises(ValueError, match="choose more than 110 and at most 910 multiply-adds"):
        allocate(PROFILE, Flops(110))
    with pytest.raises(ValueError, match="more than 126 and at most 910"):
        allocate(PROFILE, Flops(911), dense=["c"])
    with pytest.raises(ValueError, match=r"\['d\*'\] match no tensor"):
        allocate(PROFILE, Sparsity(0.5), dense=["c", "d*"])
    with pytest.raises(ValueError, match="keeps every tensor whole"):
        allocate(PROFILE, Sparsity(0.5), dense=["*"])


@pytest.mark.parametrize("allocate", [uniform, erk])
def test_the_whole_network_is_a_budget_too(allocate):
    assert set(allocate(PROFILE, Params(120)).values()) == {1.0}
    assert set(allocate(PROFILE, Flops(910)).values()) == {1.0}


shapes = st.lists(st.integers(1, 12), min_size=2, max_size=4).map(tuple)
profiles = st.lists(st.tuples(shapes, st.integers(1, 50)), min_size=1, max_size=6).map(
    lambda rows: Profile(tuple(TensorCost(f"t{i}", s, math.prod(s) * uses) for i, (s, uses) in enumerate(rows)), 7, 3)
)


@given(profiles, st.floats(0.01, 0.99), st.sampled_from([uniform, erk]))
def test_allocators_hit_the_goal(profile, fraction, allocate):
    budget = allocate(profile, Sparsity(fraction))
    budget.validate()
    # ERK's zeros are rounded down tensor by tensor, so up to one weight for each tensor is kept more.
    surplus = (fraction - budget.overall) * profile.params
    assert -1e-6 <= surplus <= (len(profile) if allocate is erk else 0) + 1e-6

    count = max(1, int(fraction * profile.params))
    assert allocate(profile, Params(count)).params == count

    macs = 11 + int(fraction * (profile.total_macs() - 11))
    found = allocate(profile, Flops(macs))
    found.validate()
    assert found.macs() == macs


def test_scaled_keeps_the_proportions_of_another_budget_by_hand():
    like = Budget({"a": 0.1, "b": 0.2, "c": 0.5})
    # 7.2 + 6.4 + 8 = 21.6 weights; 10.8 are half of each
    assert dict(scaled(PROFILE, Params(10), like=like)) == pytest.approx(
        {"a": 0.1 * 10 / 21.6, "b": 0.2 * 10 / 21.6, "c": 0.5 * 10 / 21.6}
    )
    # 60 weights: c would pass 1; 44 are left for 13.6
    assert dict(scaled(PROFILE, Sparsity(0.5), like=like)) == pytest.approx(
        {"a": 0.1 * 44 / 13.6, "b": 0.2 * 44 / 13.6, "c": 1.0}
    )
    # 110 fixed MACs; 72 + 12.8 + 8 = 92.8 of the others
    fewer = scaled(PROFILE, Flops(110 + 58), like=like)
    assert dict(fewer) == pytest.approx({"a": 0.1 / 1.6, "b": 0.2 / 1.6, "c": 0.5 / 1.6})


def test_scaled_takes_a_budget_of_a_smaller_network_with_the_same_names():
    small = Profile((TensorCost("a", (2, 1, 3, 3), 9), TensorCost("b", (4, 2), 8), TensorCost("c", (2, 4), 8)))
    like = Budget({"a": 0.5, "b": 0.25, "c": 1.0}, small)
    budget = scaled(PROFILE, Sparsity(0.75), like=like)
    assert budget.params == 30 and budget["a"] == pytest.approx(2 * budget["b"])


def test_scaled_leaves_emptied_tensors_empty_and_refuses_what_the_others_cannot_hold():
    like = Budget({"a": 0.0, "b": 0.2, "c": 0.5}, source="mine")
    assert dict(scaled(PROFILE, Params(48), like=like)) == {"a": 0.0, "b": 1.0, "c": 1.0}
    with pytest.raises(ValueError, match="choose more than 0 and at most 48 weights"):
        scaled(PROFILE, Params(60), like=like)
    with pytest.raises(ValueError, match="keeps 60 weights, the tensors that mine keeps have 48"):
        scaled(PROFILE, Sparsity(0.5), like=like)
    with pytest.raises(ValueError, match="c is missing from the budget"):
        scaled(PROFILE, Params(10), like=Budget({"a": 0.5, "b": 0.5}))
