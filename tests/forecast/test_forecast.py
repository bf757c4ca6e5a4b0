"""The forecast against the paper's 21 settings, and every warning against the mistake it is for."""

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Rprop
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau

from softprune.forecast.forecast import forecast
from softprune.forecast.simulate import crossing, read_motion, trajectory

EPOCHS, STEPS_PER_EPOCH = 100, 5005
MARKS = (-88.73, -20.0, -10.0, -5.0)

# decay, s_init, X, epochs at which s reaches -88.7, -20, -10, -5 with no loss gradient, s after 100 epochs
PAPER = {
    "R50 79.55": (1.7e-5, -3200, 8.89, (23.1, 32.9, 38.1, 43.8), -0.44),
    "R50 81.27": (1.751757813e-5, -3200, 9.16, (22.4, 31.9, 36.8, 42.1), -0.34),
    "R50 87.70": (2.051757813e-5, -3200, 10.73, (19.3, 27.0, 30.9, 34.9), -0.070),
    "R50 90.23": (2.251757813e-5, -3200, 11.77, (17.7, 24.6, 28.0, 31.5), -0.025),
    "R50 90.55": (2.051757813e-5, -800, 10.73, (12.5, 19.8, 23.3, 27.0), -0.018),
    "R50 94.80": (3.051757813e-5, -3200, 15.95, (13.5, 18.4, 20.8, 23.1), -3.8e-4),
    "R50 95.03": (3.351757813e-5, -12800, 17.52, (16.6, 21.1, 23.3, 25.6), -3.1e-4),
    "R50 95.15": (3.051757813e-5, -1600, 15.95, (11.3, 16.1, 18.4, 20.8), -1.9e-4),
    "R50 96.11": (3.051757813e-5, -100, 15.95, (1.5, 7.1, 9.4, 11.6), -1.2e-5),
    "R50 96.53": (4.051757813e-5, -12800, 21.18, (14.0, 17.7, 19.5, 21.2), -8e-6),
    "R50 97.78": (5.217578125e-5, -12800, 27.28, (11.3, 14.1, 15.5, 16.8), -2e-8),
    "R50 98.05": (5.651757813e-5, -12800, 29.55, (10.6, 13.2, 14.4, 15.6), -2e-9),
    "R50 98.22": (6.051757813e-5, -12800, 31.64, (10.0, 12.4, 13.6, 14.7), 0),
    "R50 98.79": (7.551757813e-5, -12800, 39.48, (8.4, 10.3, 11.3, 12.2), 0),
    "R50 98.98": (8.551757813e-5, -12800, 44.71, (7.7, 9.4, 10.2, 11.0), 0),
    "R50 99.10": (9.051757813e-5, -12800, 47.32, (7.4, 9.0, 9.7, 10.5), 0),
    "MB 75.28": (1.551757813e-5, -100, 8.11, (2.3, 12.1, 16.6, 21.2), -0.030),
    "MB 79.07": (1.551757813e-5, -25, 8.11, (0.0, 3.3, 7.8, 12.1), -0.007),
    "MB 85.80": (3.051757813e-5, -3200, 15.95, (13.5, 18.4, 20.8, 23.1), -3.8e-4),
    "MB 89.01": (3.751757813e-5, -12800, 19.61, (15.0, 19.0, 20.9, 22.9), -3.9e-5),
    "MB 89.62": (3.751757813e-5, -3200, 19.61, (11.3, 15.3, 17.1, 19.0), -9.6e-6),
}


def factor(epoch):
    return (epoch + 1) / 5 if epoch < 5 else 0.5 * (1 + math.cos(math.pi * (epoch - 5) / 95))


def paper_run(decay, s_init):
    """s in a group of its own, driven as in the paper: 5 epochs of warm-up, then a cosine, by the epoch."""
    s = nn.Parameter(torch.tensor([float(s_init)]))
    groups = [{"params": [nn.Parameter(torch.zeros(3, 3))]}, {"params": [s], "weight_decay": decay}]
    optimizer = SGD(groups, lr=0.256, momentum=0.875)
    return optimizer, LambdaLR(optimizer, factor), s


@pytest.fixture(scope="module")
def paper_motion():
    optimizer, scheduler, _ = paper_run(0.0, -1.0)
    steps = EPOCHS * STEPS_PER_EPOCH
    return read_motion(optimizer, scheduler, steps, steps_per_scheduler_step=STEPS_PER_EPOCH)


@pytest.fixture(scope="module")
def paper_shares(paper_motion):
    return paper_motion.shares()


@pytest.mark.parametrize("name", PAPER)
def test_each_setting_of_the_paper(name, paper_motion, paper_shares):
    decay, s_init, X, epochs, s_end = PAPER[name]
    path = trajectory("sgd", float(s_init), paper_motion.lrs, decay=decay, momentum=0.875)
    total = decay * sum(paper_motion.gains())
    assert total == pytest.approx(X, abs=0.006)
    # The printed epochs have one decimal, so they may be off by half of it.
    reached = [crossing(path, mark) / STEPS_PER_EPOCH for mark in MARKS]
    assert reached == pytest.approx(epochs, abs=0.1)
    closed = [crossing(paper_shares, math.log(s_init / mark) / total) / STEPS_PER_EPOCH for mark in MARKS]
    assert closed == pytest.approx(reached, abs=0.1)
    assert path[-1] == pytest.approx(s_end, rel=0.08, abs=1e-8)


def test_the_schedule_of_the_paper_gives_its_K_and_shares(paper_motion, paper_shares):
    assert round(sum(paper_motion.gains())) == 522_762
    table = {5: 0.059, 10: 0.157, 20: 0.348, 28: 0.490, 40: 0.676, 50: 0.800, 70: 0.952, 90: 0.998}
    shares = {epoch: paper_shares[epoch * STEPS_PER_EPOCH] for epoch in table}
    assert shares == pytest.approx(table, abs=6e-4)


def test_forecast_of_the_90_percent_run():
    optimizer, scheduler, s = paper_run(2.251757813e-5, -3200)
    steps = EPOCHS * STEPS_PER_EPOCH
    seen = forecast(
        optimizer,
        s=s,
        s_on=-10.0,
        total_steps=steps,
        scheduler=scheduler,
        steps_per_scheduler_step=STEPS_PER_EPOCH,
    )
    assert (seen.kind, seen.steps, round(seen.K), seen.decay) == ("sgd", steps, 522_762, 2.251757813e-5)
    assert pytest.approx(11.77, abs=0.005) == seen.X
    assert seen.onset == pytest.approx(0.28, abs=1e-3) and seen.onset_step == round(seen.onset * steps)
    assert seen.s_end == pytest.approx(-0.0246, abs=1e-4)
    assert dict(seen.crossings)[-10.0] == seen.onset_step
    assert seen.warnings == () and seen.notes == ()
    text = str(seen)
    assert f"sparsity is expected to set in at step {seen.onset_step:,} (28.0 % of the run)" in text
    assert "522,762" in text and "11.77" in text
    assert s.item() == -3200 and scheduler.last_epoch == 0


def test_the_paper_values_on_cifar_never_reach_sparsity():
    optimizer, scheduler, s = paper_run(2.251757813e-5, -3200)
    seen = forecast(optimizer, s=s, s_on=-10.0, total_steps=19_600, scheduler=scheduler, steps_per_scheduler_step=196)
    assert round(seen.K) == 20_472 and pytest.approx(0.46, abs=0.005) == seen.X
    assert seen.s_end == pytest.approx(-2019, abs=2)
    assert seen.onset is None and seen.onset_step is None
    assert len(seen.warnings) == 1
    assert "no sparsity: s goes from -3200 to -2018 and never reaches -10" in seen.warnings[0]
    assert "a decay of 0.00034 on s" in seen.warnings[0]  # (ln 320 + 1.2) / 20472
    assert "sparsity is not expected to set in" in str(seen)


def test_the_advice_of_the_authors_for_cifar_sets_in_at_epoch_13():
    optimizer, scheduler, s = paper_run(5e-4, -100)
    seen = forecast(optimizer, s=s, s_on=-10.0, total_steps=19_600, scheduler=scheduler, steps_per_scheduler_step=196)
    assert pytest.approx(10.2, abs=0.05) == seen.X
    assert seen.onset_step / 196 == pytest.approx(13, abs=0.5)
    assert seen.warnings == ()


def run(kind, *, s=-100.0, steps=2000, scheduler=None, dtype=torch.float32, **options):
    threshold = nn.Parameter(torch.tensor([s], dtype=dtype))
    optimizer = kind([threshold], **options)
    made = None if scheduler is None else scheduler(optimizer)
    return forecast(optimizer, s=threshold, s_on=-10.0, total_steps=steps, scheduler=made)


@pytest.mark.parametrize("kind", [Adam, SGD])
def test_without_decay_s_would_never_move(kind):
    seen = run(kind, lr=0.1, weight_decay=0.0)
    assert seen.onset is None and seen.s_end == -100
    assert len(seen.warnings) == 1
    assert "s would never move: the weight decay of its param group is 0" in seen.warnings[0]
    assert "1-D tensors" in seen.warnings[0]


def test_other_ways_to_stand_still():
    assert "knows no weight decay" in run(Rprop, lr=0.1).warnings[0]
    assert "its learning rate is 0" in run(SGD, lr=0.0, weight_decay=0.1).warnings[0]
    s = nn.Parameter(torch.tensor([-100.0]), requires_grad=False)
    seen = forecast(SGD([s], lr=0.1, weight_decay=0.1), s=s, s_on=-10.0, total_steps=100)
    assert "requires_grad is False" in seen.warnings[0] and seen.s_end == -100


def test_a_step_below_the_spacing_of_the_data_type_is_caught():
    options = {"lr": 0.256, "momentum": 0.875, "weight_decay": 2.25e-5, "s": -12800.0}
    seen = run(SGD, dtype=torch.bfloat16, steps=200_000, **options)
    assert "torch.bfloat16" in seen.warnings[0] and "keep s in float32" in seen.warnings[0]
    assert run(SGD, steps=200_000, **options).warnings == ()
    s = nn.Parameter(torch.tensor([-12800.0], dtype=torch.bfloat16))
    optimizer = SGD([s], lr=0.256, momentum=0.875, weight_decay=2.25e-5)
    for _ in range(50):
        s.grad = torch.zeros_like(s)
        optimizer.step()
    assert s.item() == -12800


def test_adam_with_coupled_decay_is_linear_and_warned_about():
    seen = run(Adam, lr=1e-3, weight_decay=1e-4)
    assert seen.kind == "adam" and seen.X is None and pytest.approx(2.0) == seen.K
    assert "further than 0.3 of that (0.6)" in seen.warnings[0]
    assert "never reaches -10" in seen.warnings[1]
    near = run(Adam, lr=0.05, s=-25.0, weight_decay=1e-4)
    # 15 units at 0.05 per step are 300 steps of 2000, and some more since Adam remembers larger gradients.
    assert near.warnings == () and 0.15 < near.onset < 0.2


def test_adamw_moves_by_the_sum_of_learning_rates():
    seen = run(AdamW, lr=1e-3, weight_decay=0.05, s=-30.0, steps=100_000)
    assert seen.kind == "adamw" and pytest.approx(5.0) == seen.X
    assert seen.onset == pytest.approx(math.log(3) / 5, abs=1e-3)


def test_dampening_and_missing_momentum_take_the_factor_away():
    plain = run(SGD, lr=0.1, weight_decay=0.02)
    damped = run(SGD, lr=0.1, momentum=0.9, dampening=0.9, weight_decay=0.02)
    ignored = run(SGD, lr=0.1, momentum=0.0, dampening=0.9, weight_decay=0.02)
    heavy = run(SGD, lr=0.1, momentum=0.9, weight_decay=0.002)
    assert pytest.approx(200.0) == plain.K == damped.K == ignored.K
    assert pytest.approx(2000.0) == heavy.K
    assert heavy.onset == pytest.approx(plain.onset, abs=0.02)


def test_K_follows_the_momentum_that_onecycle_cycles():
    cycled = run(
        SGD,
        lr=0.1,
        momentum=0.9,
        weight_decay=5e-3,
        steps=1000,
        scheduler=lambda o: OneCycleLR(o, max_lr=0.1, total_steps=1000),
    )
    motionless = OneCycleLR(SGD([torch.zeros(1)], lr=0.1), max_lr=0.1, total_steps=1000, cycle_momentum=False)
    fixed = sum(read_motion(motionless.optimizer, motionless, 1000).lrs) / (1 - 0.95)
    assert 0.3 * fixed < cycled.K < 0.6 * fixed
    assert pytest.approx(5e-3 * cycled.K) == cycled.X


def test_onset_at_once():
    seen = run(SGD, lr=0.1, momentum=0.9, weight_decay=2e-3, s=-10.01)
    assert seen.onset < 0.01
    assert "within the first 1% of the run: s_init -10.01 is too close to -10" in seen.warnings[0]
    assert "start at -31 for an onset at 0.28" in seen.warnings[0]  # 10 exp(4 * 0.28)
    beyond = run(SGD, lr=0.1, momentum=0.9, weight_decay=2e-3, s=-3.0)
    assert beyond.onset_step == 0 and dict(beyond.crossings)[-5.0] == 0


def test_too_little_push_after_the_onset():
    seen = run(SGD, lr=0.1, momentum=0.9, weight_decay=1e-3, s=-30.0)
    assert seen.onset == pytest.approx(0.55, abs=0.01)
    assert "little sparsity: after the onset a push of only 0.9" in seen.warnings[0]
    assert "1.2 is needed" in seen.warnings[0]


def test_a_hard_push_is_a_warning_in_short_runs_only():
    short = run(SGD, lr=0.1, momentum=0.9, weight_decay=1.5e-2, s=-12800.0)
    assert pytest.approx(30) == short.X and "may empty whole layers" in short.warnings[0]
    assert "a decay of s up to 0.008" in short.warnings[0]
    long = run(SGD, lr=0.1, momentum=0.9, weight_decay=1.5e-4, s=-12800.0, steps=200_000)
    assert pytest.approx(30) == long.X and long.warnings == ()


class Lars(torch.optim.Optimizer):
    """The trust ratio in its plainest form."""

    def __init__(self, params, lr, weight_decay=0.0, trust=0.001):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                push = p.grad + group["weight_decay"] * p
                p.sub_(push * (group["lr"] * group["trust"] * p.norm() / push.norm()))


def test_a_trust_ratio_cancels_the_decay():
    ends = []
    for decay in (1e-3, 1e-6):
        seen = run(Lars, lr=10.0, weight_decay=decay)
        ends.append(seen.s_end)
        assert "Lars scales the step of s" in seen.warnings[0] and seen.X is None
        assert "tried out on one number" in seen.notes[0]
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)
    assert ends[0] == pytest.approx(-100 * 0.99**2000, rel=1e-6)


def test_a_plateau_schedule_is_noted():
    seen = run(SGD, lr=0.1, weight_decay=0.05, scheduler=ReduceLROnPlateau)
    assert "ReduceLROnPlateau follows the loss" in seen.notes[0]
    assert "note: ReduceLROnPlateau" in str(seen)


def test_the_entry_of_s_nearest_to_zero_sets_the_onset():
    s = nn.Parameter(torch.tensor([-500.0, -50.0, -100.0]))
    seen = forecast(SGD([s], lr=0.1, weight_decay=0.05), s=s, s_on=-10.0, total_steps=1000)
    assert seen.s_init == -50 and seen.onset == pytest.approx(math.log(5) / 5, abs=0.01)


def test_an_optimizer_that_cannot_be_tried_out_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"LBFGS cannot be tried out .* a torch.optim.SGD of its own"):
        run(torch.optim.LBFGS, lr=0.1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"s": nn.Parameter(torch.zeros(1))}, "is in none of the 1 param groups of this SGD"),
        ({"s_on": 0.0}, "s_on is 0.0"),
        ({"s_on": math.nan}, "s_on is nan"),
        ({"total_steps": 0}, "total_steps is 0"),
        ({"total_steps": -5}, "total_steps is -5"),
    ],
)
def test_refuses_bad_input(change, says):
    s = nn.Parameter(torch.tensor([-100.0]))
    optimizer = SGD([s], lr=0.1, weight_decay=0.1)
    with pytest.raises(ValueError) as caught:
        forecast(optimizer, **{"s": s, "s_on": -10.0, "total_steps": 10, **change})
    assert says in str(caught.value)


def test_refuses_an_infinite_threshold():
    with pytest.raises(ValueError, match="s is -inf; it must be finite"):
        run(SGD, s=-math.inf, lr=0.1, weight_decay=0.1)
