"""SNIP by hand: Lee et al. 2019, equation (6): |w * dL/dw|, and the largest are kept."""

import pytest
from on_paper import begun, layer, mask, push, raw
from torch.optim import SGD

import softprune
from softprune import Budget, Flops, Params, constant
from softprune.methods import SNIP

# |w * g| = 0.4, 0.1, 0.6, 0.2 and 0.3, 5.0
FIRST, SECOND = [0.1, 0.1, -0.3, 0.2], [3.0, 1.0]
ON_FIRST, ON_SECOND = [4.0, 1.0, 2.0, -1.0], [0.1, 5.0]


def test_with_a_goal_all_tensors_are_compared():
    sparsifier, optimizer = begun(layer(FIRST, SECOND), SNIP(), goal=Params(3))
    assert mask(sparsifier, 0) == [1, 1, 1, 1]
    push(sparsifier, optimizer, ON_FIRST, ON_SECOND)
    assert mask(sparsifier, 0) == [1, 0, 1, 0] and mask(sparsifier, 1) == [0, 1]


def test_with_a_budget_each_tensor_is_judged_by_itself():
    budget = Budget({"0.weight": 0.25, "1.weight": 0.5})
    sparsifier, optimizer = begun(layer(FIRST, SECOND), SNIP(), budget=budget)
    push(sparsifier, optimizer, ON_FIRST, ON_SECOND)
    assert mask(sparsifier, 0) == [0, 0, 1, 0] and mask(sparsifier, 1) == [0, 1]


def test_the_first_step_is_made_with_the_mask():
    model = layer(FIRST, SECOND)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparsifier, _ = begun(model, SNIP(), optimizer=optimizer, goal=Params(3))
    push(sparsifier, optimizer, ON_FIRST, ON_SECOND)
    assert raw(sparsifier, 0) == pytest.approx([0.1 - 0.4, 0.0, -0.3 - 0.2, 0.0])
    momentum = optimizer.state[sparsifier.targets[0].raw]["momentum_buffer"].flatten().tolist()
    assert momentum == pytest.approx([4.0, 0.0, 2.0, 0.0])


def test_the_mask_never_changes_again():
    sparsifier, optimizer = begun(layer(FIRST, SECOND), SNIP(), goal=Params(3))
    push(sparsifier, optimizer, ON_FIRST, ON_SECOND)
    for _ in range(3):
        push(sparsifier, optimizer, [9.0, 9.0, 9.0, 9.0], [9.0, 9.0])
    assert mask(sparsifier, 0) == [1, 0, 1, 0] and mask(sparsifier, 1) == [0, 1]


@pytest.mark.parametrize("gradients", [([0.0] * 4, [0.0] * 2), (ON_FIRST, [0.0] * 2)], ids=["all", "some"])
def test_scores_of_zero_fill_up_the_total(gradients):
    # A last layer that starts at 0 lets no gradient through, and has none to score with.
    sparsifier, optimizer = begun(layer(FIRST, SECOND), SNIP(), goal=Params(5))
    push(sparsifier, optimizer, *gradients)
    assert sum(mask(sparsifier, 0)) == 4 and mask(sparsifier, 1) == [1, 0]


def test_a_tensor_without_gradient_cannot_be_judged():
    sparsifier, optimizer = begun(layer(FIRST, SECOND), SNIP(), goal=Params(3))
    sparsifier.targets[0].raw.grad = sparsifier.targets[0].raw.detach().clone()
    with pytest.raises(ValueError, match=r"1\.weight has no gradient in the first step"):
        optimizer.step()


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="SNIP prunes to a total and got none"):
        softprune.sparsify(layer(FIRST), SNIP())
    with pytest.raises(ValueError, match="divide it first"):
        softprune.sparsify(layer(FIRST), SNIP(), goal=Flops(2))
    with pytest.raises(ValueError, match="leave out the schedule"):
        softprune.sparsify(layer(FIRST), SNIP(), goal=Params(2), schedule=constant())
