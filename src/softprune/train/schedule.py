"""The learning rate of every step, as a function of the configuration alone.

Nothing has to be saved for it, and a resumed run or a forecast cannot disagree with the training loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any

from softprune.goals.base import restarted
from softprune.train.config import RunConfig, ScheduleConfig


def learning_rate(
    schedule: ScheduleConfig, base_lr: float, *, epoch: int, step_in_epoch: int, steps_per_epoch: int, epochs: int
) -> float:
    """The learning rate of one optimizer step, with t in epochs, w the warm-up and E the length of the run:

        warm-up   base_lr (t + 1) / w                        t < w
        cosine    base_lr (1 + cos(pi (t - w) / (E - w))) / 2    between base_lr and final base_lr
        step      base_lr gamma^(number of milestones <= t)

    Per epoch t is the number of complete epochs: the paper's schedule, whose epochs 4 and 5 both run at base_lr.
    Per step t counts in steps, and the 1 of the warm-up is one step. `epoch` and `step_in_epoch` are those that are
    complete.

    Example:
        >>> paper = ScheduleConfig(warmup_epochs=5, per="epoch")
        >>> [round(learning_rate(paper, 0.256, epoch=e, step_in_epoch=0, steps_per_epoch=1, epochs=100), 5)
        ...  for e in (0, 4, 5, 99)]
        [0.0512, 0.256, 0.256, 7e-05]
    """
    if not (0 <= epoch < epochs and 0 <= step_in_epoch < steps_per_epoch):
        raise ValueError(
            f"epoch {epoch}, step {step_in_epoch} is not in a run of {epochs} epochs of {steps_per_epoch} steps"
        )
    unit = steps_per_epoch if schedule.per == "step" else 1
    now = epoch * unit + (step_in_epoch if schedule.per == "step" else 0)
    warmup, end = schedule.warmup_epochs * unit, epochs * unit
    if now < warmup:
        # A warm-up need not be a whole number of steps, and must not overshoot.
        return base_lr * min(1.0, (now + 1) / warmup)
    if schedule.name == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * (now - warmup) / (end - warmup)))
        return base_lr * (schedule.final + (1 - schedule.final) * share)
    if schedule.name == "step":
        return base_lr * schedule.gamma ** sum(mark * unit <= now for mark in schedule.milestones)
    return base_lr


def schedule_function(config: RunConfig, steps_per_epoch: int) -> Callable[[int], float]:
    """The learning rate as a function of the global optimizer step, from 0.

    A method with rounds goes through the schedule in each of them. It can be passed as ``scheduler=`` to
    `softprune.propose` and to `Sparsifier.attach`. A ``length`` other than 1 is worked in first.

    Example:
        >>> rate = schedule_function(RunConfig.load("digits/str"), 20)
        >>> rate(0), round(rate(600), 3)
        (0.1, 0.05)
    """
    run = stretch(config)

    @lru_cache(maxsize=None if run.schedule.per == "epoch" else 1)
    def rate_at(epoch: int, step_in_epoch: int) -> float:
        place = {"epoch": epoch, "step_in_epoch": step_in_epoch, "steps_per_epoch": steps_per_epoch}
        return learning_rate(run.schedule, run.optimizer.lr, epochs=run.epochs, **place)

    def rate(step: int) -> float:
        epoch, step_in_epoch = divmod(step, steps_per_epoch)
        return rate_at(epoch, 0 if run.schedule.per == "epoch" else step_in_epoch)

    settings = None if run.method is None else run.method.sketch.goal_settings
    if settings is None or settings.rounds == 1:
        return rate
    steps = run.epochs * steps_per_epoch
    return restarted(rate, rounds=settings.rounds, total_steps=steps, later_from=settings.restart_at)


# Longer and shorter runs in which the thresholds take the same course.


def stretch(config: RunConfig) -> RunConfig:
    """The same run with ``length`` worked in, and set to 1.

    Epochs, warm-up and milestones are multiplied by it. Without the loss s follows ``s_init exp(-decay K)``, where K
    is the sum of the learning rates up to a factor; so the decay of s, and only that of s, is divided by the growth
    of that sum. This is `length` itself as far as epochs can be multiplied without rounding. A decay that is
    proposed needs no change: it is computed from K.

    Example:
        >>> longer = stretch(RunConfig.load("resnet50/str-90.23", ["length=2"]))
        >>> longer.epochs, longer.schedule.warmup_epochs, longer.optimizer.weight_decay
        (200, 10.0, 2.251757813e-05)
        >>> round(longer.optimizer.threshold_decay * 1e5, 2)
        1.14
    """
    if config.length == 1:
        return config
    epochs = max(1, _round(config.epochs * config.length))
    given, length = config.schedule, config.length

    def scaled(mark: float) -> float:
        return float(max(1, _round(mark * length))) if given.per == "epoch" and mark else mark * length

    warmup = min(float(epochs), scaled(given.warmup_epochs))
    marks = tuple(mark for mark in map(scaled, given.milestones) if mark < epochs)
    schedule = given.model_copy(update={"warmup_epochs": warmup, "milestones": marks})
    changes: dict[str, Any] = {"epochs": epochs, "length": 1.0, "schedule": schedule}
    decay = config.optimizer.threshold_decay
    if config.method is not None and decay != "propose":
        growth = _rate_sum(schedule, epochs) / _rate_sum(given, config.epochs)
        own = config.optimizer.weight_decay if decay is None else float(decay)
        changes["optimizer"] = config.optimizer.model_copy(update={"threshold_decay": own / growth or None})
    return config.model_copy(update=changes)


def _rate_sum(schedule: ScheduleConfig, epochs: int) -> float:
    """The sum of the learning rates for a highest one of 1, in epochs."""
    # Of a schedule per step more than 100 steps in an epoch change the sum by less than a thousandth.
    steps = 1 if schedule.per == "epoch" else 100
    size = {"steps_per_epoch": steps, "epochs": epochs}
    places = product(range(epochs), range(steps))
    return math.fsum(learning_rate(schedule, 1.0, epoch=e, step_in_epoch=s, **size) for e, s in places) / steps


def _round(value: float) -> int:
    return math.floor(value + 0.5)
