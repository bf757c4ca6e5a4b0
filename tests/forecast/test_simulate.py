"""The recursions on plain numbers must be torch's own, to the last digits."""

import math
from itertools import pairwise

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, NAdam, RAdam, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from softprune.forecast.simulate import crossing, read_motion, simulate, trajectory

STEPS = 200


def really_step(optimizer, s, scheduler, steps=STEPS):
    path = [s.item()]
    for _ in range(steps):
        s.grad = torch.zeros_like(s)
        optimizer.step()
        scheduler.step()
        path.append(s.item())
    return path


OPTIMIZERS = {
    "plain": (SGD, {"lr": 0.1, "weight_decay": 0.02}, "sgd"),
    "momentum": (SGD, {"lr": 0.1, "momentum": 0.875, "weight_decay": 0.01}, "sgd"),
    "nesterov": (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, "sgd"),
    "dampening": (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.9, "weight_decay": 0.1}, "sgd"),
    "maximize": (SGD, {"lr": 0.1, "momentum": 0.5, "maximize": True, "weight_decay": 0.01}, "sgd"),
    "foreach": (SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True, "weight_decay": 0.01}, "sgd"),
    "adamw": (AdamW, {"lr": 0.01, "weight_decay": 0.3}, "adamw"),
    "adam decoupled": (Adam, {"lr": 0.01, "weight_decay": 0.3, "decoupled_weight_decay": True}, "adamw"),
    "nadam decoupled": (NAdam, {"lr": 0.01, "weight_decay": 0.3, "decoupled_weight_decay": True}, "adamw"),
    "radam decoupled": (RAdam, {"lr": 0.01, "weight_decay": 0.3, "decoupled_weight_decay": True}, "adamw"),
    "adam": (Adam, {"lr": 0.05, "weight_decay": 1e-3}, "adam"),
    "adam betas": (Adam, {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 1e-4}, "adam"),
    "amsgrad": (Adam, {"lr": 0.05, "amsgrad": True, "betas": (0.9, 0.95), "weight_decay": 1e-3}, "adam"),
    "nadam": (NAdam, {"lr": 0.05, "weight_decay": 1e-3}, "NAdam"),
    "radam": (RAdam, {"lr": 0.05, "weight_decay": 1e-3}, "RAdam"),
    "rmsprop": (RMSprop, {"lr": 0.01, "momentum": 0.5, "weight_decay": 1e-3}, "RMSprop"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_real_optimizer_on_a_threshold_without_gradient(name):
    kind, options, expected = OPTIMIZERS[name]
    s = torch.nn.Parameter(torch.tensor([-100.0], dtype=torch.float64))
    optimizer = kind([s], **options)
    scheduler = CosineAnnealingLR(optimizer, STEPS)
    motion = read_motion(optimizer, scheduler, STEPS)
    assert motion.kind == expected
    path = motion.path(-100.0)
    assert path == pytest.approx(really_step(optimizer, s, scheduler), rel=1e-12)
    assert len(path) == STEPS + 1


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_equals_the_real_optimizer_while_onecycle_cycles_the_momentum(kind):
    s = torch.nn.Parameter(torch.tensor([-100.0], dtype=torch.float64))
    optimizer = kind([s], lr=0.1, weight_decay=0.01, **({"momentum": 0.9} if kind is SGD else {}))
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=STEPS)
    path = read_motion(optimizer, scheduler, STEPS - 1).path(-100.0)
    assert path == pytest.approx(really_step(optimizer, s, scheduler, STEPS - 1), rel=1e-12)


def test_plain_numbers_are_enough():
    # Four steps by hand: v = 0.1*s; mu 0.5; lr 1.
    assert trajectory("sgd", -100.0, [1.0] * 3, decay=0.1, momentum=0.5) == pytest.approx([-100, -90, -76, -61.4])
    # v: 10, 0.5*10 + 0.5*9 = 9.5
    assert trajectory("sgd", -100.0, [1.0] * 2, decay=0.1, momentum=0.5, dampening=0.5) == pytest.approx(
        [-100, -90, -80.5]
    )
    # 10 + 0.5*10 = 15; then g = 8.5, v = 13.5, 8.5 + 6.75 = 15.25
    assert trajectory("sgd", -100.0, [1.0] * 2, decay=0.1, momentum=0.5, nesterov=True) == pytest.approx(
        [-100, -85, -69.75]
    )
    assert trajectory("adamw", -8.0, [0.5] * 3, decay=[1.0, 0.0, 1.0]) == [-8, -4, -4, -2]


def test_adam_moves_by_lr_whatever_the_decay_and_adamw_by_a_factor():
    # Measured with torch's Adam: 1000 steps at lr 1e-2 take -100 to -90.2 for both decays.
    ends = [trajectory("adam", -100.0, [1e-2] * 1000, decay=decay)[-1] for decay in (1e-3, 1e-6)]
    assert ends == pytest.approx([-90.2, -90.2], abs=0.05)
    end = trajectory("adamw", -100.0, [1e-2] * 1000, decay=1e-3)[-1]
    assert end == pytest.approx(-100 * math.exp(-0.01), rel=1e-4)


def test_momentum_and_nesterov_follow_the_closed_form():
    lrs = [0.1] * 1000
    expected = -100 * math.exp(-6e-5 * 1000 * 0.1 / 0.1)
    for nesterov in (False, True):
        end = trajectory("sgd", -100.0, lrs, decay=6e-5, momentum=0.9, nesterov=nesterov)[-1]
        assert end == pytest.approx(expected, rel=1e-3)


def test_crossing_counts_finished_steps():
    assert crossing([-4.0, -2.0, -1.0], -2.0) == 1
    assert crossing([-4.0, -2.0, -1.0], -5.0) == 0
    assert crossing([-4.0, -2.0, -1.0], 0.0) is None


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind is 'sgdw'; it must be 'sgd', 'adamw' or 'adam'"):
        trajectory("sgdw", -1.0, [0.1], decay=0.1)


def test_a_subclass_with_its_own_step_is_simulated_and_one_without_is_not():
    class Renamed(SGD):
        pass

    class Decoupled(SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(1 - group["lr"] * group["weight_decay"])

    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    assert read_motion(Renamed([torch.zeros(1)], **options), None, 5).kind == "sgd"
    motion = read_motion(Decoupled([torch.zeros(1)], **options), None, 5)
    assert motion.kind == "Decoupled"
    assert motion.path(-1.0) == pytest.approx([-(0.999**step) for step in range(6)])


def test_long_simulations_stride_and_stay_close():
    # 50,000 steps are taken three at a time; RMSprop moves s by about lr per step.
    lrs = [1e-3] * 50_000
    settings = RMSprop([torch.zeros(1)], lr=1e-3, weight_decay=1e-3).param_groups[0]
    plain = {name: value for name, value in settings.items() if name != "params"}
    numbers = {"momenta": [0.0] * len(lrs), "decays": [1e-3] * len(lrs)}
    path = simulate(RMSprop, -100.0, settings=plain, lrs=lrs, **numbers)
    assert len(path) == 50_001
    assert path[-1] == pytest.approx(-50, abs=1.5)
    assert all(earlier <= later for earlier, later in pairwise(path))
