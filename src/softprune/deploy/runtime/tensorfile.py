"""Reading a safetensors file that may come from a stranger."""

from __future__ import annotations

import json
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

MAX_HEADER = 64 << 20
# Bytes of a file up to which it is copied: pages of a mapped file end the process once somebody cuts the file short.
MAX_COPY = 64 << 20
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "U8": np.dtype("u1"), "U16": np.dtype("<u2")}


@dataclass(frozen=True)
class TensorFile:
    """The tensors of a file and its metadata; ``held`` counts the bytes in memory, none of a mapped file."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, NDArray[Any]]
    held: int


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read it; a FIFO or a device could keep its reader waiting for ever.

    Raises:
        OSError: if it cannot be opened or is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file: a folder, a device or a FIFO cannot be read")
    return os.fdopen(descriptor, "rb")


def read_tensors(path: Path) -> TensorFile:
    """Read a safetensors file after checking every number of its header; a large one is mapped.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not a safetensors file that fits the rules; says what is wrong.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size) if size <= MAX_COPY else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = len(data)
    if size < 8:
        raise ValueError(f"{path} has {size} bytes: too short for a .spx file")
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER, size - 8):
        raise ValueError(f"{path} is no .spx file, or is cut short: its header should have {length} bytes")
    header = _parse(path, data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError(f"{path}: the metadata must be texts by name")
    body = np.frombuffer(data, np.uint8, offset=8 + length)
    tensors = {name: _tensor(path, name, entry, body) for name, entry in header.items()}
    return TensorFile(metadata, tensors, len(data) if isinstance(data, bytes) else 0)


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no .spx file: its header is not JSON") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is no .spx file: its header is not a JSON object")
    return header


def _tensor(path: Path, name: str, entry: Any, body: NDArray[np.uint8]) -> NDArray[Any]:
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or entry["dtype"] not in DTYPES:
        raise ValueError(f"{where} must have a dtype of {', '.join(DTYPES)}")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not whole_numbers(shape) or not whole_numbers(offsets) or len(offsets) != 2 or len(shape) > 8:
        raise ValueError(f"{where} must have a shape of at most 8 sizes and two data_offsets, all whole numbers")
    dtype, count = DTYPES[entry["dtype"]], product(shape)
    begin, end = offsets
    if not begin <= end <= len(body) or end - begin != count * dtype.itemsize:
        raise ValueError(f"{where} of shape {shape} does not fit bytes {begin} to {end} of {len(body)}")
    raw = body[begin:end]
    # A file written elsewhere may not be aligned; kernels read numbers where they lie.
    aligned = raw if raw.ctypes.data % dtype.itemsize == 0 else raw.copy()
    return aligned.view(dtype).reshape(shape)


def whole_numbers(value: Any) -> bool:
    """Whether a value is a list of whole numbers from 0 on."""
    return isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)


def product(sizes: list[int] | tuple[int, ...]) -> int:
    """The product, of whole numbers of any size."""
    result = 1
    for size in sizes:
        result *= size
    return result
