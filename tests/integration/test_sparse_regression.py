"""The example on sparse regression, small: what it claims holds on easy instances."""

import pytest
import torch
from examples_folder import loaded


@pytest.fixture(scope="module")
def example():
    with loaded("sparse_regression") as module:
        yield module


@pytest.mark.parametrize("seed", range(3))
def test_a_goal_of_r_weights_finds_the_support(example, seed):
    X, y, true = example.problem(60, 120, 3, seed)
    found = example.str_goal(X, y, 3, steps=150)
    assert example.precision_and_recall(found, true) == (1.0, 1.0)
    # Descent on r weights with n equations: the values come out too.
    torch.testing.assert_close(found, true, atol=1e-2, rtol=0.0)


def test_the_threshold_that_decay_raises_keeps_the_support_and_with_a_large_k_nothing_else(example):
    X, y, true = example.problem(60, 120, 3, 0)
    by_the_paper = example.str_decay(X, y, 3, k=1.0, tied=True, steps=300)
    further = example.str_decay(X, y, 3, k=32.0, tied=False, steps=300)
    assert example.precision_and_recall(by_the_paper, true)[1] == 1.0
    assert 3 < int((by_the_paper != 0).sum()) < 120
    assert example.precision_and_recall(further, true) == (1.0, 1.0)


@pytest.mark.parametrize("name", ["backward_selection", "hard_thresholding", "soft_thresholding"])
def test_the_methods_it_is_compared_with_find_the_support_too(example, name):
    X, y, true = example.problem(60, 120, 3, 0)
    assert example.precision_and_recall(getattr(example, name)(X, y, 3), true)[1] == 1.0


def test_the_least_norm_solution_has_the_energy_n_over_d(example):
    found = example.energy(40, 200, 4, seeds=30)
    assert abs(found["mean_on_support"] - 40 / 200) < 3 * found["standard_error"]


def test_the_mean_on_the_support_is_the_energy(example):
    X, y, true = example.problem(20, 50, 3, 0)
    w = example.least_norm(X, y)
    torch.testing.assert_close(X @ w, y)
    torch.testing.assert_close(w @ true, w @ w)


def test_the_masked_gradient_stops_short_of_the_optimum_of_a_convex_problem(example):
    end = example.counterexample(steps=1000)
    assert end["loss_at_end"] > end["loss_at_optimum"] + 0.5
    # By hand: with the second weight at 0 the first one is best at 1.5, where the loss is 0.75.
    assert end["loss_at_end"] == pytest.approx(0.75)
    assert end["weights_at_end"] == pytest.approx([1.5, 0.0])
    # It has come to rest, and the convex loss would go on.
    assert end["largest_slope_of_w_and_s"] < 1e-9
    assert abs(end["slopes_of_the_convex_loss"][1]) > 0.1


def test_the_straight_through_gradient_does_not(example):
    assert example.counterexample(example.straight_through, steps=1000)["loss_at_end"] < 1e-9
