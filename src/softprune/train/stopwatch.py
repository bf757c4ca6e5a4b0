"""How long a run will take, from a few of its real steps."""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F

from softprune.train.assembly import assemble
from softprune.train.config import RunConfig
from softprune.train.evaluation import autocast, place
from softprune.train.length import stretch
from softprune.train.processes import join_processes
from softprune.train.run import open_source

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
        parts = assemble(run, example_shape=source.example_shape, steps_per_epoch=per_epoch, processes=processes)
        batches = source.train_epoch(
            epoch=0, seed=run.seed, batch=run.batch, rank=processes.rank, world=processes.world
        )
        pieces, seconds = run.accumulate, []
        for _ in range(steps + WARM_UP):
            began = time.perf_counter()
            try:
                inputs, labels = next(batches)
            except StopIteration:
                break
            while True:
                try:
                    for x, y in zip(inputs.tensor_split(pieces), labels.tensor_split(pieces), strict=True):
                        with autocast(run, processes):
                            loss = F.cross_entropy(parts.runner(place(x, run, processes)), y.to(processes.device))
                        loss.backward()
                    break
                except torch.OutOfMemoryError:
                    if pieces >= len(labels):
                        raise
                    pieces *= 2
                    parts.optimizer.zero_grad()
            parts.optimizer.step()
            parts.optimizer.zero_grad()
            seconds.append(time.perf_counter() - began)
    measured = seconds[WARM_UP:] or seconds
    middle = statistics.median(measured)
    hours = middle * parts.total_steps / 3600
    split = "" if pieces == run.accumulate else f" in {pieces} parts (accumulate={pieces}: the whole does not fit)"
    return (
        f"{len(measured)} steps of {run.batch} samples{split}: {1000 * middle:.0f} ms at the median, "
        f"{1000 * min(measured):.0f} to {1000 * max(measured):.0f} ms\n"
        f"{parts.total_steps:,} steps take about {hours:.1f} hours, evaluation and checkpoints not counted"
    )
