"""The training loop: evaluation, optimizer steps, stopping cleanly, and what is written down when."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from softprune.budget.units import unit_words
from softprune.core.groups import local, whole
from softprune.train.assembly import Assembly
from softprune.train.checkpoints import Checkpoints
from softprune.train.data.source import Epoch, Source
from softprune.train.observer import Observer, Progress, StopRun
from softprune.train.run_folder import RunFolder


@dataclass(frozen=True)
class Score:
    accuracy: float
    loss: float
    samples: int


@torch.no_grad()
def evaluate(model: nn.Module, source: Source, parts: Assembly) -> Score:
    """Accuracy and loss of a model on the test data over all processes, in the precision and smoothing of the run."""
    config, processes, training = parts.config, parts.processes, model.training
    model.eval()
    right = loss = samples = 0.0
    for inputs, labels in source.test_epoch(batch=config.batch, rank=processes.rank, world=processes.world):
        if not len(labels):
            continue
        inputs, labels = _place(inputs, parts), labels.to(processes.device)
        with _autocast(parts):
            logits = model(inputs)
            loss += F.cross_entropy(logits, labels, label_smoothing=config.label_smoothing, reduction="sum").item()
        right += logits.argmax(dim=1).eq(labels).sum().item()
        samples += len(labels)
    model.train(training)
    right, loss, samples = processes.total(right, loss, samples)
    return Score(right / samples, loss / samples, int(samples))


def _place(inputs: Tensor, parts: Assembly) -> Tensor:
    inputs = inputs.to(parts.processes.device, non_blocking=True)
    if parts.config.channels_last and inputs.ndim == 4:
        inputs = inputs.to(memory_format=torch.channels_last)
    return inputs


def _autocast(parts: Assembly) -> AbstractContextManager[Any]:
    if parts.config.precision == "fp32":
        return nullcontext()
    dtype = torch.float16 if parts.config.precision == "fp16" else torch.bfloat16
    return torch.autocast(parts.processes.device.type, dtype=dtype)


class Interruption:
    """Remembers SIGINT and SIGTERM while it is entered, so that the loop can finish its step and checkpoint.

    A second SIGINT interrupts at once, as people expect of Ctrl-C.
    """

    def __init__(self) -> None:
        self.asked_by: str | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        # Python lets only the main thread set handlers; elsewhere (a notebook's worker) signals go where they went.
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM):
                self._previous[kind] = signal.signal(kind, self._hear)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
            # What came too late to stop this one is not lost on the one around it.
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, Interruption):
                outer.asked_by = outer.asked_by or self.asked_by

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked_by is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked_by = signal.Signals(number).name


# One optimizer step on a global batch, whatever the parts and the processes it is split over.

# Of the loss, in fp16. Below it small gradients vanish, and larger ones overflow as they would without a scale.
LEAST_SCALE = 1.0


def take_step(parts: Assembly, number: int, inputs: Tensor, labels: Tensor) -> float:
    """Make a step on this process's share of a batch; returns the mean loss over the samples of all processes.

    In fp16 gradients may overflow. Then nothing is moved: the loss scale is lowered and the same batch taken again.
    So step n of a run (`number`, from 0) always has the n-th batch and the n-th learning rate, and all that counts
    steps agrees.

    Raises:
        FloatingPointError: when the loss is NaN or infinite, or gradients overflow however small the scale.
    """
    lr = parts.rate(number)
    for group in parts.optimizer.param_groups:
        group["lr"] = lr
    (samples,) = parts.processes.total(len(labels))
    while True:
        loss = _backward(parts, inputs, labels, samples)
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {number + 1}; {_where_not_finite(parts)}")
        if _move(parts):
            break
        if parts.scaler.get_scale() < LEAST_SCALE:
            raise FloatingPointError(
                f"gradients overflow fp16 at step {number + 1} without any loss scale; {_where_not_finite(parts)}, or "
                "set precision=bf16"
            )
    if parts.average is not None:
        parts.average.update_parameters(parts.model)
    return loss


def _backward(parts: Assembly, inputs: Tensor, labels: Tensor, samples: float) -> float:
    """Leave the gradient of the mean loss over the samples of all processes; returns that mean."""
    config, processes = parts.config, parts.processes
    parts.optimizer.zero_grad()
    summed = []
    # Every process makes the same number of parts, whatever its share of the batch.
    pieces = (t.tensor_split(config.accumulate) for t in (inputs, labels))
    for nth, (x, y) in enumerate(zip(*pieces, strict=True), start=1):
        x, y = _place(x, parts), y.to(processes.device, non_blocking=True)
        # Gradients are exchanged once, with those of the last part.
        with nullcontext() if nth == config.accumulate else parts.unsynchronised():
            with _autocast(parts):
                losses = F.cross_entropy(parts.runner(x), y, label_smoothing=config.label_smoothing, reduction="sum")
            # Wrappers average gradients over processes; this makes it the mean over the samples of all of them.
            parts.scaler.scale(losses).backward(torch.full_like(losses, processes.world / samples))
        summed.append(losses.detach())
    # Read at the end: on an accelerator every reading waits until all before it is computed.
    return processes.total(sum(s.item() for s in summed))[0] / samples


def _move(parts: Assembly) -> bool:
    """Move the weights; False if gradients overflowed, the loss scale was lowered and nothing moved."""
    if (limit := parts.config.clip_norm) is not None:
        # Thresholds are left out: clipping them would weaken the pull of the loss, and not that of the decay.
        parts.scaler.unscale_(parts.optimizer)
        groups = [g for g in parts.optimizer.param_groups if g.get("name") not in ("threshold", "undecayed")]
        torch.nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], limit)
    scale = parts.scaler.get_scale()
    parts.scaler.step(parts.optimizer)
    parts.scaler.update()
    return parts.scaler.get_scale() >= scale


def _where_not_finite(parts: Assembly) -> str:
    where = "the inputs or the loss itself"
    for name, p in parts.model.named_parameters():
        if not bool(torch.isfinite(whole(p.detach())).all()):
            where = f"the values of {name}"
            break
        if p.grad is not None and not bool(torch.isfinite(whole(p.grad)).all()):
            where = f"the gradient of {name}"
    return f"not finite: {where}. Lower the learning rate or clip_norm"


# The training loop.

Seen = TypeVar("Seen")


@dataclass
class Position:
    """Where a run stands; all of it is in every checkpoint."""

    step: int = 0
    accuracy: float | None = None
    sparsity: float | None = None
    best: dict[str, Any] | None = None
    seconds: float = 0.0

    @classmethod
    def read(cls, facts: object) -> Position:
        """The position that a checkpoint holds; anything else is refused by a ValueError."""
        try:
            return TypeAdapter(cls).validate_python(facts)
        except ValidationError as error:
            raise ValueError(f"the checkpoint is damaged: its progress is {facts!r:.200}") from error


class Trainer:
    """Runs the steps of an assembled run, and writes everything down; only the first process writes to the folder."""

    def __init__(self, parts: Assembly, source: Source, *, run: RunFolder, observer: Observer) -> None:
        self.parts, self.source, self.run, self.observer = parts, source, run, observer
        self.config, self.processes = parts.config, parts.processes
        self.checkpoints = Checkpoints(run.checkpoints, keep=self.config.checkpoint.keep)
        self.position = Position()
        self._wish: str | None = None  # of the observer, to stop
        self._began = time.perf_counter()  # moved back by the time that earlier parts of the run took
        self._began_after, self._began_at = 0.0, 0

    def train(self) -> bool:
        """Go on to the end; False if a signal or the observer asked to stop before it, after a checkpoint."""
        self._began_after, self._began_at = self.position.seconds, self.position.step
        self._began = time.perf_counter() - self._began_after
        with Interruption() as interruption:
            while self.position.step < self.parts.total_steps:
                if self._epoch(interruption):
                    continue
                self.save()
                if self.processes.first:
                    by = interruption.asked_by or self._wish or "a signal to another process"
                    way_on = f"continue with: softprune train --resume {self.run.path}"
                    self.observer.on_note(f"stopped by {by} after step {self.position.step}; {way_on}")
                return False
        return True

    def save(self, *, best: bool = False) -> Path:
        self.position.seconds = time.perf_counter() - self._began
        return self.checkpoints.save(self.parts, asdict(self.position), best=best)

    def steps(self) -> Iterator[float]:
        """Make the steps that are left of this epoch, one at a time; yields each loss, after it was written down."""
        config, (done, start) = self.config, divmod(self.position.step, self.parts.steps_per_epoch)
        rank, world, batch = self.processes.rank, self.processes.world, config.batch
        epoch = Epoch(
            number=done, seed=config.seed, batch=batch, rank=rank, world=world, start=start, drop_last=config.drop_last
        )
        self.parts.runner.train()
        for inputs, labels in self.source.train_epoch(epoch):
            loss = take_step(self.parts, self.position.step, inputs, labels)
            self.position.step += 1
            self._after_step(done, loss)
            yield loss

    def _epoch(self, interruption: Interruption) -> bool:
        """Go on to the end of the epoch; False if the run is to stop here."""
        number = self.position.step // self.parts.steps_per_epoch
        for _ in self.steps():
            # After the last step of an epoch it is evaluated first: a run that goes on begins with the next one.
            if self.position.step % self.parts.steps_per_epoch and self._asked(interruption):
                return False
        last, every = self.position.step == self.parts.total_steps, self.config.checkpoint.every_epochs
        if last or (number + 1) % self.config.evaluate_every == 0:
            self._evaluate(number)
        if last or (every is not None and (number + 1) % every == 0):
            self.save()
        return last or not self._asked(interruption)

    def _asked(self, interruption: Interruption) -> bool:
        return self.processes.any((interruption.asked_by or self._wish) is not None)

    def _show(self, see: Callable[[Seen], None], what: Seen) -> None:
        try:
            see(what)
        except StopRun as wish:
            # Followed where all processes decide together.
            self._wish = str(wish)

    def _after_step(self, epoch: int, loss: float) -> None:
        step, total, position = self.position.step, self.parts.total_steps, self.position
        if self.processes.first:
            if step % self.config.log.every_steps == 0:
                self._log({"kind": "step", "epoch": epoch, "step": step, "loss": loss, "lr": self.parts.rate(step - 1)})
            pace = (time.perf_counter() - self._began - self._began_after) / (step - self._began_at)
            left, epochs = pace * (total - step), self.config.epochs
            progress = Progress(step, total, epoch + 1, epochs, loss, position.accuracy, position.sparsity, left)
            self._show(self.observer.on_step, progress)
        # After the log: resuming forgets what was logged after the checkpoint, but cannot make up for what was not.
        every = self.config.checkpoint.every_steps
        if every is not None and step % every == 0 and step % self.parts.steps_per_epoch:
            self.save()

    def _evaluate(self, epoch: int) -> None:
        parts, position = self.parts, self.position
        score = evaluate(parts.runner, self.source, parts)
        if parts.average is not None and parts.sparsifier is not None:
            parts.sparsifier.solve(parts.average.module)  # an average of weights has a total of its own
        averaged = evaluate(parts.average, self.source, parts) if parts.average else None
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
        """The metrics of an epoch; also writes budget and layers."""
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
        if not unit_words(self.config.units.kind).costed:
            # What a unit costs depends on which others stay: it is known of the network that is folded or shrunk.
            return {**metrics, "units": budget.params}
        return {**metrics, "params": budget.params, "macs": budget.macs()}

    def _log(self, metrics: dict[str, Any]) -> None:
        metrics["seconds"] = round(time.perf_counter() - self._began, 3)
        self.run.log(metrics)
        self._show(self.observer.on_metrics, metrics)
