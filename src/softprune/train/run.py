"""A run from its configuration to its result; begun, or continued."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from softprune.budget.budget import Budget
from softprune.records import CONFIG, METRICS
from softprune.train.assembly import Processes, assemble, join_processes, open_source
from softprune.train.checkpoints import Checkpoint, Checkpoints, restore, set_aside
from softprune.train.config import RunConfig
from softprune.train.data.source import Source
from softprune.train.load_run import initial_weights
from softprune.train.loggers import open_loggers
from softprune.train.observer import Beginning, Ending, Fanout, Observer
from softprune.train.run_folder import RunFolder, locked
from softprune.train.trainer import Position, Trainer


@dataclass(frozen=True)
class Outcome:
    folder: Path  # of the run
    finished: bool  # False if a signal stopped it; then it can be continued
    first: bool  # whether this is the process that writes and prints
    result: dict[str, Any]  # what result.json holds; empty if it is not finished, and on other processes
    budget: Budget | None  # at the end; None for a dense run


def train(config: RunConfig, folder: Path, *, observer: Observer | None = None) -> Outcome:
    """Train from the beginning into a new run folder, on as many processes as torchrun started.

    The observer is called on the first process only.
    """
    return _go(config, folder, observer or Observer(), resume=False)


def resume(folder: Path, *, observer: Observer | None = None, trust: bool = False) -> Outcome:
    """Continue a run from its last whole checkpoint; from the beginning if it has no checkpoint file at all.

    On the same machine, versions, thread count and number of processes the result is the same, bit for bit, as
    that of a run that was never stopped. With another number of processes it continues at the same step.

    With `trust` the code that the folder's configuration names is imported and called.

    Raises:
        ValueError: if none of its checkpoint files can be read, with the way to begin anew; nothing is changed then.
        BlockingIOError: if another process is writing to the folder.
    """
    RunFolder.open(folder)
    return _go(RunConfig.load(folder / CONFIG, trust=trust), folder, observer or Observer(), resume=True)


def _go(config: RunConfig, folder: Path, observer: Observer, *, resume: bool) -> Outcome:
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    run = RunFolder(folder)
    loggers: dict[str, Observer] = {}
    with join_processes() as processes, ExitStack() as held:
        if resume:
            processes.on_first(lambda: held.enter_context(locked(folder)))
        source = open_source(config)
        _refuse_small_batches(config, source, processes)
        if config.log.model_dump(exclude={"every_steps"}, exclude_defaults=True):  # with any logger
            processes.on_first(lambda: loggers.update(open_loggers(config.log)))
        if not resume:
            processes.on_first(lambda: RunFolder.refuse_taken(folder))
        notes: list[str] = []
        unreadable: list[Path] = []
        found = Checkpoints(run.checkpoints).newest(notes, unreadable) if resume else None
        # Weights that a checkpoint replaces need not be there any more.
        begun_with = initial_weights(config) if found is None and config.model.weights is not None else None
        parts = assemble(config, source, processes, weights=begun_with)
        if not resume:
            # After the assembly: what cannot work, such as weights of another network, leaves no folder behind.
            processes.on_first(lambda: held.enter_context(locked(folder)))
            processes.on_first(lambda: RunFolder.create(folder, config.dump(), seed=config.seed, world=processes.world))
        observers = Fanout(observer, loggers)
        trainer, logged = Trainer(parts, source, run=run, observer=observers), 0
        if resume:
            processes.wait()  # for those that still read the checkpoints
            processes.on_first(lambda: notes.extend([set_aside(path) for path in unreadable]))
            logged = _restore(trainer, found, notes)
        ending: Ending = "failed"
        try:
            step = trainer.position.step
            processes.on_first(
                lambda: observers.on_begin(Beginning(folder, config, step, kept=len(run.metrics()), logged=logged))
            )
            if processes.first and parts.sparsifier is not None and parts.sparsifier.forecast and not resume:
                observers.on_note(str(parts.sparsifier.forecast))
            finished = trainer.train()
            result = _result(trainer) if finished and processes.first else {}
            if result:
                run.write_result(result)
            ending = "finished" if finished else "stopped"
        finally:
            if processes.first:
                observers.on_end(ending)
        budget = parts.sparsifier.measure() if parts.sparsifier is not None else None
        processes.wait()
    return Outcome(folder, finished, processes.first, result, budget)


def _restore(trainer: Trainer, found: Checkpoint | None, notes: list[str]) -> int:
    """Put a run back to a checkpoint, or to its beginning without one; returns how many lines it had logged."""
    parts, run = trainer.parts, trainer.run
    if found is not None:
        restore(parts, *found)
        trainer.position = Position.read(found[1]["progress"])
    step, logged = trainer.position.step, 0
    if parts.processes.first:
        logged = len(run.metrics())
        run.remove_parts()
        run.cut_back(step)
        for note in [*notes, f"continuing {run.path} after step {step} of {parts.total_steps}"]:
            trainer.observer.on_note(note)
    parts.processes.wait()
    return logged


def _refuse_small_batches(config: RunConfig, source: Source, processes: Processes) -> None:
    """Every process needs a sample in every part of every batch."""
    tail = 0 if config.drop_last else source.train_size % config.batch
    smallest = tail or config.batch
    if smallest < processes.world * config.accumulate:
        raise ValueError(
            f"a batch of {smallest} samples cannot be shared by {processes.world} processes with "
            f"accumulate={config.accumulate}: set drop_last=true, or another batch"
        )


def _result(trainer: Trainer) -> dict[str, Any]:
    epochs = [m for m in trainer.run.metrics() if m.get("kind") == "epoch"]
    if not epochs:
        raise ValueError(
            f"{trainer.run.path / METRICS} has lost its rows, so there is no result to write: the checkpoints are "
            f"whole, use softprune evaluate {trainer.run.path}"
        )
    keys = ("epoch", "step", "accuracy", "average_accuracy", "test_loss", "sparsity", "params", "macs", "units")
    last = {key: epochs[-1][key] for key in keys if key in epochs[-1]}
    newest = trainer.checkpoints.regular()
    last["checkpoint"] = f"checkpoints/{newest[-1].name}" if newest else None
    return {"last": last, "best": trainer.position.best, "seconds": round(trainer.position.seconds, 1)}
