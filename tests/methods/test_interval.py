"""When masks are renewed."""

import pytest
import torch
from on_paper import begun, layer
from torch import nn

import softprune
from softprune import Budget
from softprune.methods import DPF, DSR, SET, SNFS, RigL
from softprune.methods.base import Context
from softprune.methods.masks import due, refuse_too_long, require_fraction


def at(step, total_steps=20):
    return Context(step, total_steps, (), ())


def test_every_third_step_up_to_the_end_but_not_before_the_first():
    assert [n for n in range(21) if due(at(n), 3, 0.6)] == [3, 6, 9, 12]
    assert [n for n in range(21) if due(at(n), 5, 1.0)] == [5, 10, 15, 20]


def test_an_interval_that_never_ends_is_refused_with_a_number_that_does():
    refuse_too_long(at(0), 12, 0.6)
    with pytest.raises(ValueError, match=r"every 13 steps until step 12 of 20, .* set every to 1 or so"):
        refuse_too_long(at(0), 13, 0.6)


@pytest.mark.parametrize("method", [RigL(every=9), SET(every=9), DSR(every=11), SNFS(every=11)], ids=lambda m: str(m))
def test_attaching_refuses_an_interval_longer_than_the_run(method):
    with pytest.raises(ValueError, match=f"masks are renewed every {method.every} steps"):
        begun(layer([1.0, 2.0, 3.0, 4.0]), method, steps=10, budget=Budget({"0.weight": 0.5}))


@pytest.mark.parametrize("value", [0, -0.1, 1.1, float("nan"), True, "half", None])
def test_what_is_no_fraction(value):
    with pytest.raises(ValueError, match="share is a fraction above 0 and at most 1"):
        require_fraction("share", value)


def test_the_ends_of_the_range():
    assert require_fraction("share", 1) is None and require_fraction("share", 1e-9) is None


@pytest.mark.parametrize("method", [softprune.GMP(every=11), DPF(every=11)], ids=["gmp", "dpf"])
def test_masks_that_would_be_made_once_at_the_end_are_refused(method):
    model = nn.Linear(4, 3)
    sparsifier = softprune.sparsify(model, method, goal=softprune.Sparsity(0.5))
    with pytest.raises(ValueError, match=r"every 11 steps, but the training has 10: lower every"):
        sparsifier.attach(torch.optim.SGD(model.parameters(), lr=0.1), total_steps=10)


def test_an_interval_as_long_as_the_training_fits():
    sparsifier, _ = begun(layer([1.0, 2.0]), DPF(every=10), steps=10, budget=Budget({"0.weight": 0.5}))
    assert sparsifier.total_steps == 10
    with pytest.raises(ValueError, match="every 11 steps, but the training has 10"):
        begun(layer([1.0, 2.0]), DPF(every=11), steps=10, budget=Budget({"0.weight": 0.5}))
