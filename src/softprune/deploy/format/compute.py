"""What each operation computes, in NumPy; layers, pools and resizing are in `spatial`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format.graph import Array


@dataclass(frozen=True)
class OpCall:
    """One operation as the graph has it, the values it reads, and all weights of the network, dense, by name."""

    op: Mapping[str, Any]
    inputs: tuple[NDArray[Any], ...]  # float32 or uint8
    residual: NDArray[Any] | None
    weights: Mapping[str, NDArray[Any]]
    batch: int

    def weight(self, field: str) -> NDArray[Any] | None:
        """None where the field is null or absent."""
        name = self.op.get(field)
        return None if name is None else self.weights[name]

    def needed(self, field: str) -> NDArray[Any]:
        return self.weights[self.op[field]]

    @property
    def second(self) -> Array | np.float32:
        """The second input, or the number that stands for it."""
        return self.inputs[1] if len(self.inputs) == 2 else np.float32(self.op["value"])

    def pair(self, field: str) -> tuple[int, int]:
        """Two whole numbers, of the rows and of the columns."""
        rows, columns = self.op[field]
        return int(rows), int(columns)


# Operations on each element: activations, sums, products.

_erf = np.frompyfunc(math.erf, 1, 1)


def _sigmoid(x: Array) -> Array:
    # 0.5 * (1 + tanh(x / 2)) is the same function and overflows nowhere.
    return np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1))


def _gelu(x: Array) -> Array:
    wide = x.astype(np.float64)
    erf = np.asarray(_erf(wide / math.sqrt(2.0)), dtype=np.float64)
    return (0.5 * wide * (1.0 + erf)).astype(np.float32)


def _gelu_tanh(x: Array) -> Array:
    wide = x.astype(np.float64)
    inner = math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide**3)
    return (0.5 * wide * (1.0 + np.tanh(inner))).astype(np.float32)


def hardsigmoid(x: Array) -> Array:
    """clip(x + 3, 0, 6) / 6."""
    return np.clip(x + np.float32(3), 0, 6) / np.float32(6)


def _mish(x: Array) -> Array:
    wide = x.astype(np.float64)
    return (wide * np.tanh(np.logaddexp(0.0, wide))).astype(np.float32)


# Those that a layer can apply before it stores its sums.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "relu6": lambda x: np.clip(x, np.float32(0), np.float32(6)),
    "hardswish": lambda x: x * hardsigmoid(x),
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "mish": _mish,
}


def gelu(call: OpCall) -> Array:
    """GELU, exact or with its tanh approximation."""
    return (_gelu_tanh if call.op["approximate"] == "tanh" else _gelu)(call.inputs[0])


def elu(call: OpCall) -> Array:
    """x above zero, alpha (exp(x) - 1) below."""
    x = call.inputs[0]
    return np.where(x > 0, x, np.float32(call.op["alpha"]) * np.expm1(np.minimum(x, np.float32(0))))


def softplus(call: OpCall) -> Array:
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold."""
    x, beta = call.inputs[0], np.float32(call.op["beta"])
    steep = x * beta
    smooth = np.logaddexp(0.0, steep.astype(np.float64)) / beta
    return np.where(steep > np.float32(call.op["threshold"]), x, smooth.astype(np.float32))


def finish(call: OpCall, out: Array, *, axes_behind: int = 0) -> Array:
    """A layer's sums with bias, residual and activation; there are so many axes behind that of the outputs."""
    bias = call.weight("bias")
    if bias is not None:
        out = out + bias.reshape(-1, *[1] * axes_behind)
    if call.residual is not None:
        out = out + call.residual
    activation = call.op.get("activation")
    return out if activation is None else ACTIVATIONS[activation](out)


def scale_shift(call: OpCall) -> Array:
    """scale * x + shift with one number of each per channel (axis 1)."""
    x = call.inputs[0]
    channels = (1, -1) + (1,) * (x.ndim - 2)
    return x * call.needed("scale").reshape(channels) + call.needed("shift").reshape(channels)


# Operations that sum over an axis: means, norms, softmax, matrix products, attention.


def mean(call: OpCall) -> Array:
    return call.inputs[0].mean(axis=tuple(call.op["axes"]), keepdims=bool(call.op["keepdim"]))


def softmax(x: Array, axis: int) -> Array:
    """exp(x) over its sum along one axis."""
    raised = np.exp(x - x.max(axis=axis, keepdims=True))
    return raised / raised.sum(axis=axis, keepdims=True)


def layer_norm(call: OpCall) -> Array:
    """(x - mean) / sqrt(variance + eps) over the last axes, scaled and shifted element by element."""
    x = call.inputs[0]
    axes = tuple(call.op["axes"])
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    out = centred / np.sqrt(variance + np.float32(call.op["eps"]))
    weight, bias = call.weight("weight"), call.weight("bias")
    inside = x.shape[x.ndim - len(axes) :]
    if weight is not None:
        out = out * weight.reshape(inside)
    return out if bias is None else out + bias.reshape(inside)


def attention(call: OpCall) -> Array:
    """softmax(scale * q k^T + mask) v over the last two axes."""
    q, k, v = call.inputs
    scores = np.float32(call.op["scale"]) * (q @ np.swapaxes(k, -1, -2))
    mask = call.weight("mask")
    return softmax(scores if mask is None else scores + mask, -1) @ v


# Operations that move elements and compute nothing.


def reshape(call: OpCall) -> Array:
    """The same elements in another shape; null is the batch, -1 what is left."""
    return call.inputs[0].reshape([call.batch if size is None else int(size) for size in call.op["shape"]])


def take(call: OpCall) -> Array:
    """Every step-th element from start to before stop along one axis."""
    index = [slice(None)] * call.inputs[0].ndim
    index[int(call.op["axis"])] = slice(call.op["start"], call.op["stop"], call.op["step"])
    return call.inputs[0][tuple(index)]


def pad(call: OpCall) -> Array:
    """An image with its own pixels around it: mirrored, from the other side, or those of the edge."""
    top, bottom, left, right = call.op["padding"]
    mode = {"reflect": "reflect", "circular": "wrap", "replicate": "edge"}[call.op["mode"]]
    return np.pad(call.inputs[0], ((0, 0), (0, 0), (top, bottom), (left, right)), mode=mode)  # type: ignore[call-overload, no-any-return]
