"""Convolutions and linear layers: one matrix product for each place in the kernel."""

from __future__ import annotations

import numpy as np

from softprune.deploy.runtime.reference.arithmetic import finish
from softprune.deploy.runtime.reference.call import Array, Call


def product(weight: Array, values: Array) -> Array:
    """A matrix of weights times one of values, every product counted: zero times an infinity is no number."""
    return weight @ values


def linear(call: Call) -> Array:
    """x W^T + bias over the last axis."""
    x, weight = call.inputs[0], call.needed("weight")
    rows = x.reshape(-1, x.shape[-1])
    out = product(weight, rows.T).T.reshape(*x.shape[:-1], len(weight))
    bias = call.weight("bias")
    return finish(call, out if bias is None else out + bias)


def conv2d(call: Call) -> Array:
    """The convolution of (batch, channels, rows, columns)."""
    weight, groups = call.needed("weight"), int(call.op["groups"])
    (sh, sw), (ph, pw), (dh, dw) = call.pair("stride"), call.pair("padding"), call.pair("dilation")
    x = np.pad(call.inputs[0], ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    batch, channels, height, width = x.shape
    outputs, _, kh, kw = weight.shape
    rows, columns = (height - dh * (kh - 1) - 1) // sh + 1, (width - dw * (kw - 1) - 1) // sw + 1
    grouped = weight.reshape(groups, outputs // groups, channels // groups, kh, kw)
    out = np.zeros((batch, groups, outputs // groups, rows * columns), np.float32)
    for i in range(kh):
        for j in range(kw):
            top, left = i * dh, j * dw
            seen = x[:, :, top : top + sh * (rows - 1) + 1 : sh, left : left + sw * (columns - 1) + 1 : sw]
            out += product(grouped[..., i, j], seen.reshape(batch, groups, channels // groups, rows * columns))
    return finish(call, _with_bias(call, out.reshape(batch, outputs, rows, columns)))


def conv_transpose2d(call: Call) -> Array:
    """The transposed convolution: each input pixel adds its kernel to the output."""
    x, weight, groups = call.inputs[0], call.needed("weight"), int(call.op["groups"])
    (sh, sw), (ph, pw), (dh, dw) = call.pair("stride"), call.pair("padding"), call.pair("dilation")
    more_rows, more_columns = call.pair("output_padding")
    batch, channels, height, width = x.shape
    _, per_group, kh, kw = weight.shape
    full = (sh * (height - 1) + dh * (kh - 1) + 1 + more_rows, sw * (width - 1) + dw * (kw - 1) + 1 + more_columns)
    out = np.zeros((batch, groups * per_group, *full), np.float32)
    # (groups, outputs, inputs, kh, kw): the matrix that leads from a pixel's channels to the outputs
    grouped = weight.reshape(groups, channels // groups, per_group, kh, kw).transpose(0, 2, 1, 3, 4)
    pixels = x.reshape(batch, groups, channels // groups, height * width)
    for i in range(kh):
        for j in range(kw):
            part = product(grouped[..., i, j], pixels).reshape(batch, groups * per_group, height, width)
            rows = slice(i * dh, i * dh + sh * (height - 1) + 1, sh)
            columns = slice(j * dw, j * dw + sw * (width - 1) + 1, sw)
            out[:, :, rows, columns] += part
    return finish(call, _with_bias(call, out[:, :, ph : full[0] - ph, pw : full[1] - pw]))


def _with_bias(call: Call, out: Array) -> Array:
    bias = call.weight("bias")
    return out if bias is None else out + bias[:, None, None]
