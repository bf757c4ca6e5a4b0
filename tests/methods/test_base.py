"""What all methods share: the defaults, the state of optimizers, the random numbers, and the ranges of a pursuit."""

import copy
import hashlib
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from on_paper import begun, context, layer, push
from torch.optim import Adagrad, Adam

from softprune import Budget
from softprune.methods import STR, RigL, Static
from softprune.methods.base import GoalSettings, generator

HALF = Budget({"0.weight": 0.5})


def test_a_method_that_says_nothing_trains_once_from_the_start():
    assert STR().goal_settings.rounds == 1 and STR().goal_settings.restart_at == 0.0
    assert RigL().reads_weights is True


@dataclass(frozen=True)
class Listening(Static):
    """Writes down what its hooks are told."""

    heard: ClassVar[list] = []

    def check(self, ctx):
        self.heard[:] = [("check", id(ctx), ctx.step, ctx.total_steps, ctx.loss_scale)]

    def before_step(self, ctx):
        self.heard.append(("before", id(ctx), ctx.step, ctx.total_steps, ctx.loss_scale))

    def after_step(self, ctx):
        self.heard.append(("after", id(ctx), ctx.step, ctx.total_steps, ctx.loss_scale))


def test_the_hooks_of_a_method_are_told_of_the_step_by_one_context():
    model = layer([1.0, 2.0])
    sparsifier, optimizer = begun(model, Listening(), steps=2, budget=HALF)
    for _ in range(2):
        push(sparsifier, optimizer, [1.0, 1.0])
    (ctx,) = sparsifier.contexts.values()
    told = [("check", 0), ("before", 0), ("after", 1), ("before", 1), ("after", 2)]
    assert Listening.heard == [(what, id(ctx), step, 2, 1.0) for what, step in told]
    assert (ctx.kept, ctx.model, list(ctx.targets), ctx.optimizers) == (
        {"0.weight": 1},
        model,
        list(sparsifier.targets),
        (optimizer,),
    )
    # The context of a copy is of the copied model.
    (other,) = copy.deepcopy(sparsifier).contexts.values()
    assert other.targets[0].raw is not ctx.targets[0].raw and other.memory is not ctx.memory
    sparsifier.detach()
    assert ctx.optimizers == ()


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
    assert GoalSettings(pace=0).check() is None
    for pace in (-0.1, math.inf, math.nan, True):
        with pytest.raises(ValueError, match="pace is a distance"):
            GoalSettings(pace=pace).check()
