"""Reading the checkpoints that the paper's authors published."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost
from softprune.core.state_file import write_tensors
from softprune.ops import soft_threshold

THRESHOLD = ".sparseThreshold"
PREFIX = "module."  # DataParallel's

# The learning rate of those runs was a numpy number and sits in the optimizer state. These rebuild numbers and
# nothing else; every other foreign name in the file is refused, so no code of the file's author runs.
_rebuild_scalar = np.float64(0).__reduce__()[0]
_NUMPY_SCALARS: list[Any] = [
    (_rebuild_scalar, "numpy.core.multiarray.scalar"),  # its name when those checkpoints were written
    _rebuild_scalar,
    np.dtype,
    type(np.dtype(np.float64)),
]


def read_str_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], Budget]:
    """The plain sparse weights and the budget of a checkpoint in the format of the authors' code.

    Every ``X.weight`` beside an ``X.sparseThreshold`` becomes sign(w) * relu(|w| - sigmoid(s)); the thresholds go,
    the prefix ``module.`` goes, everything else stays. The result loads into `softprune.nn`'s networks.

    Returns:
        State dict and budget (without MACs: profile the network and call `with_profile` to add them).

    Raises:
        ValueError: if the file is damaged, is no such checkpoint, or would run code to load.
    """
    state = _tensors(Path(path))
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


def _tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with torch.serialization.safe_globals(_NUMPY_SCALARS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is damaged, or holds objects that only running code could rebuild; refused: {error}"
        ) from error
    except Exception as error:  # torch.load meets a damaged file with whatever its parser stumbles over
        raise ValueError(f"{path} is not a torch checkpoint, or is damaged: {error}") from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()):
        raise ValueError(f"{path} holds no state dict of tensors")
    return {key.removeprefix(PREFIX): value.detach() for key, value in state.items()}
