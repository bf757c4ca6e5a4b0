"""Layers with weights, pools and resizing in NumPy: one matrix product for each place in the kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format.compute import Array, Call, finish


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


# Pools: the largest or the mean of each window.


def pooled_size(size: int, *, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """The number of windows along one axis."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    windows = (-(-span // stride) if ceil_mode else span // stride) + 1
    # A window that begins in the padding behind the image would see nothing.
    if ceil_mode and (windows - 1) * stride >= size + padding:
        windows -= 1
    return windows


def _sizes(call: Call, shape: tuple[int, ...]) -> tuple[int, int]:
    dilation = call.pair("dilation") if "dilation" in call.op else (1, 1)
    rows, columns = (
        pooled_size(
            shape[axis + 2],
            kernel=call.pair("kernel")[axis],
            stride=call.pair("stride")[axis],
            padding=call.pair("padding")[axis],
            dilation=dilation[axis],
            ceil_mode=bool(call.op["ceil_mode"]),
        )
        for axis in (0, 1)
    )
    return rows, columns


def _padded(call: Call, x: Array, size: tuple[int, int], fill: float) -> Array:
    """The image with its padding, and behind it as much more as windows of ceil_mode reach over."""
    dilation = call.pair("dilation") if "dilation" in call.op else (1, 1)
    around = [(0, 0), (0, 0)]
    for axis in (0, 1):
        kernel, stride, padding = (call.pair(field)[axis] for field in ("kernel", "stride", "padding"))
        reach = (size[axis] - 1) * stride + dilation[axis] * (kernel - 1) + 1
        around.append((padding, max(padding, reach - padding - x.shape[axis + 2])))
    return np.pad(x, around, constant_values=fill)


def _taps(call: Call, x: Array, size: tuple[int, int]) -> Iterator[Array]:
    """What each place of the kernel sees in all windows."""
    (kh, kw), (sh, sw) = call.pair("kernel"), call.pair("stride")
    dh, dw = call.pair("dilation") if "dilation" in call.op else (1, 1)
    for i in range(kh):
        for j in range(kw):
            rows = slice(i * dh, i * dh + sh * (size[0] - 1) + 1, sh)
            columns = slice(j * dw, j * dw + sw * (size[1] - 1) + 1, sw)
            yield x[:, :, rows, columns]


def max_pool2d(call: Call) -> Array:
    """The largest element of each window; padding is below everything."""
    x = call.inputs[0]
    size = _sizes(call, x.shape)
    out = np.full((*x.shape[:2], *size), -np.inf, np.float32)
    for seen in _taps(call, _padded(call, x, size, -np.inf), size):
        np.maximum(out, seen, out=out)
    return out


def avg_pool2d(call: Call) -> Array:
    """The mean of each window, with or without the padding counted."""
    x = call.inputs[0]
    size = _sizes(call, x.shape)
    counted = np.ones((1, 1, *x.shape[2:]), np.float32)
    if call.op["count_include_pad"]:
        # What ceil_mode reaches over behind the padding counts in neither case.
        rows, columns = call.pair("padding")
        counted = np.pad(counted, ((0, 0), (0, 0), (rows, rows), (columns, columns)), constant_values=1)
        count = _total(call, _grown(counted, _padded(call, x, size, 0.0).shape[2:]), size)
    else:
        count = _total(call, _padded(call, counted, size, 0.0), size)
    return _total(call, _padded(call, x, size, 0.0), size) / count


def _grown(x: Array, size: tuple[int, ...]) -> Array:
    """The image with zeros behind it up to a size."""
    return np.pad(x, ((0, 0), (0, 0), (0, max(0, size[0] - x.shape[2])), (0, max(0, size[1] - x.shape[3]))))


def _total(call: Call, x: Array, size: tuple[int, int]) -> Array:
    total = np.zeros((*x.shape[:2], *size), np.float32)
    for seen in _taps(call, x, size):
        total += seen
    return total


def adaptive_avg_pool2d(call: Call) -> Array:
    """Means over windows that divide the image into a given number of rows and columns."""
    x = call.inputs[0]
    rows, columns = call.pair("size")
    out = np.empty((*x.shape[:2], rows, columns), np.float32)
    for i, (top, bottom) in enumerate(_divisions(x.shape[2], rows)):
        for j, (left, right) in enumerate(_divisions(x.shape[3], columns)):
            out[:, :, i, j] = x[:, :, top:bottom, left:right].mean(axis=(2, 3))
    return out


def _divisions(size: int, parts: int) -> list[tuple[int, int]]:
    return [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]


# Resizing images.


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
