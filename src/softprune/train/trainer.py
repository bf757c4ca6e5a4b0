"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from softprune.core.sharding import local
from softprune.train.assembly import Assembly
from softprune.train.checkpoints import Checkpoints
from softprune.train.config import RunConfig
from softprune.train.data.source import Epoch, Source
from softprune.train.evaluation import Score, evaluate
from softprune.train.interruption import Interruption
from softprune.train.observer import Observer, Progress, StopRun
from softprune.train.processes import Processes
from softprune.train.run_folder import RunFolder
from softprune.train.stepper import Stepper

Seen = TypeVar("Seen")


@dataclass
class Position:
    """Where a run stands; all of it is in every checkpoint."""

    step: int = 0
    accuracy: float | None = None
    sparsity: float | None = None
    best: dict[str, Any] | None = None
    seconds: float = 0.0


class Trainer:
    """Runs the steps of an assembled run, and writes everything down.

    Args:
        config: of the run.
        parts: the assembled run.
        source: the data.
        run: the folder; only the first process writes to it.
        processes: this process among its peers.
        observer: who watches.
    """

    def __init__(
        self,
        config: RunConfig,
        parts: Assembly,
        source: Source,
        *,
        run: RunFolder,
        processes: Processes,
        observer: Observer,
    ) -> None:
        self.config, self.parts, self.source = config, parts, source
        self.run, self.processes, self.observer = run, processes, observer
        self.checkpoints = Checkpoints(run.checkpoints, keep=config.checkpoint.keep)
        self.position = Position()
        self._stepper = Stepper(config, parts, processes)
        self._wish: str | None = None  # of the observer, to stop
        self._began = time.perf_counter()  # moved back by the time that earlier parts of the run took
        self._began_after, self._began_at = 0.0, 0

    def train(self) -> bool:
        """Go on to the end.

        Returns:
            Whether the end was reached; False if a signal or the observer asked to stop, after a checkpoint.

        Raises:
            FloatingPointError: when the loss is NaN or infinite, naming the step and the tensor.
        """
        self._began_after, self._began_at = self.position.seconds, self.position.step
        self._began = time.perf_counter() - self._began_after
        with Interruption() as interruption:
            while self.position.step < self.parts.total_steps:
                if not self._epoch(interruption):
                    self.save()
                    if self.processes.first:
                        by = interruption.asked_by or self._wish or "a signal to another process"
                        self.observer.on_note(
                            f"stopped by {by} after step {self.position.step}; "
                            f"continue with: softprune train --resume {self.run.path}"
                        )
                    return False
        return True

    def save(self, *, best: bool = False) -> Path:
        self.position.seconds = time.perf_counter() - self._began
        return self.checkpoints.save(self.parts, asdict(self.position), self.processes, best=best)

    def steps(self) -> Iterator[float]:
        """Make the steps that are left of this epoch, one at a time; the loss of each, after it was written down."""
        done, start = divmod(self.position.step, self.parts.steps_per_epoch)
        epoch = Epoch(
            number=done,
            seed=self.config.seed,
            batch=self.config.batch,
            rank=self.processes.rank,
            world=self.processes.world,
            start=start,
            drop_last=self.config.drop_last,
        )
        self.parts.runner.train()
        for inputs, labels in self.source.train_epoch(epoch):
            loss = self._stepper.step(self.position.step, inputs, labels)
            self.position.step += 1
            self._after_step(done, loss)
            yield loss

    def _epoch(self, interruption: Interruption) -> bool:
        number = self.position.step // self.parts.steps_per_epoch
        for _ in self.steps():
            # After the last step of an epoch it is evaluated first: a run that goes on begins with the next one.
            if self.position.step % self.parts.steps_per_epoch and self._asked(interruption):
                return False
        self._after_epoch(number)
        return self.position.step == self.parts.total_steps or not self._asked(interruption)

    def _asked(self, interruption: Interruption) -> bool:
        return self.processes.any((interruption.asked_by or self._wish) is not None)

    def _show(self, see: Callable[[Seen], None], what: Seen) -> None:
        try:
            see(what)
        except StopRun as wish:
            # Followed where all processes decide together.
            self._wish = str(wish)

    def _after_step(self, epoch: int, loss: float) -> None:
        step = self.position.step
        if self.processes.first:
            if step % self.config.log.every_steps == 0:
                self._log({"kind": "step", "epoch": epoch, "step": step, "loss": loss, "lr": self.parts.rate(step - 1)})
            self._show(self.observer.on_step, self._progress(epoch, loss))
        # After the log: resuming forgets what was logged after the checkpoint, but cannot make up for what was not.
        every = self.config.checkpoint.every_steps
        if every is not None and step % every == 0 and step % self.parts.steps_per_epoch:
            self.save()

    def _progress(self, epoch: int, loss: float) -> Progress:
        step, total = self.position.step, self.parts.total_steps
        pace = (time.perf_counter() - self._began - self._began_after) / (step - self._began_at)
        return Progress(
            step, total, epoch + 1, self.config.epochs, loss,
            self.position.accuracy, self.position.sparsity, pace * (total - step),
        )  # fmt: skip

    def _after_epoch(self, epoch: int) -> None:
        done = epoch + 1
        last = self.position.step == self.parts.total_steps
        if last or done % self.config.evaluate_every == 0:
            self._evaluate(epoch)
        every = self.config.checkpoint.every_epochs
        if last or (every is not None and done % every == 0):
            self.save()

    def _evaluate(self, epoch: int) -> None:
        parts, position = self.parts, self.position
        score = evaluate(parts.runner, self.source, self.config, self.processes)
        if parts.average is not None and parts.sparsifier is not None:
            parts.sparsifier.solve(parts.average.module)  # an average of weights has a total of its own
        averaged = evaluate(parts.average, self.source, self.config, self.processes) if parts.average else None
        metrics = self._describe(epoch, score, averaged)
        position.accuracy, position.sparsity = (averaged or score).accuracy, metrics.get("sparsity")
        if self.processes.first:
            self._log(metrics)
        if position.best is None or position.accuracy > position.best["accuracy"]:
            # A run that diverged in its first epoch has its best accuracy there, by chance.
            broken = [n for n, p in parts.model.named_parameters() if not bool(torch.isfinite(local(p)).all())]
            if self.processes.any(bool(broken)):
                if self.processes.first:
                    self.observer.on_note(f"not kept as the best, since it has NaN or infinite values: {broken[:5]}")
                return
            kept = ("epoch", "step", "sparsity", "macs", "params", "units")
            position.best = {key: metrics[key] for key in kept if key in metrics}
            position.best |= {"accuracy": position.accuracy, "checkpoint": "checkpoints/best.safetensors"}
            self.save(best=True)

    def _describe(self, epoch: int, score: Score, averaged: Score | None) -> dict[str, Any]:
        """The metrics of an epoch; budget and layers are written on the way."""
        step = self.position.step
        metrics: dict[str, Any] = {
            "kind": "epoch", "epoch": epoch, "step": step, "lr": self.parts.rate(step - 1),
            "test_loss": score.loss, "accuracy": score.accuracy,
        }  # fmt: skip
        if averaged is not None:
            metrics |= {"average_test_loss": averaged.loss, "average_accuracy": averaged.accuracy}
        if self.parts.sparsifier is None:
            return metrics
        budget, layers = self.parts.sparsifier.measure(), self.parts.sparsifier.diagnose()
        if self.processes.first:
            rows = self.run.log_layers(epoch, step, layers, self.parts.profile)
            self._show(self.observer.on_layers, rows)
            self.run.write_budget(budget)
        metrics["sparsity"] = budget.overall
        if self.config.units.kind != "weight":
            # What a unit costs depends on which others stay: it is known of the network that is folded or shrunk.
            return {**metrics, "units": budget.params}
        return {**metrics, "params": budget.params, "macs": budget.macs()}

    def _log(self, metrics: dict[str, Any]) -> None:
        metrics["seconds"] = round(time.perf_counter() - self._began, 3)
        self.run.log(metrics)
        self._show(self.observer.on_metrics, metrics)
