"""Before a run: its whole plan, without its data; and how long it will take, from a few of its real steps."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from softprune.budget.profiler import profile
from softprune.core.sparsify import Plan, plan
from softprune.forecast.forecast import Forecast, forecast, onset_of
from softprune.methods.transforms import SoftThreshold
from softprune.nn.catalog import build
from softprune.structure.gates import gates_on
from softprune.structure.kinds import unit_kind
from softprune.train.assembly import (
    assemble,
    fitting,
    join_processes,
    make_optimizer,
    open_source,
    proposed,
    sparsify_arguments,
)
from softprune.train.config import RunConfig
from softprune.train.data.datasets import DATA_SETS
from softprune.train.data.source import Epoch
from softprune.train.load_run import initial_weights
from softprune.train.schedule import schedule_function, stretch
from softprune.train.trainer import take_step

WARM_UP = 2  # steps before those that are timed


def plan_text(config: RunConfig) -> str:
    """The plan of a run: costs, targets, schedule, and when sparsity will set in; without memory for its weights.

    Data of your own are opened, since only they know their size; the others need not be there.
    """
    config = stretch(config)
    samples, shape = _data(config)
    per_epoch = samples // config.batch if config.drop_last else math.ceil(samples / config.batch)
    total = per_epoch * config.epochs
    with torch.device("meta"):
        model = build(config.model.name, config.model.args)
    weights = initial_weights(config)
    if weights is not None:
        fitting(model, weights, origin=str(config.model.weights))
    example = torch.empty(shape, device="meta")
    costs = profile(model, example)
    rate = schedule_function(config, per_epoch)
    begun = f" from {config.model.weights}" if weights is not None else ""
    lines = [
        f"{config.name}: {config.model.name}{begun} on {config.data.name}, {samples:,} samples",
        f"{total:,} steps: {config.epochs} epochs of {per_epoch:,} steps of {config.batch} samples",
        f"learning rate {rate(0):.4g} at first, {max(rate(e * per_epoch) for e in range(config.epochs)):.4g} at most, "
        f"{rate(total - 1):.4g} at last",
        f"{costs.params:,} weights, {costs.macs:,} MACs for an input of {'x'.join(map(str, shape[1:]))}, "
        f"{costs.pool_macs:,} more for average pools",
    ]
    if config.method is not None:
        s_init, decay, proposal = proposed(config, model, rate, total)
        wanted = sparsify_arguments(config, model, example)
        schedule, method = wanted.pop("schedule", None), config.method.build(s_init)
        with gates_on(model, unit_kind(wanted["units"]).gates(model, example)):
            decided = plan(model, method, **wanted)
        if config.goal is not None and not method.moves_masks:
            lines += ["", f"the goal is approached by {schedule or method.goal_settings.schedule}"]
        lines += ["", str(decided), "", *([str(proposal)] if proposal else [])]
        lines.append(str(_forecast(config, decided, decay, rate, total)))
    return "\n".join(lines)


def _data(config: RunConfig) -> tuple[int, tuple[int, ...]]:
    known = DATA_SETS.get(config.data.name)
    # What is kept for choosing is missing from the training samples; only the data know how much that is.
    if known is None or config.data.held != "test":
        source = open_source(config)
        return source.train_size, source.example_shape
    return config.data.subset or known.sizes[0], known.example_shape(image_size=config.data.image_size)


def _forecast(
    config: RunConfig, decided: Plan, decay: float | None, rate: Callable[[int], float], total: int
) -> Forecast | str:
    """The forecast for a threshold that stands for those on the meta device."""
    first = decided.managed[0]
    onset = onset_of(first.transform.g) if isinstance(first.transform, SoftThreshold) else None
    if onset is None:
        return ""
    s = nn.Parameter(torch.full((1,), float(getattr(first.method, "s_init", 0.0))))
    group = {"params": [s], "weight_decay": config.optimizer.weight_decay if decay is None else decay}
    return forecast(make_optimizer(config, [group]), s=s, s_on=onset, total_steps=total, scheduler=rate)


def time_steps(config: RunConfig, steps: int) -> str:
    """Measure optimizer steps on real data, after two to warm up, in the largest parts of the batch that fit."""
    if steps < 1:
        raise ValueError(f"--time takes a number of steps, at least 1; got {steps}")
    run = stretch(config)
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    with join_processes() as processes:
        source = open_source(run)
        parts = assemble(run, source, processes, weights=initial_weights(run))
        epoch = Epoch(number=0, seed=run.seed, batch=run.batch, rank=processes.rank, world=processes.world)
        batches, seconds = source.train_epoch(epoch), []
        for number in range(min(steps + WARM_UP, parts.steps_per_epoch)):
            began = time.perf_counter()
            batch = next(batches)
            while True:
                try:
                    take_step(parts, number, *batch)
                    break
                except torch.OutOfMemoryError:
                    pieces = 2 * parts.config.accumulate
                    if pieces > len(batch[1]):
                        raise
                    parts = replace(parts, config=run.model_copy(update={"accumulate": pieces}))
            seconds.append(time.perf_counter() - began)
    pieces, measured = parts.config.accumulate, seconds[WARM_UP:] or seconds
    middle = statistics.median(measured)
    hours = middle * parts.total_steps / 3600
    split = "" if pieces == run.accumulate else f" in {pieces} parts (accumulate={pieces}: the whole does not fit)"
    return (
        f"{len(measured)} steps of {run.batch} samples{split}: {1000 * middle:.0f} ms at the median, "
        f"{1000 * min(measured):.0f} to {1000 * max(measured):.0f} ms\n"
        f"{parts.total_steps:,} steps take about {hours:.1f} hours, evaluation and checkpoints not counted"
    )
