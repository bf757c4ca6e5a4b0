"""How long a run will take, from a few of its real steps."""

from __future__ import annotations

import statistics
import time

import torch

from softprune.train.assembly import assemble
from softprune.train.config import RunConfig
from softprune.train.data.source import Epoch
from softprune.train.length import stretch
from softprune.train.processes import join_processes
from softprune.train.run import open_source
from softprune.train.stepper import Stepper
from softprune.train.weights import initial_weights

WARM_UP = 2


def time_steps(config: RunConfig, steps: int) -> str:
    """Measure optimizer steps on real data, at the largest part of the batch that fits, and estimate the whole.

    Args:
        config: of the run.
        steps: how many to measure, after two to warm up.
    """
    if steps < 1:
        raise ValueError(f"--time takes a number of steps, at least 1; got {steps}")
    run = stretch(config)
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    with join_processes() as processes:
        source = open_source(run)
        per_epoch = source.steps(run.batch, drop_last=run.drop_last)
        parts = assemble(
            run,
            example_shape=source.example_shape,
            steps_per_epoch=per_epoch,
            processes=processes,
            weights=initial_weights(run),
        )
        epoch = Epoch(number=0, seed=run.seed, batch=run.batch, rank=processes.rank, world=processes.world)
        batches, stepper, seconds = source.train_epoch(epoch), Stepper(run, parts, processes), []
        for number in range(min(steps + WARM_UP, per_epoch)):
            began = time.perf_counter()
            batch = next(batches)
            while True:
                try:
                    stepper.step(number, *batch)
                    break
                except torch.OutOfMemoryError:
                    pieces = 2 * stepper.config.accumulate
                    if pieces > len(batch[1]):
                        raise
                    stepper = Stepper(run.model_copy(update={"accumulate": pieces}), parts, processes)
            seconds.append(time.perf_counter() - began)
    pieces = stepper.config.accumulate
    measured = seconds[WARM_UP:] or seconds
    middle = statistics.median(measured)
    hours = middle * parts.total_steps / 3600
    split = "" if pieces == run.accumulate else f" in {pieces} parts (accumulate={pieces}: the whole does not fit)"
    return (
        f"{len(measured)} steps of {run.batch} samples{split}: {1000 * middle:.0f} ms at the median, "
        f"{1000 * min(measured):.0f} to {1000 * max(measured):.0f} ms\n"
        f"{parts.total_steps:,} steps take about {hours:.1f} hours, evaluation and checkpoints not counted"
    )
