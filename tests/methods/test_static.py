"""Static sparse training: as many weights as the budget says, for ever."""

import pytest
import torch
from on_paper import begun, layer, mask, push

import softprune
from softprune import Budget, Sparsity, constant
from softprune.methods import Static

BUDGET = Budget({"0.weight": 0.375, "1.weight": 0.5})
EIGHT, FOUR = [1.0] * 8, [2.0] * 4


def test_each_tensor_keeps_what_the_budget_says_and_nothing_changes():
    sparsifier, optimizer = begun(layer(EIGHT, FOUR), Static(), budget=BUDGET)
    before = mask(sparsifier, 0), mask(sparsifier, 1)
    assert [sum(m) for m in before] == [3, 2]
    for _ in range(5):
        push(sparsifier, optimizer, torch.randn(8).tolist(), torch.randn(4).tolist())
    assert (mask(sparsifier, 0), mask(sparsifier, 1)) == before


def test_the_draw_depends_on_the_seed_and_the_name():
    def drawn(seed):
        sparsifier = softprune.sparsify(
            layer(EIGHT, EIGHT), Static(), budget=Budget({"0.weight": 0.5, "1.weight": 0.5}), seed=seed
        )
        return mask(sparsifier, 0), mask(sparsifier, 1)

    assert drawn(0) == drawn(0)
    assert len({str(drawn(seed)) for seed in range(5)}) > 1
    assert any(one != other for one, other in map(drawn, range(5)))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="Static keeps what each tensor is given and cannot share a goal out"):
        softprune.sparsify(layer(EIGHT), Static(), goal=Sparsity(0.5))
    with pytest.raises(ValueError, match="Static is sparse from the first step on"):
        softprune.sparsify(layer(EIGHT, FOUR), Static(), budget=BUDGET, schedule=constant())
    with pytest.raises(ValueError, match="give it 1 or more"):
        softprune.sparsify(layer(EIGHT, FOUR), Static(), budget=Budget({"0.weight": 0.01, "1.weight": 0.5}))
