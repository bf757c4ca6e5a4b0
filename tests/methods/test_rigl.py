"""RigL by hand: Evci et al. 2020, Algorithm 1 (drop the smallest |w|, grow the largest |gradient|)."""

import math

import pytest
import torch
from on_paper import begun, layer, mask, push, raw, set_mask
from torch.optim import SGD

import softprune
from softprune import Budget, Sparsity, constant
from softprune.methods import RigL
from softprune.methods.rigl import exchange

HALF = Budget({"0.weight": 0.5})


def row(*values):
    return torch.tensor(values)


def on(*values):
    return torch.tensor(values, dtype=torch.bool)


def test_the_smallest_goes_and_the_largest_gradient_comes():
    # 4 of 8 live, k = floor(0.5 * 4) = 2: the smallest |w|, 0.1 and -0.2, go; the largest |g| of the rest are 7 and -6.
    w = row(0.1, -0.2, 0.3, 0.4, 0.0, 0.0, 0.0, 0.0)
    g = row(0.0, 0.0, 9.0, 9.0, 1.0, -6.0, 7.0, 5.0)
    assert exchange(w, g, on(1, 1, 1, 1, 0, 0, 0, 0), 0.5).int().tolist() == [0, 0, 1, 1, 0, 1, 1, 0]


def test_what_was_dropped_may_come_back_at_once():
    # In the authors' code the k just dropped compete too: |g| of the first is the largest outside.
    w, g = row(0.1, 0.5, 0.0, 0.0), row(8.0, 1.0, 3.0, 2.0)
    assert exchange(w, g, on(1, 1, 0, 0), 0.5).int().tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(("fraction", "moved"), [(0.0, 0), (0.24, 0), (0.25, 1), (0.6, 2), (1.0, 4)])
def test_k_is_rounded_down(fraction, moved):
    w, g = row(0.1, 0.2, 0.3, 0.4, 0.0, 0.0, 0.0, 0.0), row(0.0, 0.0, 0.0, 0.0, 4.0, 3.0, 2.0, 1.0)
    after = exchange(w, g, on(1, 1, 1, 1, 0, 0, 0, 0), fraction)
    assert int(after.sum()) == 4 and int(after[4:].sum()) == moved


def test_an_exchange_takes_the_place_of_a_step():
    model = layer([0.1, 0.4, 0.7, 0.8])
    optimizer = SGD(model.parameters(), lr=1.0, momentum=0.9)
    sparsifier, _ = begun(model, RigL(every=2, alpha=1.0, end=1.0), optimizer=optimizer, budget=HALF)
    set_mask(sparsifier, 0, [1, 1, 0, 0])
    transform = sparsifier.targets[0].transform
    push(sparsifier, optimizer, [0.0, 0.0, 0.0, 0.0])
    assert not transform.dense_grad
    push(sparsifier, optimizer, [0.1, 0.1, 0.0, 0.0])
    # After two steps the next gradient shall be dense: w is then (0, 0.3, 0.7, 0.8) with momentum (0.1, 0.1, 0, 0).
    assert transform.dense_grad and raw(sparsifier) == pytest.approx([0.0, 0.3, 0.7, 0.8])
    # f = (1 + cos(pi * 2 / 10)) / 2 = 0.905, k = floor(1.81) = 1: the first goes, |g| = 5 comes.
    push(sparsifier, optimizer, [0.0, 9.0, 5.0, 4.0])
    assert mask(sparsifier) == [0, 1, 1, 0]
    assert raw(sparsifier) == pytest.approx([0.0, 0.3, 0.0, 0.0]), "the others have not moved, the new one begins at 0"
    momentum = optimizer.state[sparsifier.targets[0].raw]["momentum_buffer"].flatten().tolist()
    assert momentum == pytest.approx([0.0, 0.1, 0.0, 0.0])
    assert not transform.dense_grad


def test_the_fraction_falls_as_a_cosine_and_masks_stay_at_the_end():
    # alpha / 2 * (1 + cos(pi * t / T_end)), Evci et al. 2020, section 3 (3); with 1000 of 2000 weights and T_end = 6.
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2000, 1, bias=False))
    sparsifier, optimizer = begun(model, RigL(every=1, alpha=0.4, end=0.6), budget=HALF)
    before, moved = mask(sparsifier), []
    for step in range(10):
        dropped_gradients = torch.where(sparsifier.targets[0].transform.mask, 0.0, 1.0 + torch.rand(1, 2000))
        push(sparsifier, optimizer, dropped_gradients[0].tolist())
        moved.append(sum(a and not b for a, b in zip(mask(sparsifier), before, strict=True)))
        before = mask(sparsifier)
        assert sum(before) == 1000, step
    wanted = [0] + [200 * (1 + math.cos(math.pi * t / 6)) for t in range(1, 7)] + [0, 0, 0]
    assert moved == pytest.approx(wanted, abs=1.01), "rounded down"


def test_a_layer_without_gradient_keeps_its_mask():
    model = layer([0.1, 0.4, 0.7, 0.8])
    sparsifier, optimizer = begun(model, RigL(every=1, alpha=1.0, end=1.0), budget=HALF)
    before = mask(sparsifier)
    for _ in range(3):
        optimizer.zero_grad()
        optimizer.step()
    assert mask(sparsifier) == before


def test_a_goal_for_all_is_refused():
    with pytest.raises(ValueError, match="RigL keeps what each tensor is given and cannot share a goal out: pass a bu"):
        softprune.sparsify(layer([1.0, 2.0]), RigL(), goal=Sparsity(0.5))
    with pytest.raises(ValueError, match="RigL prunes to a total and got none"):
        softprune.sparsify(layer([1.0, 2.0]), RigL())


def test_a_schedule_is_refused():
    with pytest.raises(ValueError, match="RigL is sparse from the first step on: leave out the schedule"):
        softprune.sparsify(layer([1.0, 2.0]), RigL(), budget=HALF, schedule=constant())


@pytest.mark.parametrize(
    "wrong",
    [{"every": 0}, {"every": 2.5}, {"every": True}, {"alpha": 0.0}, {"alpha": 1.5}, {"end": 0.0}, {"end": "late"}],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RigL(**wrong)


def test_sizes_decide_whatever_the_signs_and_what_is_kept_is_not_grown_again():
    on = torch.tensor([True, True, False, False])
    # -2 stays and 0.1 goes; of the rest the last has the largest gradient.
    grad = torch.tensor([1.0, 9.0, 3.0, -5.0])
    assert exchange(torch.tensor([0.1, -2.0, 0.0, 0.0]), grad, on, 0.5).tolist() == [False, True, False, True]
    # Without any gradient the first of the others joins, so that the number stays.
    assert exchange(torch.tensor([3.0, 2.0, 0.0, 0.0]), torch.zeros(4), on, 0.5).tolist() == [True, True, False, False]
