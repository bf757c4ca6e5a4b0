"""Operations on each element: activations, sums, products."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from softprune.deploy.runtime.reference.call import Array, Call

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


def _hardsigmoid(x: Array) -> Array:
    return np.clip(x + np.float32(3), 0, 6) / np.float32(6)


def _relu(x: Array) -> Array:
    return np.maximum(x, np.float32(0))


def _relu6(x: Array) -> Array:
    return np.clip(x, np.float32(0), np.float32(6))


def _mish(x: Array) -> Array:
    wide = x.astype(np.float64)
    return (wide * np.tanh(np.logaddexp(0.0, wide))).astype(np.float32)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": _relu,
    "relu6": _relu6,
    "hardswish": lambda x: x * _hardsigmoid(x),
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "mish": _mish,
}


def plain(name: str) -> Callable[[Call], Array]:
    """An activation as an operation of its own."""
    activation = ACTIVATIONS[name]
    return lambda call: activation(call.inputs[0])


def gelu(call: Call) -> Array:
    """GELU, exact or with its tanh approximation."""
    return (_gelu_tanh if call.op["approximate"] == "tanh" else _gelu)(call.inputs[0])


def elu(call: Call) -> Array:
    """x above zero, alpha (exp(x) - 1) below."""
    x = call.inputs[0]
    return np.where(x > 0, x, np.float32(call.op["alpha"]) * np.expm1(np.minimum(x, np.float32(0))))


def softplus(call: Call) -> Array:
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold."""
    x, beta = call.inputs[0], np.float32(call.op["beta"])
    steep = x * beta
    smooth = np.logaddexp(0.0, steep.astype(np.float64)) / beta
    return np.where(steep > np.float32(call.op["threshold"]), x, smooth.astype(np.float32))


def hardsigmoid(call: Call) -> Array:
    """clip(x + 3, 0, 6) / 6."""
    return _hardsigmoid(call.inputs[0])


def finish(call: Call, out: Array) -> Array:
    """What follows the sum of a convolution or linear layer: the residual, then the activation."""
    if call.residual is not None:
        out = out + call.residual
    activation = call.op.get("activation")
    return out if activation is None else ACTIVATIONS[activation](out)


def _second(call: Call) -> Array | np.float32:
    return call.inputs[1] if len(call.inputs) == 2 else np.float32(call.op["value"])


def add(call: Call) -> Array:
    """Sum of two values, or of a value and a number."""
    return call.inputs[0] + _second(call)


def mul(call: Call) -> Array:
    """Product of two values, or of a value and a number."""
    return call.inputs[0] * _second(call)


def scale_shift(call: Call) -> Array:
    """scale * x + shift with one number of each per channel (axis 1)."""
    x = call.inputs[0]
    channels = (1, -1) + (1,) * (x.ndim - 2)
    return x * call.needed("scale").reshape(channels) + call.needed("shift").reshape(channels)
