"""Pooling and resizing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.runtime.builder import Array, Builder
from softprune.deploy.runtime.graph import Op
from softprune.deploy.runtime.lowering.reduction import add_mean
from softprune.deploy.runtime.records import Pool, Resize

MAX, AVERAGE, ADAPTIVE = range(3)


def lower_pool(b: Builder, op: Op) -> None:
    """Maximum or average over windows."""
    fields = op.fields
    dilation = fields.get("dilation", (1, 1))
    kind = MAX if op.kind == "max_pool2d" else AVERAGE
    sizes = (*fields["kernel"], *fields["stride"], *fields["padding"], *dilation)
    _add_pool(b, op, kind, sizes, include_pad=bool(fields.get("count_include_pad")))


def lower_adaptive(b: Builder, op: Op) -> None:
    """Averages over windows that divide the image; one window is a mean."""
    if tuple(op.fields["size"]) == (1, 1):
        add_mean(b, op, [2, 3], keepdim=True)
    else:
        _add_pool(b, op, ADAPTIVE, (1,) * 8, include_pad=False)


def _add_pool(b: Builder, op: Op, kind: int, sizes: tuple[int, ...], *, include_pad: bool) -> None:
    source, out = b.arrays[op.inputs[0]], b.new(op.output)
    if not out.size:
        return
    numbers = (*source.shape, *out.shape[2:], *sizes, kind, int(include_pad))
    record = Pool(b.arena.base(out), b.arena.base(source), _strides(out), _strides(source), *numbers)
    b.program.add(op.path, op.kind, record, [])


def _strides(array: Array) -> tuple[int, int, int, int]:
    n, c, h, w = (s // 4 for s in array.strides)
    return n, c, h, w


def lower_resize(b: Builder, op: Op) -> None:
    """Nearest or bilinear interpolation with one table per axis."""
    source, out = b.arrays[op.inputs[0]], b.new(op.output)
    if not out.size:
        return
    tables = []
    for axis in (0, 1):
        before, after = source.shape[axis + 2], out.shape[axis + 2]
        scale = op.fields.get("scale")
        ratio = before / after if scale is None else 1.0 / scale[axis]
        if op.fields["mode"] == "nearest":
            tables.append(_nearest(before, after, ratio))
        else:
            tables.append(_bilinear(before, after, ratio, corners=bool(op.fields.get("align_corners"))))
    (y0, y1, wy), (x0, x1, wx) = tables
    arrays = (y0, y1, x0, x1, wy, wx)
    record = Resize(b.arena.base(out), b.arena.base(source), _strides(out), _strides(source))
    for name, array in zip(("y0", "y1", "x0", "x1", "wy", "wx"), arrays, strict=True):
        setattr(record, name, array.ctypes.data)
    record.images, record.channels, record.out_height, record.out_width = out.shape
    b.program.add(op.path, "resize", record, list(arrays))


Table = tuple[NDArray[np.int32], NDArray[np.int32], Array]


def _nearest(before: int, after: int, ratio: float) -> Table:
    # Single precision decides which pixel is nearest where a place falls between two.
    places = np.floor(np.arange(after, dtype=np.float32) * np.float32(ratio)).astype(np.int64)
    index = np.minimum(places, before - 1).astype(np.int32)
    return index, index, np.zeros(after, np.float32)


def _bilinear(before: int, after: int, ratio: float, *, corners: bool) -> Table:
    steps = np.arange(after, dtype=np.float32)
    if corners:
        places = steps * np.float32((before - 1) / (after - 1) if after > 1 else 0.0)
    else:
        places = np.maximum((steps + np.float32(0.5)) * np.float32(ratio) - np.float32(0.5), np.float32(0))
    low = np.minimum(places.astype(np.int32), before - 1)
    return low, np.minimum(low + 1, before - 1), np.clip(places - low, 0, 1).astype(np.float32)
