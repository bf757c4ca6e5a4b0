"""A proposal must do what it says when it is trained with."""

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, NAdam, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

from softprune.forecast.forecast import forecast
from softprune.forecast.propose import propose, replay
from softprune.forecast.schedule import learning_rates

PLANS = {
    "sgd": (SGD, {"lr": 0.1, "momentum": 0.9}, 1600, {}),
    "plain sgd": (SGD, {"lr": 0.3}, 1600, {"onset": 0.2, "push": 5.7}),
    "nesterov": (SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}, 3000, {"onset": 0.5, "push": 11.8}),
    "dampened": (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.9}, 1600, {}),
    "gentle": (SGD, {"lr": 0.1, "momentum": 0.9}, 1600, {"push": 3.3, "s_on": -7.0}),
    "adamw": (AdamW, {"lr": 1e-3}, 5000, {"onset": 0.3}),
    "nadam decoupled": (NAdam, {"lr": 1e-3, "decoupled_weight_decay": True}, 5000, {}),
    "adam": (Adam, {"lr": 0.02}, 3000, {"onset": 0.4}),
    "long adam": (Adam, {"lr": 0.01}, 20_000, {"onset": 0.1}),
}


def cosine(steps):
    return lambda optimizer: CosineAnnealingLR(optimizer, steps)


@pytest.mark.parametrize("name", PLANS)
def test_the_forecast_of_a_proposal_has_the_requested_onset(name):
    kind, options, steps, wishes = PLANS[name]
    dense = kind([nn.Parameter(torch.zeros(4, 4))], **options)
    plan = propose(dense, total_steps=steps, scheduler=cosine(steps)(dense), **wishes)
    s = nn.Parameter(torch.tensor([plan.s_init]))
    optimizer = kind([s], weight_decay=plan.threshold_decay, **options)
    s_on = wishes.get("s_on", -10.0)
    seen = forecast(optimizer, s=s, s_on=s_on, total_steps=steps, scheduler=cosine(steps)(optimizer))
    assert seen.onset == plan.onset == pytest.approx(wishes.get("onset", 0.28), abs=1 / steps)
    assert plan.threshold_decay * plan.K == pytest.approx(plan.X) and wishes.get("push", 8.2) == plan.X
    assert pytest.approx(plan.K) == seen.K


def test_a_real_run_without_gradient_keeps_the_promise():
    s = nn.Parameter(torch.tensor([-1.0]))
    optimizer = SGD([s], lr=0.1, momentum=0.9)
    plan = propose(optimizer, total_steps=500, push=5.7)
    with torch.no_grad():
        s.fill_(plan.s_init)
    optimizer.param_groups[0]["weight_decay"] = plan.threshold_decay
    steps = 0
    while s.item() < -10:
        s.grad = torch.zeros_like(s)
        optimizer.step()
        steps += 1
    assert steps == round(0.28 * 500) == 140


def test_the_paper_is_proposed_back_from_its_own_push_and_onset():
    optimizer = SGD([nn.Parameter(torch.zeros(3))], lr=0.256, momentum=0.875)
    warm_cosine = LambdaLR(optimizer, lambda e: (e + 1) / 5 if e < 5 else 0.5 * (1 + math.cos(math.pi * (e - 5) / 95)))
    plan = propose(optimizer, total_steps=500_500, scheduler=warm_cosine, steps_per_scheduler_step=5005, push=11.771)
    assert round(plan.K) == 522_762
    assert plan.threshold_decay == pytest.approx(2.2517e-5, rel=1e-3)
    assert plan.s_init == pytest.approx(-3200, rel=0.01)
    # Steps are so small here that the closed form is exact to a fraction of a percent.
    lrs = learning_rates(optimizer, warm_cosine, 500_500, steps_per_scheduler_step=5005)
    share = sum(lrs[: round(0.28 * 500_500)]) / sum(lrs)
    assert plan.s_init == pytest.approx(-10 * math.exp(plan.X * share), rel=5e-3)
    assert plan.note == ""


def test_reads_the_group_with_most_weights_or_the_one_named():
    groups = [{"params": [torch.zeros(2)], "lr": 1.0}, {"params": [torch.zeros(50)], "lr": 0.1}]
    optimizer = SGD(groups, lr=0.5)
    assert pytest.approx(10) == propose(optimizer, total_steps=100).K
    assert pytest.approx(100) == propose(optimizer, total_steps=100, group=0).K


def test_optimizer_and_scheduler_are_untouched():
    weight = nn.Parameter(torch.ones(3))
    optimizer = SGD([weight], lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = OneCycleLR(optimizer, max_lr=0.2, total_steps=300)
    before = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    state = str(scheduler.state_dict())
    propose(optimizer, total_steps=300, scheduler=scheduler, push=3.3)
    after = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    assert after == before and str(scheduler.state_dict()) == state
    assert torch.equal(weight, torch.ones(3)) and not optimizer.state


def test_replay_gives_the_published_factors():
    # 522762 / K for CIFAR-10 at batch 128 and 256, Tiny-ImageNet, MNIST
    for K, times in ((31_671, 16.5), (20_472, 25.5), (40_839, 12.8), (5_159, 101)):
        assert replay(1e-5, K) / 1e-5 == pytest.approx(times, rel=5e-3)
    assert replay(2.251757813e-5, 31_671) == pytest.approx(3.7e-4, rel=0.01)
    with pytest.raises(ValueError, match="K is 0; it must be finite and > 0"):
        replay(1e-5, 0)


def test_notes_say_what_to_mind():
    optimizer = SGD([torch.zeros(3)], lr=0.1, momentum=0.9)
    assert "this decay is for s only" in propose(optimizer, total_steps=1000).note
    late = propose(optimizer, total_steps=100_000, onset=0.9)
    assert late.note.startswith("a push of only 0.82 is left after the onset")
    assert "can empty whole layers" in propose(optimizer, total_steps=20_000, push=30).note
    plateau = ReduceLROnPlateau(optimizer)
    assert "follows the loss" in propose(optimizer, total_steps=1000, scheduler=plateau).note
    adam = propose(Adam([torch.zeros(3)], lr=0.01), total_steps=10_000)
    assert "does not depend on the decay" in adam.note and "note: " in str(adam)


def test_says_in_words_what_to_set():
    plan = propose(SGD([torch.zeros(3)], lr=0.1, momentum=0.9), total_steps=100_000, push=8.2)
    assert str(plan).startswith("start s at -99.4441")
    assert "decay it by 8.2e-05 (K = 100,000, X = 8.20)" in str(plan)
    assert "sparsity should set in at 28.0 % of the run" in str(plan)


def test_adam_with_coupled_decay_cannot_carry_s_far_enough():
    with pytest.raises(ValueError, match=r"0.72 after the onset, where 7 are needed; .* 10 times as large"):
        propose(Adam([torch.zeros(3)], lr=1e-3), total_steps=1000)


def test_optimizers_without_a_rule_are_refused():
    with pytest.raises(TypeError, match="no rule is known for RMSprop: propose handles SGD, AdamW and Adam"):
        propose(RMSprop([torch.zeros(3)]), total_steps=1000)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"total_steps": 0}, "total_steps is 0; it must be a whole number >= 1"),
        ({"onset": 0.0}, "onset is 0.0; it is a fraction of the run in (0, 1)"),
        ({"onset": 28}, "onset is 28"),
        ({"push": 0}, "push is 0; it must be in (0, 100]"),
        ({"push": -1.0}, "push is -1.0"),
        ({"push": math.nan}, "push is nan"),
        ({"s_on": 10.0}, "s_on is 10.0; s rises towards 0, so it must be finite and < 0"),
        ({"scheduler": lambda step: 0.0}, "the learning rates of group 0 sum to 0.0"),
        (
            {"total_steps": 100, "push": 60},
            "throws s past 0 before the onset; take a smaller push or more steps",
        ),
    ],
)
def test_refuses_bad_input_with_value_range_and_fix(change, says):
    optimizer = SGD([torch.zeros(3)], lr=0.1, momentum=0.9)
    with pytest.raises(ValueError) as caught:
        propose(optimizer, **{"total_steps": 1000, **change})
    assert says in str(caught.value)
