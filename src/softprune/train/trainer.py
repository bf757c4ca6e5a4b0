"""The training loop."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from softprune.core.sharding import whole
from softprune.train.assembly import Assembly
from softprune.train.checkpoints import Checkpoints
from softprune.train.config import RunConfig
from softprune.train.data.source import Source
from softprune.train.evaluation import Score, autocast, evaluate, place
from softprune.train.interruption import Interruption
from softprune.train.observer import Observer, Progress
from softprune.train.processes import Processes
from softprune.train.run_folder import RunFolder


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
        self._began = time.perf_counter()  # moved back by the time that earlier parts of the run took
        self._began_after, self._began_at = 0.0, 0

    def train(self) -> bool:
        """Go on to the end.

        Returns:
            Whether the end was reached; False if a signal asked to stop, after a checkpoint.

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
                        self.observer.on_note(
                            f"stopped by {interruption.asked_by or 'a signal to another process'} after step "
                            f"{self.position.step}; continue with: softprune train --resume {self.run.path}"
                        )
                    return False
        return True

    def save(self, *, best: bool = False) -> Path:
        self.position.seconds = time.perf_counter() - self._began
        return self.checkpoints.save(self.parts, asdict(self.position), self.processes, best=best)

    def _epoch(self, interruption: Interruption) -> bool:
        epoch, start = divmod(self.position.step, self.parts.steps_per_epoch)
        batches = self.source.train_epoch(
            epoch=epoch,
            seed=self.config.seed,
            batch=self.config.batch,
            rank=self.processes.rank,
            world=self.processes.world,
            start=start,
            drop_last=self.config.drop_last,
        )
        self.parts.runner.train()
        for inputs, labels in batches:
            loss = self._step(inputs, labels)
            self._after_step(epoch, loss)
            if self.processes.any(interruption.asked_by is not None):
                return False
        self._after_epoch(epoch)
        return True

    def _step(self, inputs: Tensor, labels: Tensor) -> float:
        """One optimizer step on the global batch; the mean loss over it."""
        parts, config = self.parts, self.config
        lr = parts.rate(self.position.step)
        for group in parts.optimizer.param_groups:
            group["lr"] = lr
        parts.optimizer.zero_grad()
        (samples,) = self.processes.total(len(labels))
        total = 0.0
        # Every process makes the same number of parts, whatever its share of the batch.
        pieces = (t.tensor_split(config.accumulate) for t in (inputs, labels))
        for x, y in zip(*pieces, strict=True):
            x, y = place(x, config, self.processes), y.to(self.processes.device, non_blocking=True)
            with autocast(config, self.processes):
                losses = F.cross_entropy(parts.runner(x), y, label_smoothing=config.label_smoothing, reduction="sum")
                # Wrappers average gradients over processes; this makes it the mean over the samples of all of them.
                loss = losses * (self.processes.world / samples)
            parts.scaler.scale(loss).backward()
            total += losses.item()
        total = self.processes.total(total)[0] / samples
        if not torch.isfinite(torch.tensor(total)):
            raise FloatingPointError(self._name_the_bad(total))
        if config.clip_norm is not None:
            self._clip(config.clip_norm)
        parts.scaler.step(parts.optimizer)
        parts.scaler.update()
        if parts.average is not None:
            parts.average.update_parameters(parts.model)
        self.position.step += 1
        return total

    def _clip(self, limit: float) -> None:
        """Clip the gradient of the weights. Thresholds are left out: clipping would weaken the loss, not the decay."""
        self.parts.scaler.unscale_(self.parts.optimizer)
        groups = self.parts.optimizer.param_groups
        weights = [p for group in groups if group.get("name") != "threshold" for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(weights, limit)

    def _name_the_bad(self, loss: float) -> str:
        where = "the inputs or the loss itself"
        for name, p in self.parts.model.named_parameters():
            if not bool(torch.isfinite(whole(p.detach())).all()):
                where = f"the values of {name}"
                break
            if p.grad is not None and not bool(torch.isfinite(whole(p.grad)).all()):
                where = f"the gradient of {name}"
        step = self.position.step + 1
        return f"the loss is {loss} at step {step}; not finite: {where}. Lower the learning rate or clip_norm"

    def _after_step(self, epoch: int, loss: float) -> None:
        step = self.position.step
        if self.processes.first:
            if step % self.config.log.every_steps == 0:
                self._log({"kind": "step", "epoch": epoch, "step": step, "loss": loss, "lr": self.parts.rate(step - 1)})
            self.observer.on_step(self._progress(epoch, loss))
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
        parts, position, done = self.parts, self.position, epoch + 1
        score = evaluate(parts.runner, self.source, self.config, self.processes)
        averaged = evaluate(parts.average, self.source, self.config, self.processes) if parts.average else None
        metrics = self._describe(epoch, score, averaged)
        position.accuracy, position.sparsity = (averaged or score).accuracy, metrics.get("sparsity")
        if self.processes.first:
            self._log(metrics)
        if position.best is None or position.accuracy > position.best["accuracy"]:
            position.best = {k: metrics[k] for k in ("epoch", "step", "sparsity", "macs", "params") if k in metrics}
            position.best |= {"accuracy": position.accuracy, "checkpoint": "checkpoints/best.safetensors"}
            self.save(best=True)
        every = self.config.checkpoint.every_epochs
        if (every is not None and done % every == 0) or position.step == parts.total_steps:
            self.save()

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
            self.run.log_layers(epoch, step, layers, self.parts.profile)
            self.run.write_budget(budget)
        return {**metrics, "sparsity": budget.overall, "params": budget.params, "macs": budget.macs()}

    def _log(self, metrics: dict[str, Any]) -> None:
        metrics["seconds"] = round(time.perf_counter() - self._began, 3)
        self.run.log(metrics)
        self.observer.on_metrics(metrics)
