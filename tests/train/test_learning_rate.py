"""The learning rate by hand, and the paper's schedule to the last digit."""

import math

import pytest
from torch import nn
from torch.optim import SGD

from softprune.forecast.schedule import learning_rates
from softprune.train.config import RunConfig, ScheduleConfig
from softprune.train.schedule import learning_rate, schedule_function, stretch

PAPER = ScheduleConfig(name="cosine", warmup_epochs=5, per="epoch")
BASE = {
    "model": "digits",
    "data": "digits",
    "method": {"name": "str", "s_init": -100},
    "optimizer": {"name": "sgd", "lr": 0.4, "weight_decay": 1e-4},
    "epochs": 8,
    "batch": 64,
}


def rate(schedule, epoch, step=0, *, lr=1.0, steps=4, epochs=8):
    return learning_rate(schedule, lr, epoch=epoch, step_in_epoch=step, steps_per_epoch=steps, epochs=epochs)


def test_the_schedule_of_the_paper_epoch_by_epoch():
    rates = [rate(PAPER, epoch, 3, lr=0.256, steps=5005, epochs=100) for epoch in range(100)]
    assert rates[:6] == pytest.approx([0.0512, 0.1024, 0.1536, 0.2048, 0.256, 0.256])
    assert rates[5:] == pytest.approx([0.5 * (1 + math.cos(math.pi * (e - 5) / 95)) * 0.256 for e in range(5, 100)])
    assert rates[99] == pytest.approx(7.0e-5, abs=5e-7)
    assert sum(rates[:5]) == pytest.approx(0.768) and sum(rates[5:]) == pytest.approx(12.288)


def test_K_of_the_paper():
    config = RunConfig.load("resnet50/str-90.23")
    optimizer = SGD([nn.Parameter(nn.Linear(1, 1).weight)], lr=0.256, momentum=0.875)
    rates = learning_rates(optimizer, schedule_function(config, 5005), 500_500)
    assert round(math.fsum(rates) / (1 - 0.875)) == 522_762
    assert rates[0] == 0.0512 and rates[5004] == 0.0512 and rates[5005] == 0.1024


def test_warm_up_and_cosine_per_step():
    schedule = ScheduleConfig(name="cosine", warmup_epochs=2, per="step")
    steps = [rate(schedule, *divmod(i, 4)) for i in range(32)]
    assert steps[:8] == pytest.approx([i / 8 for i in range(1, 9)])
    assert steps[8] == 1.0 and steps[20] == pytest.approx(0.5)  # halfway between 8 and 32
    assert steps[31] == pytest.approx(0.5 * (1 + math.cos(math.pi * 23 / 24)))


def test_a_cosine_may_end_above_zero():
    schedule = ScheduleConfig(name="cosine", per="epoch", final=0.2)
    assert rate(schedule, 0) == 1.0
    assert rate(schedule, 4) == pytest.approx(0.6)  # 0.2 + 0.8 / 2


def test_steps_and_constants():
    steps = ScheduleConfig(name="step", milestones=(3, 6), gamma=0.1, per="epoch")
    assert [rate(steps, e) for e in range(8)] == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])
    half = ScheduleConfig(name="step", milestones=(1.5,), gamma=0.5, per="step")
    assert [rate(half, 1, step) for step in range(4)] == [1, 1, 0.5, 0.5]
    assert [rate(ScheduleConfig(name="constant", warmup_epochs=1, per="epoch"), e) for e in (0, 7)] == [1, 1]


def test_a_warm_up_that_ends_within_a_step_does_not_overshoot():
    schedule = ScheduleConfig(name="constant", warmup_epochs=0.3, per="step")  # 1.2 steps
    assert [rate(schedule, 0, step) for step in range(3)] == pytest.approx([1 / 1.2, 1, 1])


def test_the_function_of_the_global_step_agrees():
    config = RunConfig.parse({**BASE, "schedule": {"warmup_epochs": 1}})
    whole = schedule_function(config, 5)
    assert [whole(i) for i in range(40)] == [rate(config.schedule, *divmod(i, 5), lr=0.4, steps=5) for i in range(40)]


def test_a_method_with_rounds_begins_anew_in_each():
    rounds = {"method": {"name": "imp", "rounds": 4, "rewind": "rate"}, "goal": 0.9}
    steps = {"name": "step", "milestones": [4], "warmup_epochs": 2, "gamma": 0.1}
    again = schedule_function(RunConfig.parse({**BASE, **rounds, "schedule": steps}), 5)
    # Eight epochs of five steps: each round has ten of them, a fourth of warm-up and a half of the highest rate.
    once = schedule_function(RunConfig.parse({**BASE, "schedule": steps}), 5)
    assert [again(i) for i in range(40)] == [once(i) for i in range(0, 40, 4)] * 4


def test_weights_that_go_back_meet_the_rate_of_then():
    rounds = {"method": {"name": "imp", "rounds": 2, "rewind_at": 0.25}, "goal": 0.9}
    again = schedule_function(RunConfig.parse({**BASE, **rounds}), 5)
    once = schedule_function(RunConfig.parse(BASE), 5)
    assert [again(i) for i in (0, 5, 19, 20, 30, 39)] == [once(i) for i in (0, 10, 38, 10, 25, 38)]


@pytest.mark.parametrize(("epoch", "step"), [(8, 0), (-1, 0), (0, 4), (0, -1)])
def test_steps_outside_the_run_are_refused(epoch, step):
    with pytest.raises(ValueError, match="is not in a run of 8 epochs of 4 steps"):
        rate(PAPER, epoch, step)


def push(config, steps_per_epoch):
    """X of a run: decay times the sum of the learning rates (without momentum)."""
    run = stretch(config)
    rates = schedule_function(config, steps_per_epoch)
    return run.optimizer.threshold_decay, sum(rates(i) for i in range(run.epochs * steps_per_epoch))


@pytest.mark.parametrize("length", [0.01, 0.5, 1.5, 5.0])
@pytest.mark.parametrize("per", ["epoch", "step"])
def test_length_keeps_the_push_on_s(length, per):
    data = {**BASE, "schedule": {"warmup_epochs": 2, "per": per}, "epochs": 50}
    data["optimizer"] = {"name": "sgd", "lr": 0.4, "weight_decay": 1e-4, "threshold_decay": 2e-3}
    decay, total = push(RunConfig.parse(data), 100)
    longer_decay, longer_total = push(RunConfig.parse({**data, "length": length}), 100)
    assert longer_decay * longer_total == pytest.approx(decay * total, rel=1e-9)
    if length > 0.1:
        assert longer_decay == pytest.approx(decay / length, rel=0.05)


def test_length_scales_epochs_warm_up_and_milestones():
    run = stretch(RunConfig.load("resnet50/str-90.23", ["length=1.5"]))
    assert (run.epochs, run.schedule.warmup_epochs, run.length) == (150, 8.0, 1.0)
    assert run.optimizer.weight_decay == 2.251757813e-5
    assert run.optimizer.threshold_decay == pytest.approx(2.251757813e-5 / 1.5, rel=0.01)
    step = RunConfig.parse({**BASE, "schedule": {"name": "step", "milestones": [2, 6]}, "length": 2.5})
    assert stretch(step).schedule.milestones == (5.0, 15.0)
    smoke = stretch(RunConfig.load("resnet50/str-90.23", ["length=0.01"]))
    assert (smoke.epochs, smoke.schedule.warmup_epochs) == (1, 1.0)


def test_length_leaves_alone_what_is_proposed_or_dense():
    assert stretch(RunConfig.load("digits/str", ["length=2"])).optimizer.threshold_decay == "propose"
    dense = RunConfig.load("resnet50/dense", ["length=2"])
    assert stretch(dense).optimizer == dense.optimizer and stretch(dense).epochs == 200
    plain = RunConfig.load("digits/str")
    assert stretch(plain) is plain
