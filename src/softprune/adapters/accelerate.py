"""Accelerate: follow prepared optimizers, and save and load with the accelerator."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from softprune.core.groups import group_of, learnt
from softprune.core.sparsifier import Sparsifier
from softprune.forecast.schedule import learning_rates
from softprune.records import parse_json, read_text, write_text

try:
    from accelerate.accelerator import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from accelerate.state import AcceleratorState
except ImportError as error:
    raise ImportError("the Accelerate adapter needs Accelerate: pip install 'softprune[accelerate]'") from error

STATE_FILE = "softprune.json"


def attach(
    accelerator: Accelerator,
    sparsifier: Sparsifier,
    *optimizers: Any,
    total_steps: int,
    threshold_decay: float | None = None,
    scheduler: Any = None,
) -> None:
    """Follow the optimizers that `accelerator.prepare` returned; its `save_state` and `load_state` include this.

    Steps that gradient accumulation or a GradScaler leaves out are not counted.

    Args:
        sparsifier: of the model, made before `prepare` wrapped the model.
        optimizers: those that train the model, as `prepare` returned them.
        total_steps: optimizer steps of the whole training, as one process counts them.
        threshold_decay: decay of s, for optimizers that do not hold the thresholds yet.
        scheduler: the learning rate scheduler, prepared or not, for the forecast.
    """
    attach_inner(sparsifier, optimizers, total_steps=total_steps, threshold_decay=threshold_decay, scheduler=scheduler)

    # `register_for_checkpointing` would pickle the state, unpickle it without restriction, and come only after the
    # weights, whose keys a freeze changes.
    def save(models: Any, weights: Any, folder: str) -> None:
        if accelerator.is_main_process:
            write_text(Path(folder) / STATE_FILE, json.dumps(sparsifier.state_dict(), indent=1))

    def load(models: Any, folder: str) -> None:
        path = Path(folder) / STATE_FILE
        if not path.is_file():
            raise ValueError(f"{folder} has no {STATE_FILE}: pass a folder that was saved after attach()")
        sparsifier.load_state_dict(parse_json(read_text(path), str(path)))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def attach_inner(
    sparsifier: Sparsifier,
    wrapped: Sequence[Any],
    *,
    total_steps: int,
    threshold_decay: float | None = None,
    scheduler: Any = None,
) -> None:
    """Attach the torch optimizers inside of Accelerate's."""
    plain = _plain_schedule(scheduler, sparsifier, total_steps)
    inner = [_inside(optimizer) for optimizer in wrapped]
    sparsifier.attach(*inner, total_steps=total_steps, threshold_decay=threshold_decay, scheduler=plain)


def _inside(optimizer: Any) -> Any:
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _plain_schedule(scheduler: Any, sparsifier: Sparsifier, total_steps: int) -> Any:
    """The scheduler, or its rates, for the forecast: on the torch optimizer, one step for each of the training."""
    per_step = 1
    if isinstance(scheduler, AcceleratedScheduler):
        # It counts the steps of one process: with several it makes as many steps in each step of the training.
        alone = scheduler.split_batches or not scheduler.step_with_optimizer
        per_step = 1 if alone else AcceleratorState().num_processes
        scheduler = scheduler.scheduler
    if not isinstance(scheduler, LRScheduler):
        return scheduler
    optimizer = _inside(scheduler.optimizer)
    scheduler = copy.copy(scheduler)
    scheduler.optimizer = optimizer
    if per_step == 1:
        return scheduler
    thresholds = learnt(sparsifier.targets)
    found = group_of(thresholds[0], [optimizer]) if thresholds else None
    group = next((i for i, one in enumerate(optimizer.param_groups) if found and one is found[1]), 0)
    length = min(total_steps * per_step, getattr(scheduler, "total_steps", total_steps * per_step))
    rates = learning_rates(optimizer, scheduler, length, group=group)[::per_step]
    return rates + rates[-1:] * (total_steps - len(rates))
