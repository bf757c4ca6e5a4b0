"""Weight: a tensor of the file in one of its three forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.runtime.tensorfile import product, whole_numbers

Array = NDArray[np.float32]
STORAGES = ("dense", "mask", "gaps")
# No layer of a network of this class has so many weights; a larger declared size is an error or an attack.
MAX_ELEMENTS = 1 << 27


@dataclass(frozen=True)
class Weight:
    """A weight of the network as the file has it, until it is used.

    Attributes:
        shape: its shape.
        values: the stored values; may contain zeros.
        storage: "dense", "mask" or "gaps".
        index: the mask or the gaps.
    """

    shape: tuple[int, ...]
    values: Array
    storage: str = "dense"
    index: NDArray[Any] | None = None

    def _places(self) -> NDArray[np.int64]:
        """Flat places of the stored values in ascending order."""
        if self.index is None:
            return np.arange(self.values.size)
        return _mask_places(self.index) if self.storage == "mask" else _gap_places(self.index)

    def dense(self) -> Array:
        """All of it, zeros included."""
        if self.index is None:
            return self.values.reshape(self.shape)
        flat = np.zeros(product(self.shape), np.float32)
        flat[self._places()] = self.values
        return flat.reshape(self.shape)

    def nonzeros(self) -> tuple[NDArray[np.int64], Array]:
        """Flat places and values of the nonzeros."""
        flat = self.values.reshape(-1)
        kept = np.flatnonzero(flat)
        return (kept if self.index is None else self._places()[kept]), flat[kept]

    def count(self) -> int:
        """The number of nonzeros."""
        return int(np.count_nonzero(self.values))

    def reshaped(self, shape: tuple[int, ...]) -> Weight:
        """The same numbers in another shape."""
        return replace(self, shape=shape)


def _mask_places(mask: NDArray[Any]) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(mask, bitorder="little"))


def _gap_places(gaps: NDArray[Any]) -> NDArray[np.int64]:
    return np.cumsum(gaps.astype(np.int64) + 1) - 1


def read_weight(name: str, entry: Any, tensors: Mapping[str, NDArray[Any]]) -> Weight:
    """A weight from its entry in the graph and the tensors of the file.

    Raises:
        ValueError: if anything about it does not fit.
    """
    if not isinstance(entry, dict) or entry.get("storage") not in STORAGES or not whole_numbers(entry.get("shape")):
        raise ValueError(f"weight {name!r} must have a shape and a storage of {', '.join(STORAGES)}")
    shape = tuple(entry["shape"])
    count = product(shape)
    if len(shape) > 6 or count > MAX_ELEMENTS:
        raise ValueError(f"weight {name!r} of shape {shape} is too large: at most 6 axes and {MAX_ELEMENTS} numbers")
    if entry["storage"] == "dense":
        values = _part(tensors, name, "<f4")
        if values.shape != shape:
            raise ValueError(f"weight {name!r} is declared as {shape} but stored as {values.shape}")
        return Weight(shape, values)
    values = _part(tensors, f"{name}.values", "<f4").reshape(-1)
    storage = str(entry["storage"])
    index = (_mask if storage == "mask" else _gaps)(name, count, len(values), tensors)
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
    behind = int(gaps.sum(dtype=np.int64)) + len(gaps)
    if behind > count:
        raise ValueError(f"the gaps of weight {name!r} lead to place {behind - 1} of {count} numbers")
    return gaps
