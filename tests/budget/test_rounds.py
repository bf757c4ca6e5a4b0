"""Rounds: the densities of a staircase, its borders, and learning rates that begin anew."""

import pytest
import torch

from softprune import restarted
from softprune.goals.base import Staircase, asked, begins_round


def test_what_is_left_shrinks_by_the_same_factor():
    steps = Staircase(4).towards(0.008)  # 0.2 ** 3
    left = [1 - (1 - 0.008) * asked(steps, progress) for progress in (0.0, 0.24, 0.25, 0.5, 0.74, 0.75, 1.0)]
    assert left == pytest.approx([1, 1, 0.2, 0.04, 0.04, 0.008, 0.008])
    assert steps(0.75) == steps(1.0) == 1.0 and steps(0.0) == 0.0


def test_without_a_density_the_steps_are_equal():
    assert [Staircase(5)(p) for p in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert Staircase(3).towards(1.0)(0.5) == 0.5


@pytest.mark.parametrize("rounds", [2, 3, 5, 7, 11])
@pytest.mark.parametrize("total", [11, 20, 49, 1000, 997])
def test_the_schedule_rises_where_a_round_begins(rounds, total):
    steps = Staircase(rounds, density=0.1)
    rises = [n for n in range(1, total + 1) if steps(n / total) != steps((n - 1) / total)]
    assert rises == [n for n in range(total + 1) if begins_round(n, total, rounds)]
    lengths = [b - a for a, b in zip([0, *rises], [*rises, total], strict=True)]
    assert len(rises) == rounds - 1 and max(lengths) - min(lengths) <= 1


def test_a_learning_rate_is_gone_through_in_every_round():
    rate = restarted(lambda step: 100 - step, rounds=4, total_steps=100)
    assert [rate(step) for step in (0, 1, 24, 25, 26, 50, 75, 99)] == [100, 96, 4, 100, 96, 100, 100, 4]


def test_later_rounds_can_leave_out_the_beginning():
    rate = restarted(lambda step: step, rounds=2, total_steps=100, later_from=0.2)
    assert [rate(step) for step in (0, 25, 49, 50, 75, 99)] == [0, 50, 98, 20, 60, 98]


@pytest.mark.parametrize("total", [10, 11, 97])
def test_no_step_is_asked_for_that_the_schedule_has_not(total):
    seen = []
    rate = restarted(seen.append, rounds=3, total_steps=total, later_from=0.3)
    for step in range(total):
        rate(step)
    assert min(seen) == 0 and max(seen) < total


def test_it_fits_torchs_schedulers():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    factor = restarted(lambda step: 1 - step / 4, rounds=2, total_steps=4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    rates = []
    for _ in range(4):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates == [2.0, 1.0, 2.0, 1.0]
