"""Layers with weights, pools and resizing in NumPy: one matrix product for each place in the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format.compute import OpCall, finish
from softprune.deploy.format.graph import Array
from softprune.deploy.format.shapes import windows

Pair = tuple[int, int]


def product(weight: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """A matrix of weights times one of values, every product counted: zero times infinity is not a number."""
    return weight @ values


def linear(call: OpCall) -> Array:
    """x W^T + bias over the last axis."""
    x, weight = call.inputs[0], call.needed("weight")
    rows = x.reshape(-1, x.shape[-1])
    return finish(call, product(weight, rows.T).T.reshape(*x.shape[:-1], len(weight)))


def _places(kernel: Pair, stride: Pair, dilation: Pair, size: Pair) -> Iterator[tuple[int, int, slice, slice]]:
    """Each row and column of a kernel, and which rows and columns of the larger image it meets in `size` windows."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + stride[0] * (size[0] - 1) + 1, stride[0])
            yield i, j, rows, slice(left, left + stride[1] * (size[1] - 1) + 1, stride[1])


def conv2d(call: OpCall) -> Array:
    return finish(call, convolve(call, call.inputs[0], call.needed("weight")), axes_behind=2)


def convolve(call: OpCall, image: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
    """The sums of a convolution in the type of its image, with zeros around it."""
    groups = int(call.op["groups"])
    stride, (ph, pw), dilation = call.pair("stride"), call.pair("padding"), call.pair("dilation")
    x = np.pad(image, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    batch, channels, *padded = x.shape
    outputs, _, *kernel = weight.shape
    rows, columns = (
        windows(n, k, stride=s, dilation=d) for n, k, s, d in zip(padded, kernel, stride, dilation, strict=True)
    )
    grouped = weight.reshape(groups, outputs // groups, channels // groups, *kernel)
    out = np.zeros((batch, groups, outputs // groups, rows * columns), x.dtype)
    for i, j, down, across in _places((kernel[0], kernel[1]), stride, dilation, (rows, columns)):
        seen = x[:, :, down, across].reshape(batch, groups, channels // groups, rows * columns)
        out += product(grouped[..., i, j], seen)
    return out.reshape(batch, outputs, rows, columns)


def conv_transpose2d(call: OpCall) -> Array:
    """The transposed convolution: each input pixel adds its kernel to the output."""
    x, weight, groups = call.inputs[0], call.needed("weight"), int(call.op["groups"])
    stride, (ph, pw), dilation = call.pair("stride"), call.pair("padding"), call.pair("dilation")
    batch, channels, height, width = x.shape
    _, per_group, kh, kw = weight.shape
    axes = zip((height, width), (kh, kw), stride, dilation, call.pair("output_padding"), strict=True)
    full = [s * (n - 1) + d * (k - 1) + 1 + more for n, k, s, d, more in axes]
    out = np.zeros((batch, groups * per_group, *full), np.float32)
    # (groups, outputs, inputs, kh, kw): the matrix that leads from a pixel's channels to the outputs
    grouped = weight.reshape(groups, channels // groups, per_group, kh, kw).transpose(0, 2, 1, 3, 4)
    pixels = x.reshape(batch, groups, channels // groups, height * width)
    for i, j, rows, columns in _places((kh, kw), stride, dilation, (height, width)):
        part = product(grouped[..., i, j], pixels)
        out[:, :, rows, columns] += part.reshape(batch, groups * per_group, height, width)
    return finish(call, out[:, :, ph : full[0] - ph, pw : full[1] - pw], axes_behind=2)


class _Windows:
    def __init__(self, call: OpCall) -> None:
        self.image = call.inputs[0]
        self.kernel, self.stride, self.padding = (call.pair(field) for field in ("kernel", "stride", "padding"))
        self.dilation = call.pair("dilation") if "dilation" in call.op else (1, 1)
        axes = zip(self.image.shape[2:], self.kernel, self.stride, self.padding, self.dilation, strict=True)
        ceil_mode = bool(call.op["ceil_mode"])
        rows, columns = (windows(n, k, stride=s, padding=p, dilation=d, ceil_mode=ceil_mode) for n, k, s, p, d in axes)
        self.size = rows, columns

    def padded(self, x: Array, fill: float) -> Array:
        """The image with its padding, and behind it as much more as windows of ceil_mode reach over."""
        around = [(0, 0), (0, 0)]
        for axis, padding in enumerate(self.padding):
            reach = (self.size[axis] - 1) * self.stride[axis] + self.dilation[axis] * (self.kernel[axis] - 1) + 1
            around.append((padding, max(padding, reach - padding - x.shape[axis + 2])))
        return np.pad(x, around, constant_values=fill)

    def seen(self, padded: Array) -> Iterator[Array]:
        """What each place of the kernel sees in all windows."""
        for _, _, rows, columns in _places(self.kernel, self.stride, self.dilation, self.size):
            yield padded[:, :, rows, columns]

    def total(self, padded: Array) -> Array:
        total = np.zeros((*padded.shape[:2], *self.size), np.float32)
        for seen in self.seen(padded):
            total += seen
        return total


def max_pool2d(call: OpCall) -> Array:
    """The largest element of each window; padding is below everything, and 0 among bytes."""
    pool = _Windows(call)
    least = 0 if pool.image.dtype == np.uint8 else -np.inf
    out = np.full((*pool.image.shape[:2], *pool.size), least, pool.image.dtype)
    for seen in pool.seen(pool.padded(pool.image, least)):
        np.maximum(out, seen, out=out)
    return out


def avg_pool2d(call: OpCall) -> Array:
    """The mean of each window, with or without the padding counted."""
    pool, include = _Windows(call), bool(call.op["count_include_pad"])
    _, _, height, width = pool.image.shape
    counted = pool.padded(np.ones((1, 1, height, width), np.float32), float(include))
    # What ceil_mode reaches over behind the padding counts in neither case.
    counted[:, :, height + 2 * pool.padding[0] :] = 0
    counted[:, :, :, width + 2 * pool.padding[1] :] = 0
    return pool.total(pool.padded(pool.image, 0.0)) / pool.total(counted)


def adaptive_avg_pool2d(call: OpCall) -> Array:
    """Means over windows that divide the image into a given number of rows and columns."""
    x = call.inputs[0]
    rows, columns = call.pair("size")
    out = np.empty((*x.shape[:2], rows, columns), np.float32)
    for i, (top, bottom) in enumerate(_divisions(x.shape[2], rows)):
        for j, (left, right) in enumerate(_divisions(x.shape[3], columns)):
            out[:, :, i, j] = x[:, :, top:bottom, left:right].mean(axis=(2, 3))
    return out


def _divisions(size: int, parts: int) -> list[Pair]:
    return [(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]


def resize(call: OpCall) -> Array:
    """Nearest or bilinear interpolation to a size, or by a scale."""
    x = call.inputs[0]
    for axis in (0, 1):
        before = x.shape[axis + 2]
        size = call.op.get("size")
        after = int(before * float(call.op["scale"][axis])) if size is None else int(size[axis])
        low, high, share = interpolation(call.op, axis, before, after)
        first = np.take(x, low, axis=axis + 2)
        if share.any():
            share = share.reshape((-1, 1) if axis == 0 else -1)
            second = np.take(x, high, axis=axis + 2)
            # A share of zero must not touch its pixel, which may be infinite.
            first = np.where(share == 0, first, first * (np.float32(1) - share) + second * share)
        x = first
    return x


def interpolation(
    fields: Mapping[str, Any], axis: int, before: int, after: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """The two old pixels that each new one lies between, and the share of the second; axis 0 is that of the rows.

    All in single precision, because that decides which pixel is the nearest one where a place falls between two.
    """
    scale = fields.get("scale")
    ratio = before / after if scale is None else 1.0 / float(scale[axis])
    steps = np.arange(after, dtype=np.float32)
    if fields["mode"] == "nearest":
        index = np.minimum(np.floor(steps * np.float32(ratio)).astype(np.int64), before - 1)
        return index, index, np.zeros(after, np.float32)
    if fields.get("align_corners"):
        places = steps * np.float32((before - 1) / (after - 1) if after > 1 else 0.0)
    else:
        places = np.maximum((steps + np.float32(0.5)) * np.float32(ratio) - np.float32(0.5), np.float32(0))
    low = np.minimum(places.astype(np.int64), before - 1)
    return low, np.minimum(low + 1, before - 1), np.clip(places - low, 0, 1).astype(np.float32)
