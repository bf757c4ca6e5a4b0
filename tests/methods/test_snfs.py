"""SNFS by hand: Dettmers and Zettlemoyer 2019, with the numbers of the authors' sparselearning/core.py."""

import math

import pytest
import torch
from on_paper import begun, layer, mask, push, raw, set_mask
from torch.optim import SGD, Adam, Adamax

import softprune
from softprune import Budget, Flops, constant
from softprune.methods import SNFS

HALVES = Budget({"0.weight": 0.5, "1.weight": 0.5})


def two_layers(make=lambda p: SGD(p, lr=0.0, momentum=0.9), **settings):
    model = layer([0.1, -0.2, 0.3, 0.9, 0.5, 0.5, 0.5, 0.5], [0.8, 0.7, -1.0, 1.1, 0.5, 0.5, 0.5, 0.5])
    method = SNFS(**{"every": 1, "rate": 0.5, "last_rate": 0.5, "end": 1.0, **settings})
    sparsifier, optimizer = begun(model, method, optimizer=make(model.parameters()), budget=HALVES)
    for number in (0, 1):
        set_mask(sparsifier, number, [1, 1, 1, 1, 0, 0, 0, 0])
    return sparsifier, optimizer


def test_momentum_says_which_tensor_grows_and_where():
    sparsifier, optimizer = two_layers()
    # Each loses ceil(0.5 * 4) = 2, the smallest |w|. The mean |M| of the living is 1 and 3: 4 are grown as 1 and 3.
    first = [1.0, -1.0, 1.0, 1.0, 0.1, 5.0, 0.2, 0.3]
    second = [3.0, 3.0, -3.0, 3.0, 9.0, -8.0, 7.0, 0.1]
    push(sparsifier, optimizer, first, second)
    assert mask(sparsifier, 0) == [0, 0, 1, 1, 0, 1, 0, 0]
    assert mask(sparsifier, 1) == [0, 0, 1, 1, 1, 1, 1, 0]
    assert raw(sparsifier, 0) == pytest.approx([0, 0, 0.3, 0.9, 0, 0, 0, 0])
    assert raw(sparsifier, 1) == pytest.approx([0, 0, -1.0, 1.1, 0, 0, 0, 0])


def test_what_was_dropped_competes_again():
    sparsifier, optimizer = two_layers()
    push(sparsifier, optimizer, [9.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.1], [3.0, 3.0, 3.0, 3.0, 0.1, 0.1, 0.1, 0.1])
    # The means are 3 and 3: two each, at the largest |M| among all that are empty now.
    assert mask(sparsifier, 0) == [1, 1, 1, 1, 0, 0, 0, 0] and raw(sparsifier, 0)[0] == 0.0
    assert mask(sparsifier, 1) == [1, 1, 1, 1, 0, 0, 0, 0]


def test_a_nearly_dense_and_important_tensor_loses_at_most_its_sparsity():
    dense = Budget({"0.weight": 0.9, "1.weight": 0.5})
    model = layer([float(n) for n in range(1, 11)], [float(n) for n in range(1, 11)])
    sparsifier, optimizer = begun(
        model,
        SNFS(every=1, rate=0.5, last_rate=0.5),
        optimizer=SGD(model.parameters(), lr=0.0, momentum=0.9),
        budget=dense,
    )
    set_mask(sparsifier, 0, [1] * 9 + [0])
    set_mask(sparsifier, 1, [1] * 5 + [0] * 5)
    push(sparsifier, optimizer, [5.0] * 10, [1.0] * 10)
    # Sparsity 0.1 is below 0.2 and |M| above the mean: ceil(0.1 * 9) = 1 goes instead of 5. Of the other ceil(2.5) = 3.
    # Of 4 the shares are 10/3 and 2/3; the first has 2 empty places, and int(0.99 * 2) = 1 of them is filled.
    assert sum(mask(sparsifier, 0)) == 9 and sum(mask(sparsifier, 1)) == 5


def test_the_rate_falls_as_a_cosine():
    # p = p_1 + (p_0 - p_1) / 2 * (1 + cos(pi * t / T)); all of one tensor, so every place lost is seen as a zero.
    model = layer([float(n) for n in range(1, 1001)])
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.9)
    sparsifier, _ = begun(
        model, SNFS(every=1, rate=0.5, last_rate=0.1, end=1.0), optimizer=optimizer, budget=Budget({"0.weight": 0.5})
    )
    target, lost = sparsifier.targets[0], []
    for _ in range(10):
        with torch.no_grad():
            target.raw.copy_(torch.arange(1.0, 1001.0))
        push(sparsifier, optimizer, [1.0] * 1000)
        lost.append(int((target.raw[target.transform.mask] == 0).sum()))
    wanted = [math.ceil((0.1 + 0.2 * (1 + math.cos(math.pi * t / 10))) * 500) for t in range(1, 11)]
    assert lost == wanted


def test_the_momentum_of_adam_is_the_step_it_would_make():
    sparsifier, optimizer = two_layers(lambda p: Adam(p, lr=0.0, betas=(0.5, 0.75)))
    # After one step exp_avg = g / 2 and exp_avg_sq = g^2 / 4: their quotient is 1 for every gradient but 0.
    push(sparsifier, optimizer, [1.0] * 5 + [0.0, 7.0, 0.0], [2.0] * 5 + [0.0, 0.1, 0.0])
    assert mask(sparsifier, 0) == [1, 1, 1, 1, 0, 0, 0, 0]
    assert mask(sparsifier, 1) == [1, 1, 1, 1, 0, 0, 0, 0]


def test_an_optimizer_with_another_second_moment_works():
    sparsifier, optimizer = two_layers(lambda p: Adamax(p, lr=0.01))
    push(sparsifier, optimizer, torch.randn(8).tolist(), torch.randn(8).tolist())
    assert sum(mask(sparsifier, 0)) + sum(mask(sparsifier, 1)) == 8


def test_pruned_weights_get_a_gradient_and_stay_zero():
    model = layer([0.1, 0.2, 0.3, 0.4])
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparsifier, _ = begun(model, SNFS(every=9), optimizer=optimizer, budget=Budget({"0.weight": 0.5}))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        assert sparsifier.targets[0].raw.grad.tolist() == [[1.0] * 4]
        optimizer.step()
    pruned = [w for w, on in zip(raw(sparsifier), mask(sparsifier), strict=True) if not on]
    assert pruned == [0.0, 0.0]


def test_without_momentum_there_is_nothing_to_read():
    with pytest.raises(ValueError, match=r"momentum, which SGD has not for 0.weight: set momentum=0.9"):
        two_layers(lambda p: SGD(p, lr=0.1))
    with pytest.raises(ValueError, match="SNFS reads the momentum"):
        two_layers(lambda p: SGD([{"params": list(p), "momentum": 0.0}], lr=0.1, momentum=0.9))
    sparsifier, _ = two_layers(lambda p: SGD([{"params": list(p), "momentum": 0.9}], lr=0.1))
    assert sparsifier.total_steps == 10


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="divide it first"):
        softprune.sparsify(layer([1.0, 2.0]), SNFS(), goal=Flops(1))
    with pytest.raises(ValueError, match="SNFS is sparse from the first step on"):
        softprune.sparsify(layer([1.0, 2.0], [1.0, 2.0]), SNFS(), budget=HALVES, schedule=constant())
    for wrong in ({"rate": 0.0}, {"last_rate": 1.5}, {"every": -1}, {"end": 2}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SNFS(**wrong)


@pytest.mark.parametrize(
    ("gradients", "first", "second"),
    [
        # Sparsity 0.1 and important: ceil(0.1 * 9) = 1 goes. The other loses ceil(0.8 * 5) = 4.
        ((5.0, 1.0), 1, 4),
        # As dense but not important: ceil(0.8 * 9) = 8. An important one that is half empty loses its 4 all the same.
        ((1.0, 5.0), 8, 4),
    ],
    ids=["important", "unimportant"],
)
def test_only_a_nearly_dense_tensor_that_is_important_is_spared(gradients, first, second):
    model = layer([float(n) for n in range(1, 11)], [float(n) for n in range(1, 11)])
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.9)
    method, budget = SNFS(every=1, rate=0.8, last_rate=0.8), Budget({"0.weight": 0.9, "1.weight": 0.5})
    sparsifier, _ = begun(model, method, optimizer=optimizer, budget=budget)
    set_mask(sparsifier, 0, [1] * 9 + [0])
    set_mask(sparsifier, 1, [1] * 5 + [0] * 5)
    push(sparsifier, optimizer, *([g] * 10 for g in gradients))
    # What went is 0, also where it was grown again.
    assert raw(sparsifier, 0) == [0.0] * first + [float(n) for n in range(first + 1, 10)] + [0.0]
    assert raw(sparsifier, 1) == [0.0] * second + [5.0] + [0.0] * 5


def test_the_largest_weight_of_a_tensor_stays_at_any_rate():
    sparsifier, optimizer = two_layers(rate=1.0, last_rate=1.0)
    push(sparsifier, optimizer, [1.0] * 8, [1.0] * 8)
    assert raw(sparsifier, 0) == pytest.approx([0, 0, 0, 0.9, 0, 0, 0, 0])
    assert raw(sparsifier, 1) == pytest.approx([0, 0, 0, 1.1, 0, 0, 0, 0])


def test_the_sign_of_adams_step_plays_no_part():
    sparsifier, optimizer = two_layers(lambda p: Adam(p, lr=0.0, betas=(0.5, 0.75)))
    push(sparsifier, optimizer, [0.0, 0.0, -1.0, 1.0, 0.0, -3.0, 0.0, 2.0], [0.0, 0.0, -1.0, 1.0, 0.0, -3.0, 0.0, 2.0])
    assert mask(sparsifier, 0) == mask(sparsifier, 1) == [0, 0, 1, 1, 0, 1, 0, 1]


def test_what_it_does_not_manage_needs_no_momentum():
    model = layer([0.1, -0.2, 0.3, 0.9])
    other = torch.nn.Parameter(torch.zeros(3))
    groups = [{"params": [model[0].weight], "momentum": 0.9}, {"params": [other]}]
    begun(model, SNFS(every=1), optimizer=SGD(groups, lr=0.1), budget=Budget({"0.weight": 0.5}))
    again = layer([0.1, -0.2, 0.3, 0.9])
    groups = [{"params": [again[0].weight]}, {"params": [other], "momentum": 0.9}]
    with pytest.raises(ValueError, match=r"SGD has not for 0\.weight"):
        begun(again, SNFS(every=1), optimizer=SGD(groups, lr=0.1), budget=Budget({"0.weight": 0.5}))
