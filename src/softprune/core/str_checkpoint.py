"""Reading the checkpoints that the paper's authors published."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost
from softprune.core.state_file import write_tensors
from softprune.core.torch_file import read_torch_file
from softprune.ops import soft_threshold

THRESHOLD = ".sparseThreshold"
PREFIX = "module."  # DataParallel's


def read_str_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], Budget]:
    """The plain sparse weights and the budget of a checkpoint in the format of the authors' code.

    Every ``X.weight`` beside an ``X.sparseThreshold`` becomes sign(w) * relu(|w| - sigmoid(s)); the thresholds go,
    the prefix ``module.`` goes, everything else stays. The result loads into `softprune.nn`'s networks.

    Returns:
        State dict and budget (without MACs: profile the network and call `with_profile` to add them).

    Raises:
        ValueError: if the file is damaged, is no such checkpoint, or would run code to load.
    """
    state = {key.removeprefix(PREFIX): value for key, value in read_torch_file(Path(path)).items()}
    owners = [key.removesuffix(THRESHOLD) for key in state if key.endswith(THRESHOLD)]
    if not owners:
        raise ValueError(f"{path} has no key that ends in {THRESHOLD}: it is not a checkpoint of an STR model")
    missing = [owner for owner in owners if f"{owner}.weight" not in state]
    if missing:
        raise ValueError(f"{path} has a threshold but no weight for {', '.join(missing)}")
    plain: dict[str, Tensor] = {}
    densities: dict[str, float] = {}
    rows = []
    for key, value in state.items():
        owner, _, tensor = key.rpartition(".")
        if tensor == "sparseThreshold":
            continue
        if tensor == "weight" and owner in owners:
            value = soft_threshold(value, state[owner + THRESHOLD].reshape(-1)[:1])
            densities[key] = int(torch.count_nonzero(value)) / value.numel()
            rows.append(TensorCost(key, tuple(value.shape), 0))
        plain[key] = value
    return plain, Budget(
        densities, profile=Profile(tuple(rows), counted=False), source=f"imported from {Path(path).name}"
    )


def write_sparse_weights(weights: dict[str, Tensor], budget: Budget, folder: Path) -> None:
    """Write model.safetensors and budget.json, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", weights)
    budget.save(folder / "budget.json")
