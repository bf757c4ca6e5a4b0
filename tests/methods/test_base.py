"""What all methods share: the defaults, the state of optimizers, the random numbers, and the ranges of a pursuit."""

import hashlib
import math

import pytest
import torch
from on_paper import begun, context, layer, push
from torch.optim import Adagrad, Adam

from softprune import Budget
from softprune.methods import STR, RigL, Static
from softprune.methods.base import Pursuit, generator

HALF = Budget({"0.weight": 0.5})


def test_a_method_that_says_nothing_trains_once_from_the_start():
    assert STR().rounds == 1 and STR().restart_at == 0.0
    assert RigL().reads_weights is True


def test_forgetting_clears_what_is_of_the_shape_of_the_weights_alone():
    model = layer([1.0, 2.0])
    sparsifier, optimizer = begun(model, Static(), optimizer=Adam(model.parameters(), lr=0.0), budget=HALF)
    push(sparsifier, optimizer, [2.0, 4.0])
    target = sparsifier.targets[0]
    context(sparsifier, optimizer, 1).forget(target, torch.tensor([[True, False]]))
    state = optimizer.state[target.raw]
    assert state["exp_avg"].tolist()[0] == pytest.approx([0.0, 0.4]) and float(state["step"]) == 1.0


def test_forgetting_all_leaves_adagrad_as_it_was_built():
    model = layer([1.0, 2.0])
    made = Adagrad(model.parameters(), lr=0.0, initial_accumulator_value=0.5)
    sparsifier, optimizer = begun(model, Static(), optimizer=made, budget=HALF)
    push(sparsifier, optimizer, [2.0, 4.0])
    context(sparsifier, optimizer, 1).forget_all()
    state = optimizer.state[sparsifier.targets[0].raw]
    assert state["sum"].tolist() == [[0.5, 0.5]] and float(state["step"]) == 0.0


def test_the_random_numbers_of_a_tensor_at_a_step_are_the_same_in_every_release():
    # Half of the first eight bytes, least significant first.
    head = hashlib.sha256(b"3/7/0.weight").hexdigest()[:16]
    expected = sum(int(head[2 * i : 2 * i + 2], 16) * 256**i for i in range(8)) // 2
    assert generator(3, 7, "0.weight").initial_seed() == expected


def test_a_pace_has_an_end():
    assert Pursuit(pace=0).pace == 0
    for pace in (-0.1, math.inf, math.nan, True):
        with pytest.raises(ValueError, match="pace is a distance"):
            Pursuit(pace=pace)
