"""Accuracy and loss on the test data, over all processes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from softprune.train.config import RunConfig
from softprune.train.data.source import Source
from softprune.train.processes import Processes


@dataclass(frozen=True)
class Score:
    """What a model does on the test data."""

    accuracy: float
    loss: float
    samples: int


@torch.no_grad()
def evaluate(model: nn.Module, source: Source, config: RunConfig, processes: Processes) -> Score:
    """Evaluate in eval mode, with the precision and the smoothed loss of the training."""
    training = model.training
    model.eval()
    right = loss = samples = 0.0
    for inputs, labels in source.test_epoch(batch=config.batch, rank=processes.rank, world=processes.world):
        if not len(labels):
            continue
        inputs, labels = place(inputs, config, processes), labels.to(processes.device)
        with autocast(config, processes):
            logits = model(inputs)
            loss += F.cross_entropy(logits, labels, label_smoothing=config.label_smoothing, reduction="sum").item()
        right += logits.argmax(dim=1).eq(labels).sum().item()
        samples += len(labels)
    model.train(training)
    right, loss, samples = processes.total(right, loss, samples)
    return Score(right / samples, loss / samples, int(samples))


def place(inputs: torch.Tensor, config: RunConfig, processes: Processes) -> torch.Tensor:
    """Inputs on the device of this process, in the memory layout of the configuration."""
    inputs = inputs.to(processes.device, non_blocking=True)
    if config.channels_last and inputs.ndim == 4:
        inputs = inputs.to(memory_format=torch.channels_last)
    return inputs


def autocast(config: RunConfig, processes: Processes) -> AbstractContextManager[Any]:
    """The precision of the configuration, for as long as it is entered."""
    if config.precision == "fp32":
        return nullcontext()
    dtype = torch.float16 if config.precision == "fp16" else torch.bfloat16
    return torch.autocast(processes.device.type, dtype=dtype)
