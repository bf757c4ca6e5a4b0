"""Resizing images."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.runtime.reference.call import Array, Call


def resize(call: Call) -> Array:
    """Nearest or bilinear interpolation to a size, or by a scale."""
    x = call.inputs[0]
    for axis in (2, 3):
        before = x.shape[axis]
        if call.op.get("size") is not None:
            after = call.pair("size")[axis - 2]
            ratio = before / after
        else:
            scale = float(call.op["scale"][axis - 2])
            after, ratio = int(before * scale), 1.0 / scale
        if call.op["mode"] == "nearest":
            x = np.take(x, _nearest(before, after, ratio), axis=axis)
        else:
            x = _blend(x, axis, _positions(before, after, ratio, align_corners=bool(call.op["align_corners"])))
    return x


def _nearest(before: int, after: int, ratio: float) -> NDArray[np.int64]:
    # Single precision, because that decides which pixel is the nearest one where a place falls between two.
    places = np.floor(np.arange(after, dtype=np.float32) * np.float32(ratio))
    return np.minimum(places.astype(np.int64), before - 1)


def _positions(before: int, after: int, ratio: float, *, align_corners: bool) -> Array:
    """Where each new pixel lies among the old ones."""
    steps = np.arange(after, dtype=np.float32)
    if align_corners:
        return steps * np.float32((before - 1) / (after - 1) if after > 1 else 0.0)
    return np.maximum((steps + np.float32(0.5)) * np.float32(ratio) - np.float32(0.5), np.float32(0))


def _blend(x: Array, axis: int, positions: Array) -> Array:
    """The weighted mean of the two old pixels around each place."""
    low = np.minimum(positions.astype(np.int64), x.shape[axis] - 1)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    shape = [1] * x.ndim
    shape[axis] = -1
    share = np.clip(positions - low, 0, 1).astype(np.float32).reshape(shape)
    first, second = np.take(x, low, axis=axis), np.take(x, high, axis=axis)
    # A share of zero must not touch its pixel, which may be infinite.
    return np.where(share == 0, first, first * (np.float32(1) - share) + second * share)
