"""Compressed safetensors: every value of a state dict, in about as many bytes as its nonzeros need."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from softprune.budget.files import parse_json
from softprune.deploy.export.capture import plain_module
from softprune.deploy.export.parcel import check_facts, pack, unpack
from softprune.deploy.export.tensor_file import write_safetensors

FORMAT, VERSION = "softprune-compressed", "1"
MOST_BYTES = 16 << 30


def save_compressed(source: nn.Module | Mapping[str, Tensor], path: str | os.PathLike[str]) -> Path:
    """Write a module's state dict without its zeros.

    Each tensor is stored whole, as a bit mask and values, or as Rice-coded gaps and values, whichever is smallest;
    tensors that are one object are stored once. Every value comes back exactly; minus zero comes back as zero.

    Args:
        source: a plain module, or a state dict.
        path: of the file; an existing one is replaced as a whole.

    Returns:
        The path.

    Raises:
        ValueError: if the module is still managed by a Sparsifier, or a tensor is of an unknown type.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = save_compressed({"w": torch.eye(100)}, f"{folder}/eye.safetensors")
        ...     file.stat().st_size < 1000, bool((load_compressed(file)["w"] == torch.eye(100)).all())
        (True, True)
    """
    state = plain_module(source).state_dict() if isinstance(source, nn.Module) else dict(source)
    described: dict[str, Any] = {}
    parts: dict[str, NDArray[np.uint8]] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and key in seen:
            described[name] = {"same": seen[key]}
            continue
        seen[key] = name
        parcel = pack(tensor)
        # Numbers keep the header short, whatever the tensors are called.
        described[name] = {**parcel.facts, "id": len(seen)}
        parts |= {f"{len(seen)}.{part}": content for part, content in parcel.parts.items()}
    metadata = {"format": FORMAT, "version": VERSION, "tensors": json.dumps(described, separators=(",", ":"))}
    write_safetensors(Path(path), parts, metadata)
    return Path(path)


def load_compressed(path: str | os.PathLike[str], *, max_bytes: int = MOST_BYTES) -> dict[str, Tensor]:
    """Read what :func:`save_compressed` wrote.

    Args:
        path: of the file; it may come from a stranger.
        max_bytes: refuse a file whose tensors need more memory.

    Returns:
        The state dict.

    Raises:
        ValueError: if the file is missing, damaged, of another kind or version, or too large.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no file {os.fspath(path)}")
    try:
        with safe_open(path, framework="np") as file:
            described = _described(os.fspath(path), file.metadata() or {}, max_bytes)
            held = set(file.keys())
            tensors: dict[str, Tensor] = {}
            for name, facts in described.items():
                if "same" not in facts:
                    names = {part: f"{facts['id']}.{part}" for part in ("values", "mask", "gaps")}
                    parts = {part: _bytes(file, full) for part, full in names.items() if full in held}
                    tensors[name] = unpack(name, facts, parts)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{os.fspath(path)} is damaged or no safetensors file: {error}") from error
    return {name: tensors[facts.get("same", name)] for name, facts in described.items()}


def _bytes(file: Any, name: str) -> NDArray[np.uint8]:
    found = file.get_tensor(name)
    if found.dtype != np.uint8 or found.ndim != 1:
        raise ValueError(f"{name} must be a row of bytes, got {found.dtype} of shape {found.shape}")
    return found


def _described(path: str, metadata: Mapping[str, str], max_bytes: int) -> dict[str, Any]:
    """What the file says about its tensors, checked before anything is read or made."""
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not compressed by softprune; read it with safetensors.torch.load_file")
    if metadata.get("version") != VERSION:
        raise ValueError(f"{path} has version {metadata.get('version')!r}, this release reads {VERSION}: update it")
    described = parse_json(metadata.get("tensors", ""), f"the header of {path}")
    total = 0
    for name, facts in described.items():
        if isinstance(facts, dict) and "same" in facts:
            if "same" in described.get(facts["same"] if isinstance(facts["same"], str) else "", {"same": ""}):
                raise ValueError(f"tensor {name!r} is the same as {facts['same']!r}, which is not in {path}")
            continue
        total += check_facts(name, facts)
    if total > max_bytes:
        raise ValueError(
            f"{path} needs {total} bytes of memory, more than max_bytes={max_bytes}; raise it to allow that"
        )
    return described
