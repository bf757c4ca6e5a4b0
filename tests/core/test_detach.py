"""Leaving optimizers for others: what loops do that make new ones for every run."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from softprune.core.groups import learnt, take_out
from softprune.core.sparsify import sparsify
from softprune.methods import STR

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")


def _net():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def _step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()


def test_another_optimizer_is_followed_and_the_first_one_no_more():
    sparsifier = sparsify(_net(), STR(s_init=-4.0))
    first, second = (SGD(sparsifier.param_groups(weight_decay=0.1), lr=0.1) for _ in range(2))
    sparsifier.attach(first, total_steps=10)
    _step(sparsifier.model, first)
    sparsifier.detach()
    _step(sparsifier.model, first)
    assert sparsifier.step == 1
    sparsifier.attach(second, total_steps=5)
    _step(sparsifier.model, second)
    assert (sparsifier.step, sparsifier.total_steps) == (2, 5)


def test_detaching_what_is_not_attached_does_nothing():
    sparsifier = sparsify(_net(), STR(s_init=-4.0))
    sparsifier.detach()
    sparsifier.attach(SGD(sparsifier.param_groups(weight_decay=0.1), lr=0.1), total_steps=1)
    sparsifier.detach()
    sparsifier.detach()
    assert sparsifier.step == 0


def test_a_baked_model_is_managed_no_more():
    sparsifier = sparsify(_net(), STR(s_init=-4.0))
    assert sparsifier.managed
    sparsifier.bake()
    assert not sparsifier.managed


@pytest.mark.parametrize("named", [False, True])
def test_thresholds_leave_a_group_of_another_decay_for_one_of_their_own(named):
    method = STR(s_init=-4.0)
    sparsifier = sparsify(_net(), method)
    model = sparsifier.model
    thresholds = learnt(sparsifier.targets)
    optimizer = SGD(model.named_parameters() if named else model.parameters(), lr=0.1, weight_decay=0.01)
    take_out(thresholds, [optimizer], 0.01)
    assert len(optimizer.param_groups[0]["params"]) == 6
    take_out(thresholds, [optimizer], 0.5)
    sparsifier.attach(optimizer, total_steps=10, threshold_decay=0.5)
    weights, own = optimizer.param_groups
    assert (len(weights["params"]), weights["weight_decay"]) == (4, 0.01)
    assert all(a is b for a, b in zip(own["params"], thresholds, strict=True))
    assert own["weight_decay"] == 0.5
    if named:
        assert all(name.endswith((".original", "bias")) for name in weights["param_names"])
        assert all(name.endswith(".s") for name in own["param_names"])
