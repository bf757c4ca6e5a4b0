"""One optimizer step on a global batch, whatever the parts and the processes it is split over."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from softprune.core.sharding import whole
from softprune.train.assembly import Assembly
from softprune.train.config import RunConfig
from softprune.train.evaluation import autocast, place
from softprune.train.processes import Processes

# Of the loss, in fp16. Below it small gradients vanish, and larger ones overflow as they would without a scale.
LEAST_SCALE = 1.0


class Stepper:
    """Makes the steps of an assembled run.

    Args:
        config: of the run.
        parts: the assembled run.
        processes: this process among its peers.
    """

    def __init__(self, config: RunConfig, parts: Assembly, processes: Processes) -> None:
        self.config, self.parts, self.processes = config, parts, processes

    def step(self, number: int, inputs: Tensor, labels: Tensor) -> float:
        """Make a step, and return the mean loss over the samples of all processes.

        In fp16 gradients may overflow. Then nothing is moved: the loss scale is lowered and the same batch taken again.
        So step n of a run always has the n-th batch and the n-th learning rate, and all that counts steps agrees.

        Args:
            number: steps of the run before this one.
            inputs: this process's share of the batch.
            labels: likewise.

        Raises:
            FloatingPointError: when the loss is NaN or infinite, or gradients overflow however small the scale.
        """
        parts = self.parts
        lr = parts.rate(number)
        for group in parts.optimizer.param_groups:
            group["lr"] = lr
        (samples,) = self.processes.total(len(labels))
        while True:
            loss = self._backward(inputs, labels, samples)
            if not math.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss} at step {number + 1}; {self._name_the_bad()}")
            if self._apply():
                break
            if parts.scaler.get_scale() < LEAST_SCALE:
                raise FloatingPointError(
                    f"gradients overflow fp16 at step {number + 1} without any loss scale; {self._name_the_bad()}, "
                    "or set precision=bf16"
                )
        if parts.average is not None:
            parts.average.update_parameters(parts.model)
        return loss

    def _backward(self, inputs: Tensor, labels: Tensor, samples: float) -> float:
        """Leave the gradient of the mean loss over the samples of all processes; that mean."""
        parts, config, processes = self.parts, self.config, self.processes
        parts.optimizer.zero_grad()
        summed = []
        # Every process makes the same number of parts, whatever its share of the batch.
        pieces = (t.tensor_split(config.accumulate) for t in (inputs, labels))
        for nth, (x, y) in enumerate(zip(*pieces, strict=True), start=1):
            x, y = place(x, config, processes), y.to(processes.device, non_blocking=True)
            # Gradients are exchanged once, with those of the last part.
            with nullcontext() if nth == config.accumulate else parts.unsynchronised():
                with autocast(config, processes):
                    losses = F.cross_entropy(
                        parts.runner(x), y, label_smoothing=config.label_smoothing, reduction="sum"
                    )
                # Wrappers average gradients over processes; this makes it the mean over the samples of all of them.
                parts.scaler.scale(losses).backward(torch.full_like(losses, processes.world / samples))
            summed.append(losses.detach())
        # Read at the end: on an accelerator every reading waits until all before it is computed.
        return processes.total(sum(s.item() for s in summed))[0] / samples

    def _apply(self) -> bool:
        """Move the weights; False if gradients overflowed, the loss scale was lowered and nothing moved."""
        parts = self.parts
        if self.config.clip_norm is not None:
            self._clip(self.config.clip_norm)
        scale = parts.scaler.get_scale()
        parts.scaler.step(parts.optimizer)
        parts.scaler.update()
        return parts.scaler.get_scale() >= scale

    def _clip(self, limit: float) -> None:
        """Clip the gradient of the weights. Thresholds are left out: clipping would weaken the loss, not the decay."""
        self.parts.scaler.unscale_(self.parts.optimizer)
        groups = self.parts.optimizer.param_groups
        weights = [
            p for group in groups if group.get("name") not in ("threshold", "undecayed") for p in group["params"]
        ]
        torch.nn.utils.clip_grad_norm_(weights, limit)

    def _name_the_bad(self) -> str:
        where = "the inputs or the loss itself"
        for name, p in self.parts.model.named_parameters():
            if not bool(torch.isfinite(whole(p.detach())).all()):
                where = f"the values of {name}"
                break
            if p.grad is not None and not bool(torch.isfinite(whole(p.grad)).all()):
                where = f"the gradient of {name}"
        return f"not finite: {where}. Lower the learning rate or clip_norm"
