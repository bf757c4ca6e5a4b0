"""Parcel: the bytes of one tensor, whole or without its zeros."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softprune.deploy.export import rice

Bytes = NDArray[np.uint8]
DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Parcel:
    """One tensor as it lies in a compressed file.

    Args:
        facts: shape, dtype, form, number of values, bits of the Rice code, checksum of the whole tensor.
        parts: its bytes, by the ending of their name.
    """

    facts: dict[str, Any]
    parts: dict[str, Bytes]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.nbytes for part in self.parts.values())


def pack(tensor: Tensor) -> Parcel:
    """The smallest form of a tensor; nothing is lost but the sign of zeros.

    Raises:
        ValueError: if it is of a type that the format does not know.
    """
    if tensor.dtype not in _NAMES or tensor.layout is not torch.strided:
        raise ValueError(
            f"a tensor of {tensor.dtype} ({tensor.layout}) cannot be compressed; known are {', '.join(DTYPES)}"
        )
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    # Masking leaves minus zeros behind, which are zeros like the others.
    kept = (flat != 0).numpy()
    raw = flat.view(torch.uint8).numpy().reshape(flat.numel(), tensor.element_size()) * kept[:, None]
    facts = {"shape": list(tensor.shape), "dtype": _NAMES[tensor.dtype], "crc32": _checksum(raw)}
    whole = Parcel({**facts, "form": "dense"}, {"values": raw.reshape(-1)})
    values = raw[kept].reshape(-1)
    count = int(kept.sum())
    masked = Parcel(
        {**facts, "form": "mask", "count": count}, {"mask": np.packbits(kept, bitorder="little"), "values": values}
    )
    gaps = np.diff(np.flatnonzero(kept), prepend=-1) - 1
    bits = rice.best_bits(gaps)
    coded = Parcel(
        {**facts, "form": "rice", "count": count, "bits": bits}, {"gaps": rice.encode(gaps, bits), "values": values}
    )
    return min((whole, masked, coded), key=lambda parcel: parcel.size)


def unpack(name: str, facts: Mapping[str, Any], parts: Mapping[str, Bytes]) -> Tensor:
    """The tensor of a parcel.

    Args:
        name: of the tensor, for messages.
        facts: checked by :func:`check_facts`.
        parts: bytes by the ending of their name.

    Raises:
        ValueError: if bytes and facts do not belong together.
    """
    shape, dtype = tuple(facts["shape"]), DTYPES[facts["dtype"]]
    numbers, width = _count(shape), torch.empty((), dtype=dtype).element_size()
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


def check_facts(name: str, facts: Any) -> int:
    """Check what a file says about a tensor.

    Returns:
        The bytes that the tensor needs in memory.

    Raises:
        ValueError: if anything about it does not fit.
    """
    forms = {"dense": (), "mask": ("count",), "rice": ("count", "bits")}
    fits = isinstance(facts, dict) and facts.get("form") in forms and facts.get("dtype") in DTYPES
    if not fits or not isinstance(facts.get("shape"), list) or len(facts["shape"]) > 16:
        raise ValueError(f"tensor {name!r} is not described as the format asks")
    numbers = [*facts["shape"], facts.get("crc32"), *(facts.get(key) for key in forms[facts["form"]])]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"tensor {name!r} is described by something else than whole numbers")
    if facts.get("count", 0) > _count(facts["shape"]):
        raise ValueError(f"tensor {name!r} has more values than places")
    return _count(facts["shape"]) * torch.empty((), dtype=DTYPES[facts["dtype"]]).element_size()


def _checksum(raw: Bytes) -> int:
    return zlib.crc32(raw.data if raw.size else b"")


def _count(shape: Any) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _places(facts: Mapping[str, Any], parts: Mapping[str, Bytes], numbers: int) -> NDArray[np.int64]:
    """Where the values stand."""
    if facts["form"] == "dense":
        return np.arange(numbers)
    if facts["form"] == "mask":
        if len(parts["mask"]) != -(-numbers // 8):
            raise ValueError(f"{len(parts['mask'])} bytes of mask for {numbers} places")
        places = np.flatnonzero(np.unpackbits(parts["mask"], bitorder="little"))
    else:
        places = np.cumsum(rice.decode(parts["gaps"], facts["count"], facts["bits"]) + 1) - 1
    # Sums of forged gaps may run over the range of their type, so the order is checked too.
    if len(places) != facts["count"] or (len(places) and (places[-1] >= numbers or np.any(np.diff(places) <= 0))):
        raise ValueError(f"its places do not fit {numbers} numbers")
    return places
