"""Operations that sum over an axis: means, norms, softmax, matrix products, attention."""

from __future__ import annotations

import numpy as np

from softprune.deploy.runtime.reference.call import Array, Call


def mean(call: Call) -> Array:
    """The mean over some axes."""
    return call.inputs[0].mean(axis=tuple(call.op["axes"]), keepdims=bool(call.op["keepdim"]))


def _softmax(x: Array, axis: int) -> Array:
    raised = np.exp(x - x.max(axis=axis, keepdims=True))
    return raised / raised.sum(axis=axis, keepdims=True)


def softmax(call: Call) -> Array:
    """exp(x) over its sum along one axis."""
    return _softmax(call.inputs[0], int(call.op["axis"]))


def layer_norm(call: Call) -> Array:
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


def matmul(call: Call) -> Array:
    """Matrix product over the last two axes, the others broadcast."""
    return np.matmul(call.inputs[0], call.inputs[1])


def attention(call: Call) -> Array:
    """softmax(scale * q k^T + mask) v over the last two axes."""
    q, k, v = call.inputs
    scores = np.float32(call.op["scale"]) * (q @ np.swapaxes(k, -1, -2))
    mask = call.weight("mask")
    return _softmax(scores if mask is None else scores + mask, -1) @ v
