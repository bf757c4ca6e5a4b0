"""Safetensors files with the same bytes for the same content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.budget.files import write_whole

_DTYPES = {"float32": "F32", "uint16": "U16", "uint8": "U8", "int8": "I8"}
# Where the tensors begin, so that a mapped file can be read in place by vector loads.
_ALIGNMENT = 64


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata, whole or not at all.

    Larger elements come first, so that each tensor begins at a multiple of the size of its elements; within one size
    the tensors keep their order.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)

    def write(part: Path) -> None:
        with part.open("wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for _, tensor in ordered:
                little = np.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("<"))
                file.write(little.tobytes())

    write_whole(path, write)
