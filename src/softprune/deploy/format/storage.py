"""Safetensors files that may come from a stranger, and the weights in them: whole, or places and values of nonzeros."""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format.graph import Weight
from softprune.deploy.format.rice import MOST_BITS, best_bits, rice_decode, rice_encode

MAX_HEADER = 64 << 20
# Bytes of a file up to which it is copied: pages of a mapped file end the process once somebody cuts the file short.
MAX_COPY = 64 << 20
DTYPES: dict[str, np.dtype[Any]] = {
    **{"F32": np.dtype("<f4"), "U8": np.dtype("u1"), "U16": np.dtype("<u2")},
    **{"I8": np.dtype("i1"), "I32": np.dtype("<i4")},
}
# Of weights that are stored whole, of those that leave out zeros, and of those with Rice codes.
_WHOLE, _SPARSE, _CODED = ("<f4", "i1", "<i4", "u1"), ("<f4", "i1"), ("i1",)


@dataclass(frozen=True)
class TensorFile:
    """The tensors of a file and its metadata; ``held`` counts the bytes in memory, none of a mapped file."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, NDArray[Any]]
    held: int


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read it; a FIFO or a device, on which a reader could wait for ever, is an OSError."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file: a folder, a device or a FIFO cannot be read")
    return os.fdopen(descriptor, "rb")


def read_tensors(path: Path) -> TensorFile:
    """Read a safetensors file after checking every number of its header; a large one is mapped."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size) if size <= MAX_COPY else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = len(data)
    if size < 8:
        raise ValueError(f"{path} has {size} bytes: too short for a .spx file")
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER, size - 8):
        raise ValueError(f"{path} is no .spx file, or is cut short: its header should have {length} bytes")
    try:
        header: Any = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no .spx file: its header is not JSON") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is no .spx file: its header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError(f"{path}: the metadata must be texts by name")
    body = np.frombuffer(data, np.uint8, offset=8 + length)
    tensors = {name: _tensor(path, name, entry, body) for name, entry in header.items()}
    return TensorFile(metadata, tensors, len(data) if isinstance(data, bytes) else 0)


def _tensor(path: Path, name: str, entry: Any, body: NDArray[np.uint8]) -> NDArray[Any]:
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or entry["dtype"] not in DTYPES:
        raise ValueError(f"{where} must have a dtype of {', '.join(DTYPES)}")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not whole_numbers(shape) or not whole_numbers(offsets) or len(offsets) != 2 or len(shape) > 8:
        raise ValueError(f"{where} must have a shape of at most 8 sizes and two data_offsets, all whole numbers")
    dtype, count = DTYPES[entry["dtype"]], math.prod(shape)
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


# How a weight may be stored; of equal sizes the writer takes the first, which is the quickest to read.
STORAGES = ("dense", "mask", "gaps", "rice")
# No layer of a network of this class has so many weights; a larger declared size is an error or an attack.
MAX_ELEMENTS = 1 << 27


def read_weight(name: str, entry: Any, tensors: Mapping[str, NDArray[Any]]) -> Weight:
    """A weight from its entry in the graph and the tensors of the file; a ValueError if anything does not fit."""
    if not isinstance(entry, dict) or entry.get("storage") not in STORAGES or not whole_numbers(entry.get("shape")):
        raise ValueError(f"weight {name!r} must have a shape and a storage of {', '.join(STORAGES)}")
    shape = tuple(entry["shape"])
    count = math.prod(shape)
    if len(shape) > 6 or count > MAX_ELEMENTS:
        raise ValueError(f"weight {name!r} of shape {shape} is too large: at most 6 axes and {MAX_ELEMENTS} numbers")
    if entry["storage"] == "dense":
        values = _part(tensors, name, *_WHOLE)
        if values.shape != shape:
            raise ValueError(f"weight {name!r} is declared as {shape} but stored as {values.shape}")
        return Weight(shape, values)
    storage = str(entry["storage"])
    values = _part(tensors, f"{name}.values", *(_CODED if storage == "rice" else _SPARSE)).reshape(-1)
    index = {"mask": _mask, "gaps": _gaps, "rice": _rice}[storage](name, count, len(values), tensors)
    return Weight(shape, values, storage, index)


def _part(tensors: Mapping[str, NDArray[Any]], name: str, *dtypes: str) -> NDArray[Any]:
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype not in [np.dtype(d) for d in dtypes]:
        raise ValueError(f"tensor {name!r} is missing or not of type {' or '.join(dtypes)}")
    return tensor


def _mask(name: str, count: int, stored: int, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    mask = _part(tensors, f"{name}.mask", "u1").reshape(-1)
    if len(mask) != (count + 7) // 8:
        raise ValueError(f"the mask of weight {name!r} has {len(mask)} bytes for {count} numbers")
    if count % 8 and mask[-1] >> count % 8:
        raise ValueError(f"the mask of weight {name!r} has bits behind its last number")
    places = int(np.unpackbits(mask).sum(dtype=np.int64))
    if places != stored:
        raise ValueError(f"weight {name!r} has {places} places for {stored} values")
    return mask


def _gaps(name: str, count: int, stored: int, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    gaps = _part(tensors, f"{name}.gaps", "u1", "<u2").reshape(-1)
    if len(gaps) != stored:
        raise ValueError(f"weight {name!r} has {len(gaps)} gaps for {stored} values")
    _check_end(name, gaps, count)
    return gaps


def _rice(name: str, count: int, stored: int, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    code = _part(tensors, f"{name}.rice", "u1").reshape(-1)
    bits = int(code[0]) if len(code) else MOST_BITS + 1
    # The writer's k is at most two above what the mean gap asks for; more would unpack into much more memory.
    if bits > MOST_BITS or stored << bits > 4 * count:
        raise ValueError(f"weight {name!r} has Rice codes of {bits} bits for {stored} values of {count} numbers")
    bound = stored + (count >> bits) + stored * bits
    if len(code) > bound // 8 + 3:
        raise ValueError(f"the Rice codes of weight {name!r} have {len(code)} bytes, at most {bound // 8 + 3} are used")
    try:
        gaps = rice_decode(code[1:], stored, bits)
    except ValueError as error:
        raise ValueError(f"weight {name!r}: {error}") from error
    _check_end(name, gaps, count)
    return code


def _check_end(name: str, gaps: NDArray[Any], count: int) -> None:
    behind = int(gaps.sum(dtype=np.int64)) + len(gaps)
    if behind > count:
        raise ValueError(f"the gaps of weight {name!r} lead to place {behind - 1} of {count} numbers")


def stored(name: str, weight: NDArray[Any]) -> tuple[str, dict[str, NDArray[Any]]]:
    """The smallest form of a weight with zeros: the form's name, and the tensors of the file by their names."""
    # Biases and norms stay whole: kernels read them as they are.
    if weight.ndim < 2 or weight.dtype not in (np.float32, np.int8):
        return "dense", {name: weight}
    flat = weight.reshape(-1)
    forms = {"dense": {name: weight}, "mask": _as_mask(name, flat), "gaps": _as_gaps(name, flat)}
    if weight.dtype == np.int8:
        forms["rice"] = _as_rice(name, flat)
    best = min(forms, key=lambda form: sum(tensor.nbytes for tensor in forms[form].values()))
    return best, forms[best]


def _as_mask(name: str, flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
    kept = flat != 0
    return {f"{name}.mask": np.packbits(kept, bitorder="little"), f"{name}.values": flat[kept]}


def _as_gaps(name: str, flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """One byte or two for the zeros before each value, whichever is smaller in all."""
    places = np.flatnonzero(flat)
    gaps = np.diff(places, prepend=-1) - 1
    narrow, wide = np.iinfo(np.uint8).max, np.iinfo(np.uint16).max
    # Each gap needs one entry more for every full step of the largest gap and the place behind it.
    entries = {largest: int((gaps // (largest + 1)).sum()) + len(gaps) for largest in (narrow, wide)}
    bytes_each = {narrow: 1 + flat.itemsize, wide: 2 + flat.itemsize}
    largest = min(entries, key=lambda largest: entries[largest] * bytes_each[largest])
    counts, values = _stepped(gaps, flat[places], largest)
    dtype = np.uint8 if largest == narrow else np.uint16
    return {f"{name}.gaps": counts.astype(dtype), f"{name}.values": values}


def _as_rice(name: str, flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """A byte with k, and the Rice codes of the zeros before each value."""
    places = np.flatnonzero(flat)
    gaps = np.diff(places, prepend=-1) - 1
    bits = best_bits(gaps)
    code = np.concatenate([np.array([bits], np.uint8), rice_encode(gaps, bits)])
    return {f"{name}.rice": code, f"{name}.values": flat[places]}


def _stepped(gaps: NDArray[np.int64], values: NDArray[Any], largest: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Gaps that fit: a longer one is walked in steps that store a zero at their end."""
    steps = gaps // (largest + 1)
    ends = np.cumsum(steps + 1) - 1
    counts = np.full(len(gaps) + int(steps.sum()), largest, np.int64)
    out = np.zeros(len(counts), values.dtype)
    counts[ends] = gaps - steps * (largest + 1)
    out[ends] = values
    return counts, out


_DTYPE_NAMES = {dtype.name: name for name, dtype in DTYPES.items()}
# Where the tensors begin, so that a mapped file can be read in place by vector loads.
_ALIGNMENT = 64


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata as a safetensors file; the same content gives the same bytes.

    Larger elements come first, so that each tensor begins at a multiple of the size of its elements; within one size
    the tensors keep their order.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.nbytes
        dtype, shape = _DTYPE_NAMES[str(tensor.dtype)], list(tensor.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)

    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, tensor in ordered:
            little = np.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("<"))
            file.write(little.tobytes())
