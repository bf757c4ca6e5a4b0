"""One file for tensors and facts: safetensors, with the facts as JSON in its header. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost
from softprune.ops import soft_threshold
from softprune.records import parse_json, write_whole

FACTS, CHECKSUMS, DIGEST = "softprune", "crc32", "sha256"


def write_state(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts into one file, whole or not at all."""
    separate = _separate(tensors)
    # safetensors notices a file that is too short, but not one with a flipped bit. The digest covers all there is; the
    # checksums say which tensor is wrong, and are what releases before it look at.
    checksums = {name: _checksum(t) for name, t in separate.items()}
    header = {FACTS: json.dumps(dict(facts)), CHECKSUMS: json.dumps(checksums)}
    header[DIGEST] = _digest(separate, header)
    write_whole(path, lambda part: save_file(separate, part, metadata=header))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write plain tensors into a safetensors file that any tool reads, whole or not at all."""
    separate = _separate(tensors)
    write_whole(path, lambda part: save_file(separate, part))


def read_state(path: Path, notes: list[str] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file that `write_state` wrote.

    Args:
        path: of the file.
        notes: gets a sentence if the file is of a release that did not write a checksum of the facts.

    Raises:
        ValueError: if the file is missing, damaged, or of another kind.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    tensors, header = read_tensors(path)
    if FACTS not in header:
        raise ValueError(f"{path} holds tensors alone, no softprune state: load them with model.load_state_dict")
    # A damaged name must not pass for a file from before there was a digest.
    if strange := sorted(set(header) - {FACTS, CHECKSUMS, DIGEST}):
        raise ValueError(f"{path} is damaged, or of a newer release: its header has {strange[0]!r}")
    expected = parse_json(header.get(CHECKSUMS, "{}"), f"the checksums of {path}")
    broken = sorted(name for name, t in tensors.items() if expected.get(name) != _checksum(t))
    if broken:
        raise ValueError(f"{path} is damaged: the checksum of {broken[0]} is wrong ({len(broken)} tensors)")
    if DIGEST in header:
        if header[DIGEST] != _digest(tensors, header):
            raise ValueError(f"{path} is damaged: the checksum of its facts is wrong")
    elif notes is not None:
        notes.append(
            f"{path} is of an older release: its tensors have checksums, its facts, such as the step, have not"
        )
    return tensors, parse_json(header[FACTS], f"the header of {path}")


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and its header.

    Raises:
        ValueError: if the file is damaged, or of another kind.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error


def _checksum(t: Tensor) -> int:
    return zlib.crc32(t.reshape(-1).view(torch.uint8).numpy()) if t.numel() else 0  # type: ignore[arg-type]


def _digest(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """SHA-256 of everything: facts, checksums, and name, type, shape and content of each tensor."""
    whole = hashlib.sha256(json.dumps([header[FACTS], header.get(CHECKSUMS)]).encode())
    for name, t in sorted(tensors.items()):
        whole.update(json.dumps([name, str(t.dtype), list(t.shape)]).encode())
        if t.numel():
            whole.update(t.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return whole.hexdigest()


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors that share no memory: safetensors refuses tied weights and shared thresholds otherwise."""
    owned: set[int] = set()
    separate = {}
    for name, t in tensors.items():
        t = t.detach().cpu().contiguous()
        if t.untyped_storage().data_ptr() in owned or t.numel() * t.element_size() != t.untyped_storage().nbytes():
            t = t.clone(memory_format=torch.contiguous_format)
        owned.add(t.untyped_storage().data_ptr())
        separate[name] = t
    return separate


# Reading the state dict of a file that torch.save wrote, without running anything in it. The learning rate of a run may
# be a numpy number and sit in the optimizer state beside the weights. These rebuild numbers and nothing else; every
# other foreign name in the file is refused, so no code of the file's author runs.
_rebuild_scalar = np.float64(0).__reduce__()[0]
_NUMPY_SCALARS: list[Any] = [
    (_rebuild_scalar, "numpy.core.multiarray.scalar"),  # its name in files of numpy before 2
    _rebuild_scalar,
    np.dtype,
    type(np.dtype(np.float64)),
]


def read_torch_file(path: Path) -> dict[str, Tensor]:
    """The state dict that is the file, or that is its ``state_dict``; keys as they are, tensors on the CPU.

    Raises:
        ValueError: if the file is missing or damaged, holds something else, or would run code to load.
    """
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
        held = f", but the keys {', '.join(map(str, list(content)[:5]))}" if isinstance(content, dict) else ""
        raise ValueError(f"{path} holds no state dict of tensors{held}; save model.state_dict() itself")
    return {key: value.detach() for key, value in state.items()}


# Reading the checkpoints that the paper's authors published.

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
