"""Operations on bytes in NumPy. A byte q stands for (q - zero) * scale; sums are exact, then each step rounds once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format.compute import OpCall
from softprune.deploy.format.graph import Array
from softprune.deploy.format.spatial import convolve, product

Bytes = NDArray[np.uint8]


def quantize(call: OpCall) -> Bytes:
    """The nearest byte, ties to even; what is no number becomes byte 0."""
    rate, zero = np.float32(1) / np.float32(call.op["scale"]), np.float32(call.op["zero"])
    with np.errstate(over="ignore"):
        steps = call.inputs[0] * rate
    inside = np.minimum(np.fmax(steps, -zero), np.float32(255) - zero)
    return (np.rint(inside) + zero).astype(np.uint8)


def dequantize(call: OpCall) -> Array:
    return _centred(call.inputs[0], call.op["zero"]) * np.float32(call.op["scale"])


def lookup(call: OpCall) -> Bytes:
    """The entry of the table at each byte."""
    found: Bytes = call.needed("table").reshape(-1)[call.inputs[0]]
    return found


def conv2d(call: OpCall) -> NDArray[Any]:
    return _finish(call, convolve(call, _wide(call), call.needed("weight").astype(np.float64)), axes_behind=2)


def linear(call: OpCall) -> NDArray[Any]:
    x, weight = _wide(call), call.needed("weight").astype(np.float64)
    sums = product(weight, x.reshape(-1, x.shape[-1]).T).T
    return _finish(call, sums.reshape(*x.shape[:-1], len(weight)), axes_behind=0)


def _centred(values: Bytes, zero: int) -> Array:
    return values.astype(np.float32) - np.float32(zero)


def _wide(call: OpCall) -> NDArray[np.float64]:
    """x - zero in 64 bits, in which sums of products of bytes are whole numbers and never round."""
    return call.inputs[0].astype(np.float64) - call.op["zero"]


def _finish(call: OpCall, sums: NDArray[np.float64], *, axes_behind: int) -> NDArray[Any]:
    """Bias, factor and residual; unless the output is float32 also rounded, moved to its zero and cut."""
    behind = (-1, *[1] * axes_behind)
    bias, factor = call.weight("bias"), call.needed("factor").reshape(behind)
    if bias is not None:
        sums = sums + bias.astype(np.float64).reshape(behind)
    with np.errstate(over="ignore", invalid="ignore"):
        out = sums.astype(np.float32) * factor
        if call.op.get("out_zero") is None:
            return out if call.residual is None else out + call.residual
        if call.residual is not None:
            residual = _centred(call.residual, call.op["residual_zero"])
            out = out + residual * np.float32(call.op["residual_factor"])
    # In 64 bits, where a zero is added to any sum exactly.
    moved = np.rint(out).astype(np.float64) + call.op["out_zero"]
    return np.clip(moved, call.op["low"], call.op["high"]).astype(np.uint8)
