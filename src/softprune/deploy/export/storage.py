"""How a weight lies in the file: whole, as a bit mask with values, or as gaps with values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.export.graph import Array

# In the order in which the first of equal size is taken: the quickest to read comes first.
STORAGES = ("dense", "mask", "gaps")


def stored(name: str, weight: Array) -> tuple[str, dict[str, NDArray[Any]]]:
    """The smallest of the three forms.

    Args:
        name: of the weight.
        weight: with zeros.

    Returns:
        The name of the form, and the tensors of the file by their names.
    """
    # Biases and norms stay whole: kernels read them as they are.
    if weight.ndim < 2:
        return "dense", {name: weight}
    flat = weight.reshape(-1)
    forms = {"dense": {name: weight}, "mask": _as_mask(name, flat), "gaps": _as_gaps(name, flat)}
    best = min(STORAGES, key=lambda form: sum(tensor.nbytes for tensor in forms[form].values()))
    return best, forms[best]


def _as_mask(name: str, flat: Array) -> dict[str, NDArray[Any]]:
    kept = flat != 0
    return {f"{name}.mask": np.packbits(kept, bitorder="little"), f"{name}.values": flat[kept]}


def _as_gaps(name: str, flat: Array) -> dict[str, NDArray[Any]]:
    """One byte or two for the zeros before each value, whichever is smaller in all."""
    places = np.flatnonzero(flat)
    gaps = np.diff(places, prepend=-1) - 1
    narrow, wide = np.iinfo(np.uint8).max, np.iinfo(np.uint16).max
    # Each gap needs one entry more for every full step of the largest gap and the place behind it.
    entries = {largest: int((gaps // (largest + 1)).sum()) + len(gaps) for largest in (narrow, wide)}
    largest = narrow if entries[narrow] * 5 <= entries[wide] * 6 else wide
    counts, values = _stepped(gaps, flat[places], largest)
    dtype = np.uint8 if largest == narrow else np.uint16
    return {f"{name}.gaps": counts.astype(dtype), f"{name}.values": values}


def _stepped(gaps: NDArray[np.int64], values: Array, largest: int) -> tuple[NDArray[np.int64], Array]:
    """Gaps that fit: a longer one is walked in steps that store a zero at their end."""
    steps = gaps // (largest + 1)
    ends = np.cumsum(steps + 1) - 1
    counts = np.full(len(gaps) + int(steps.sum()), largest, np.int64)
    out = np.zeros(len(counts), np.float32)
    counts[ends] = gaps - steps * (largest + 1)
    out[ends] = values
    return counts, out
