"""One file for tensors and facts: safetensors, with the facts as JSON in its header. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from softprune.budget.files import parse_json, write_whole

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
