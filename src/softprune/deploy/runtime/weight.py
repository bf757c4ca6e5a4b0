"""Weight: a tensor of the file in one of its three forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    """A weight of the network.

    Attributes:
        shape: its shape.
        places: flat places of the stored values in ascending order; None if all are stored.
        values: the stored values.
    """

    shape: tuple[int, ...]
    places: NDArray[np.int64] | None
    values: Array

    def dense(self) -> Array:
        """All of it, zeros included."""
        if self.places is None:
            return self.values.reshape(self.shape)
        flat = np.zeros(product(self.shape), np.float32)
        flat[self.places] = self.values
        return flat.reshape(self.shape)

    def nonzeros(self) -> tuple[NDArray[np.int64], Array]:
        """Flat places and values of the nonzeros."""
        flat = self.values.reshape(-1)
        kept = np.flatnonzero(flat)
        if self.places is not None:
            return self.places[kept], flat[kept]
        return kept, flat[kept]

    def count(self) -> int:
        """The number of nonzeros."""
        return int(np.count_nonzero(self.values))


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
        return Weight(shape, None, values)
    values = _part(tensors, f"{name}.values", "<f4").reshape(-1)
    places = _mask(name, count, tensors) if entry["storage"] == "mask" else _gaps(name, count, tensors)
    if len(places) != len(values):
        raise ValueError(f"weight {name!r} has {len(places)} places for {len(values)} values")
    return Weight(shape, places, values)


def _part(tensors: Mapping[str, NDArray[Any]], name: str, *dtypes: str) -> NDArray[Any]:
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype not in [np.dtype(d) for d in dtypes]:
        raise ValueError(f"tensor {name!r} is missing or not of type {' or '.join(dtypes)}")
    return tensor


def _mask(name: str, count: int, tensors: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    mask = _part(tensors, f"{name}.mask", "u1").reshape(-1)
    if len(mask) != (count + 7) // 8:
        raise ValueError(f"the mask of weight {name!r} has {len(mask)} bytes for {count} numbers")
    places = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
    if len(places) and places[-1] >= count:
        raise ValueError(f"the mask of weight {name!r} has bits behind its last number")
    return places


def _gaps(name: str, count: int, tensors: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    gaps = _part(tensors, f"{name}.gaps", "u1", "<u2").reshape(-1)
    places = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if len(places) and places[-1] >= count:
        raise ValueError(f"the gaps of weight {name!r} lead to place {places[-1]} of {count} numbers")
    return places
