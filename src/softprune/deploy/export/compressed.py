"""Compressed safetensors: every value of a state dict, in about as many bytes as its nonzeros need."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from softprune.deploy.export.exporting import plain_module
from softprune.deploy.format.rice import Bytes, best_bits, rice_decode, rice_encode
from softprune.deploy.format.storage import write_tensors
from softprune.records import parse_json, write_whole

DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class PackedTensor:
    """One tensor as it lies in a compressed file."""

    facts: dict[str, Any]  # shape, dtype, form, number of values, bits of the Rice code, checksum of the whole tensor
    parts: dict[str, Bytes]  # its bytes, by the ending of their name

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.nbytes for part in self.parts.values())


def pack(tensor: Tensor) -> PackedTensor:
    """The smallest form of a tensor; nothing is lost but the sign of zeros."""
    if tensor.dtype not in _NAMES or tensor.layout is not torch.strided:
        raise ValueError(
            f"a tensor of {tensor.dtype} ({tensor.layout}) cannot be compressed; known are {', '.join(DTYPES)}"
        )
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    # Masking leaves minus zeros behind, which are zeros like the others.
    kept = (flat != 0).numpy()
    raw = flat.view(torch.uint8).numpy().reshape(flat.numel(), tensor.element_size()) * kept[:, None]
    facts = {"shape": list(tensor.shape), "dtype": _NAMES[tensor.dtype], "crc32": _checksum(raw)}
    whole = PackedTensor({**facts, "form": "dense"}, {"values": raw.reshape(-1)})
    values = raw[kept].reshape(-1)
    count = int(kept.sum())
    masked = PackedTensor(
        {**facts, "form": "mask", "count": count}, {"mask": np.packbits(kept, bitorder="little"), "values": values}
    )
    gaps = np.diff(np.flatnonzero(kept), prepend=-1) - 1
    bits = best_bits(gaps)
    coded = PackedTensor(
        {**facts, "form": "rice", "count": count, "bits": bits}, {"gaps": rice_encode(gaps, bits), "values": values}
    )
    return min((whole, masked, coded), key=lambda packed: packed.size)


def unpack(name: str, facts: Mapping[str, Any], parts: Mapping[str, Bytes]) -> Tensor:
    """The tensor that was packed, after `_check_facts`; a ValueError if bytes and facts do not belong together."""
    shape, dtype = tuple(facts["shape"]), DTYPES[facts["dtype"]]
    numbers, width = math.prod(shape), dtype.itemsize
    try:
        places = _places(facts, parts, numbers)
        values = parts["values"]
        if len(values) != len(places) * width:
            raise ValueError(f"{len(values)} bytes of values for {len(places)} places")
    except (KeyError, ValueError) as error:
        raise ValueError(f"tensor {name!r} is damaged: {error}") from error
    raw = np.zeros((numbers, width), np.uint8)
    raw[places] = values.reshape(-1, width)
    if _checksum(raw) != facts["crc32"]:
        raise ValueError(f"tensor {name!r} is damaged: its checksum is wrong")
    return torch.from_numpy(raw.reshape(-1)).view(dtype).reshape(shape)


def _check_facts(name: str, facts: Any) -> int:
    """Check what a file says about a tensor; returns the bytes that the tensor needs in memory."""
    forms = {"dense": (), "mask": ("count",), "rice": ("count", "bits")}
    fits = isinstance(facts, dict) and all(isinstance(facts.get(key), str) for key in ("form", "dtype"))
    fits = fits and facts["form"] in forms and facts["dtype"] in DTYPES
    if not fits or not isinstance(facts.get("shape"), list) or len(facts["shape"]) > 16:
        raise ValueError(f"tensor {name!r} is not described as the format asks")
    numbers = [*facts["shape"], facts.get("crc32"), *(facts.get(key) for key in forms[facts["form"]])]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"tensor {name!r} is described by something else than whole numbers")
    if facts.get("count", 0) > math.prod(facts["shape"]):
        raise ValueError(f"tensor {name!r} has more values than places")
    return math.prod(facts["shape"]) * DTYPES[facts["dtype"]].itemsize


def _checksum(raw: Bytes) -> int:
    return zlib.crc32(raw.data if raw.size else b"")


def _places(facts: Mapping[str, Any], parts: Mapping[str, Bytes], numbers: int) -> NDArray[np.int64]:
    if facts["form"] == "dense":
        return np.arange(numbers)
    if facts["form"] == "mask":
        if len(parts["mask"]) != -(-numbers // 8):
            raise ValueError(f"{len(parts['mask'])} bytes of mask for {numbers} places")
        places = np.flatnonzero(np.unpackbits(parts["mask"], bitorder="little"))
    else:
        places = np.cumsum(rice_decode(parts["gaps"], facts["count"], facts["bits"]) + 1) - 1
    # Sums of forged gaps may run over the range of their type, so the order is checked too.
    if len(places) != facts["count"] or (len(places) and (places[-1] >= numbers or np.any(np.diff(places) <= 0))):
        raise ValueError(f"its places do not fit {numbers} numbers")
    return places


FORMAT, VERSION = "softprune-compressed", "1"
MOST_BYTES = 16 << 30


def save_compressed(source: nn.Module | Mapping[str, Tensor], path: str | os.PathLike[str]) -> Path:
    """Write a module's state dict, or any other, without its zeros; an existing file is replaced as a whole.

    Each tensor is stored whole, as a bit mask and values, or as Rice-coded gaps and values, whichever is smallest;
    tensors that are one object are stored once. Every value comes back exactly; minus zero comes back as zero.

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
        packed = pack(tensor)
        # Numbers keep the header short, whatever the tensors are called.
        described[name] = {**packed.facts, "id": len(seen)}
        parts |= {f"{len(seen)}.{part}": content for part, content in packed.parts.items()}
    metadata = {"format": FORMAT, "version": VERSION, "tensors": json.dumps(described, separators=(",", ":"))}
    write_whole(Path(path), lambda part: write_tensors(part, parts, metadata))
    return Path(path)


def load_compressed(path: str | os.PathLike[str], *, max_bytes: int = MOST_BYTES) -> dict[str, Tensor]:
    """The state dict that `save_compressed` wrote; the file may come from a stranger.

    Raises:
        ValueError: if the file is missing, damaged, of another kind or version, or larger than ``max_bytes`` in memory.
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
                    if "id" not in facts:
                        raise ValueError(f"tensor {name!r} is not described as the format asks: it has no id")
                    names = {part: f"{facts['id']}.{part}" for part in ("values", "mask", "gaps")}
                    parts = {part: _bytes(file, full) for part, full in names.items() if full in held}
                    tensors[name] = unpack(name, facts, parts)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{os.fspath(path)} is damaged or no safetensors file: {error}") from error
    return {name: tensors[facts.get("same", name)] for name, facts in described.items()}


def _bytes(file: Any, name: str) -> NDArray[np.uint8]:
    about = file.get_slice(name)
    # Asked before it is read: NumPy has no type for some that safetensors knows.
    if about.get_dtype() != "U8" or len(about.get_shape()) != 1:
        raise ValueError(f"{name} must be a row of bytes, got {about.get_dtype()} of shape {about.get_shape()}")
    return file.get_tensor(name)


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
            same = facts["same"]
            if not isinstance(same, str) or "same" in described.get(same, {"same": ""}):
                raise ValueError(f"tensor {name!r} is the same as {same!r}, which is not in {path}")
            continue
        total += _check_facts(name, facts)
    if total > max_bytes:
        raise ValueError(
            f"{path} needs {total} bytes of memory, more than max_bytes={max_bytes}; raise it to allow that"
        )
    return described
