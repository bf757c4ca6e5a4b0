"""DNW by hand: Wortsman et al. 2019, section 3: the k largest |w| are used, and all weights get the gradient."""

import pytest
import torch
from on_paper import begun, layer, push, raw

import softprune
from softprune import Budget, Sparsity
from softprune.methods import DNW

HALF = Budget({"0.weight": 0.5})


def effective(model):
    return model[0].weight.detach().flatten().tolist()


def test_the_largest_are_used_from_the_first_moment():
    model = layer([0.1, -0.4, 0.3, 0.2])
    softprune.sparsify(model, DNW(), budget=HALF)
    assert effective(model) == pytest.approx([0.0, -0.4, 0.3, 0.0])


def test_a_pruned_weight_learns_and_comes_back():
    model = layer([0.1, -0.4, 0.3, 0.2])
    sparsifier, optimizer = begun(model, DNW(), budget=HALF)
    model(torch.tensor([[-1.0, 0.0, 0.0, 0.0]])).sum().backward()
    # dL/dw of the first is -1, as if it were in use: 0.1 + 1 is among the two largest afterwards.
    assert sparsifier.targets[0].raw.grad.flatten().tolist() == [-1.0, 0.0, 0.0, 0.0]
    optimizer.step()
    assert raw(sparsifier) == pytest.approx([1.1, -0.4, 0.3, 0.2])
    assert effective(model) == pytest.approx([1.1, -0.4, 0.0, 0.0])


def test_a_goal_shares_one_threshold_over_all_tensors():
    model = layer([0.1, 0.2, 0.3, 0.4], [0.35, 0.5, 0.6, 0.7])
    sparsifier = softprune.sparsify(model, DNW(), goal=Sparsity(0.5))
    assert [int(torch.count_nonzero(t.effective)) for t in sparsifier.targets] == [1, 3]


def test_a_tensor_of_zeros_is_waited_for():
    # No weight of it is larger than another: all may grow, and the largest are chosen as soon as there are some.
    model = layer([0.0, 0.0, 0.0, 0.0])
    sparsifier, optimizer = begun(model, DNW(), budget=HALF)
    push(sparsifier, optimizer, [-0.1, -0.2, 0.3, 0.4])
    assert effective(model) == pytest.approx([0.0, 0.0, -0.3, -0.4])


def test_no_total_is_refused():
    with pytest.raises(ValueError, match="DNW prunes to a total and got none"):
        softprune.sparsify(layer([1.0, 2.0]), DNW())
