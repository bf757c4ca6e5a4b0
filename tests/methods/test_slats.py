"""S-LATS by hand: Chen et al. 2023: theta_n = D * (n / N + sin(pi * n / N) / pi), D the threshold at the end."""

import math

import pytest
import torch
from on_paper import begun, layer, push

import softprune
from softprune import Budget
from softprune.methods import SLATS

WEIGHTS = [0.1 * n for n in range(1, 9)]
HALF = Budget({"0.weight": 0.5})


def test_the_threshold_is_a_rising_part_of_the_one_that_meets_the_total():
    model = layer(WEIGHTS)
    sparsifier, optimizer = begun(model, SLATS(), budget=HALF)
    transform = sparsifier.targets[0].transform
    assert torch.equal(model[0].weight, sparsifier.targets[0].raw), "nothing is pruned before the first step"
    for n in range(1, 11):
        push(sparsifier, optimizer, [0.0] * 8)
        rise = n / 10 + math.sin(math.pi * n / 10) / math.pi
        assert float(transform.rise) == pytest.approx(rise)
        # D parts the four largest from the others: 0.4 <= D < 0.5.
        assert 0.4 - 1e-6 <= float(transform.alpha) < 0.5
        wanted = [max(0.0, w - float(transform.alpha) * rise) for w in WEIGHTS]
        assert model[0].weight.flatten().tolist() == pytest.approx(wanted, abs=1e-6)
    assert float(transform.rise) == 1.0 and int(torch.count_nonzero(model[0].weight)) == 4


def test_pruned_weights_get_the_whole_gradient():
    model = layer(WEIGHTS)
    sparsifier, optimizer = begun(model, SLATS(), budget=HALF)
    for _ in range(6):
        push(sparsifier, optimizer, [0.0] * 8)
    assert (model[0].weight == 0).any()
    optimizer.zero_grad()
    model(torch.ones(1, 8)).sum().backward()
    assert sparsifier.targets[0].raw.grad.flatten().tolist() == [1.0] * 8


def half_way():
    model = layer(WEIGHTS)
    sparsifier, optimizer = begun(model, SLATS(), budget=HALF)
    for _ in range(3):
        push(sparsifier, optimizer, [0.0] * 8)
    return model, sparsifier


def test_baking_before_the_end_must_be_asked_for():
    model, sparsifier = half_way()
    with pytest.raises(ValueError, match="the goal holds only later in the training"):
        sparsifier.bake()
    now = model[0].weight.detach().clone()
    assert torch.equal(sparsifier.bake(at="now")[0].weight, now) and int(torch.count_nonzero(now)) > 4
    assert int(torch.count_nonzero(half_way()[1].bake(at="target")[0].weight)) == 4


@pytest.mark.parametrize("what", ["support", "budget"])
def test_freezing_on_the_way_changes_nothing(what):
    model, sparsifier = half_way()
    before = model[0].weight.detach().clone()
    sparsifier.freeze(what)
    assert torch.equal(model[0].weight, before)


def test_what_is_assigned_is_what_is_used():
    model, _ = half_way()
    wanted = torch.tensor([[0.0, 1.0, -2.0, 0.0, 0.5, 0.0, 0.0, 3.0]])
    model[0].weight = wanted
    torch.testing.assert_close(model[0].weight.detach(), wanted)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="SLATS prunes to a total and got none"):
        softprune.sparsify(layer([1.0, 2.0]), SLATS())
    with pytest.raises(ValueError, match="min_keep"):
        SLATS(min_keep=-1)
