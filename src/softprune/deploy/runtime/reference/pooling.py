"""Pools: the largest or the mean of each window."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from softprune.deploy.runtime.reference.call import Array, Call


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
