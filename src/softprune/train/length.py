"""Longer and shorter runs in which the thresholds take the same course."""

from __future__ import annotations

import math
from typing import Any

from softprune.train.config import RunConfig, ScheduleConfig
from softprune.train.learning_rate import learning_rate

# A schedule per step is summed with this many steps in an epoch; more change the sum by less than a thousandth.
_STEPS = 100


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
    schedule = _stretch_schedule(config.schedule, config.length, epochs)
    changes: dict[str, Any] = {"epochs": epochs, "length": 1.0, "schedule": schedule}
    decay = config.optimizer.threshold_decay
    if config.method is not None and decay != "propose":
        growth = _rate_sum(schedule, epochs) / _rate_sum(config.schedule, config.epochs)
        own = config.optimizer.weight_decay if decay is None else float(decay)
        changes["optimizer"] = config.optimizer.model_copy(update={"threshold_decay": own / growth or None})
    return config.model_copy(update=changes)


def _stretch_schedule(schedule: ScheduleConfig, length: float, epochs: int) -> ScheduleConfig:
    whole = schedule.per == "epoch"

    def scaled(mark: float) -> float:
        return float(max(1, _round(mark * length))) if whole and mark else mark * length

    warmup = min(float(epochs), scaled(schedule.warmup_epochs))
    marks = tuple(mark for mark in map(scaled, schedule.milestones) if mark < epochs)
    return schedule.model_copy(update={"warmup_epochs": warmup, "milestones": marks})


def _rate_sum(schedule: ScheduleConfig, epochs: int) -> float:
    """The sum of the learning rates for a highest one of 1, in epochs."""
    steps = 1 if schedule.per == "epoch" else _STEPS
    rates = (
        learning_rate(schedule, 1.0, epoch=epoch, step_in_epoch=step, steps_per_epoch=steps, epochs=epochs)
        for epoch in range(epochs)
        for step in range(steps)
    )
    return math.fsum(rates) / steps


def _round(value: float) -> int:
    return math.floor(value + 0.5)
