"""The learning rate of every step to come, read from the real scheduler without touching it.

A formula for the schedule would have to be kept in step with the training script. A copy of the scheduler
cannot disagree with it: the copy is run over the whole plan on a stand-in for the optimizer.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

# A scheduler, the learning rate as a function of the scheduler step, all of them in a list, or none.
Schedule: TypeAlias = LRScheduler | Callable[[int], float] | Sequence[float] | None

# What one param group holds during a stretch of steps: lr, momentum, betas, weight_decay, ...
Settings: TypeAlias = Mapping[str, Any]


class _StandIn(Optimizer):
    """The hyper-parameters of an optimizer without its weights: what a scheduler reads and writes."""

    def __init__(self, original: Optimizer) -> None:
        super().__init__([torch.zeros(1)], {})
        self.defaults = dict(original.defaults)
        self.param_groups = [
            {name: _own(value) for name, value in group.items() if name not in ("params", "param_names")}
            for group in original.param_groups
        ]
        for group in self.param_groups:
            group["params"] = [torch.zeros(1)]

    def step(self, closure: Any = None) -> Any:
        """Nothing; schedulers expect that there is a step."""


def _own(value: Any) -> Any:
    # A learning rate may be a tensor, which schedulers fill in place: a shared one would leak back.
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def check_steps(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number >= 1, e.g. epochs * len(loader)")


def caveat(schedule: Schedule) -> str | None:
    """Return what cannot be known about this schedule in advance, or None."""
    if isinstance(schedule, ReduceLROnPlateau):
        return (
            "ReduceLROnPlateau follows the loss, which nobody knows in advance: "
            "the forecast keeps the present learning rate for the whole run, so s will be slower than shown"
        )
    return None


def learning_rates(
    optimizer: Optimizer,
    scheduler: Schedule,
    total_steps: int,
    *,
    steps_per_scheduler_step: int = 1,
    group: int = 0,
) -> list[float]:
    """Return the learning rate that each of the next ``total_steps`` optimizer steps will use.

    Entry 0 belongs to the next step: a scheduler that has already been stepped (a resumed run) goes on from
    where it is. Optimizer and scheduler are left exactly as they were.

    Args:
        scheduler: that of the optimizer; or a function from the scheduler step (0, 1, ...) to the learning rate
            itself (not a factor); or the learning rates as a list; or None for a constant one.
        total_steps: optimizer steps to look ahead.
        steps_per_scheduler_step: optimizer steps between two calls of ``scheduler.step()``: 1 when it is
            called for every batch, ``len(loader)`` when it is called for every epoch.
        group: index of the param group.

    Raises:
        TypeError: the scheduler is of an unknown kind or cannot be copied.
        ValueError: a number is out of range, or the schedule ends before the run.

    Example:
        >>> sgd = torch.optim.SGD([torch.zeros(1)], lr=0.5)
        >>> halving = torch.optim.lr_scheduler.ExponentialLR(sgd, gamma=0.5)
        >>> learning_rates(sgd, halving, 4, steps_per_scheduler_step=2)
        [0.5, 0.5, 0.25, 0.25]
    """
    stretches = settings(
        optimizer, scheduler, total_steps, steps_per_scheduler_step=steps_per_scheduler_step, group=group
    )
    return [rate for steps, values in stretches for rate in [float(values["lr"])] * steps]


def settings(
    optimizer: Optimizer,
    scheduler: Schedule,
    total_steps: int,
    *,
    steps_per_scheduler_step: int = 1,
    group: int = 0,
) -> Iterator[tuple[int, Settings]]:
    """Yield numbers of optimizer steps and the settings of the param group during them, until the next are asked for.

    Schedulers may move more than the learning rate: OneCycleLR and CyclicLR also cycle the momentum.
    """
    check_steps("total_steps", total_steps)
    check_steps("steps_per_scheduler_step", steps_per_scheduler_step)
    if not 0 <= group < len(optimizer.param_groups):
        raise ValueError(f"group is {group}; the optimizer has groups 0..{len(optimizer.param_groups) - 1}")
    stand_in = _StandIn(optimizer)
    if scheduler is None or isinstance(scheduler, ReduceLROnPlateau):
        return iter([(total_steps, stand_in.param_groups[group])])
    lengths = [steps_per_scheduler_step] * (total_steps // steps_per_scheduler_step)
    if rest := total_steps % steps_per_scheduler_step:
        lengths.append(rest)
    if isinstance(scheduler, LRScheduler):
        return _run(_copy(scheduler, optimizer, stand_in), stand_in.param_groups[group], lengths)
    return _read(scheduler, stand_in.param_groups[group], lengths)


def _copy(scheduler: LRScheduler, optimizer: Optimizer, stand_in: _StandIn) -> LRScheduler:
    if scheduler.optimizer is not optimizer:
        raise ValueError(
            f"this {type(scheduler).__name__} drives another {type(scheduler.optimizer).__name__}, not the "
            "optimizer given; pass the pair that will be trained with (the inner ones, if they are wrapped)"
        )
    # deepcopy takes from the memo what it finds there: the stand-in replaces the optimizer at every depth of
    # nesting, and a callable that happens to hold the model shares its weights instead of copying them.
    memo: dict[int, Any] = {id(p): p for held in optimizer.param_groups for p in held["params"]}
    memo[id(optimizer)] = stand_in
    try:
        return copy.deepcopy(scheduler, memo)
    except Exception as error:
        raise TypeError(
            f"this {type(scheduler).__name__} cannot be copied ({error}); "
            "pass a function from the scheduler step to the learning rate, or a list of them, instead"
        ) from error


def _run(scheduler: LRScheduler, group: Settings, lengths: Sequence[int]) -> Iterator[tuple[int, Settings]]:
    for index, steps in enumerate(lengths):
        # The order of optimizer and scheduler steps, which torch warns about, has no meaning for a copy.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if index:
                    scheduler.step()
            except ValueError as error:
                raise ValueError(
                    f"{type(scheduler).__name__} refuses its step {index} of {len(lengths)} ({error}); "
                    "make total_steps and steps_per_scheduler_step agree with the length it was built for"
                ) from error
        yield steps, group


def _read(
    rates: Callable[[int], float] | Sequence[float], group: dict[str, Any], lengths: Sequence[int]
) -> Iterator[tuple[int, Settings]]:
    if not callable(rates):
        if not isinstance(rates, Sequence):
            raise TypeError(
                f"scheduler is a {type(rates).__name__}; give a torch LRScheduler, a function from the "
                "scheduler step to the learning rate, a list of learning rates, or None"
            )
        if len(rates) < len(lengths):
            raise ValueError(f"the list holds {len(rates)} learning rates; {len(lengths)} are needed for this run")
        rates = rates.__getitem__
    for index, steps in enumerate(lengths):
        rate = float(rates(index))
        if not (math.isfinite(rate) and rate >= 0):
            raise ValueError(f"the learning rate at scheduler step {index} is {rate}; it must be finite and >= 0")
        group["lr"] = rate
        yield steps, group
