"""Small networks, configurations and folders that the trials share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

# Before the first operation: a child that is forked has none of the threads that its parent computes with, and waits
# for them forever.
torch.set_num_threads(1)

HERE = Path(__file__).parent
for _name in ("deploy", "train/data", "reporting"):
    sys.path.append(str(HERE.parent / _name))

# A second of training in all: three epochs of two steps, with everything that a run writes.
SHORT: dict[str, Any] = {
    "name": "trial",
    "model": "trial_parts:small",
    "data": {"name": "digits", "subset": 64},
    "method": {"name": "str", "s_init": -5.0},
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    "epochs": 3,
    "batch": 32,
    "threads": 1,
    "log": {"every_steps": 1},
}


def small() -> nn.Module:
    """A network that takes the digits."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
