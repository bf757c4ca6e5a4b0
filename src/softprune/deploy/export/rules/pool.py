"""Pools and resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from softprune.deploy.export.graph_builder import GraphBuilder, UnsupportedError, length, pair

Sizes = int | Sequence[int]


def _image(builder: GraphBuilder, x: Node) -> str:
    if len(builder.shape(x)) != 4:
        raise UnsupportedError(f"only batches of images are in the format, got shape {builder.shape(x)}")
    return builder.value(builder[x])


def _max_pool2d(
    builder: GraphBuilder,
    x: Node,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,  # noqa: FBT001, FBT002 - ATen's own order
) -> str:
    return builder.emit(
        "max_pool2d",
        [_image(builder, x)],
        kernel=pair(kernel),
        stride=pair(stride or kernel),
        padding=pair(padding),
        dilation=pair(dilation),
        ceil_mode=ceil_mode,
    )


def _avg_pool2d(
    builder: GraphBuilder,
    x: Node,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,  # noqa: FBT001, FBT002 - ATen's own order
    count_include_pad: bool = True,  # noqa: FBT001, FBT002
    divisor_override: int | None = None,
) -> str:
    if divisor_override is not None:
        raise UnsupportedError("divisor_override is not in the format")
    return builder.emit(
        "avg_pool2d",
        [_image(builder, x)],
        kernel=pair(kernel),
        stride=pair(stride or kernel),
        padding=pair(padding),
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )


def _adaptive_avg_pool2d(builder: GraphBuilder, x: Node, size: Sizes) -> str:
    image = _image(builder, x)
    rows, columns = builder.shape(builder.node)[2:]
    return builder.emit("adaptive_avg_pool2d", [image], size=[rows, columns])


def _adaptive_max_pool2d(builder: GraphBuilder, x: Node, size: Sizes) -> list[str | None]:
    """A max pool, where the windows are all alike."""
    image = _image(builder, x)
    before = [length(builder, x, 2), length(builder, x, 3)]
    after = [int(n) for n in builder.node.meta["val"][0].shape[2:]]
    if any(b % a for b, a in zip(before, after, strict=True)):
        raise UnsupportedError(f"an adaptive max pool from {before} to {after} has windows of different sizes")
    window = [b // a for b, a in zip(before, after, strict=True)]
    out = builder.emit(
        "max_pool2d",
        [image],
        (*builder.shape(x)[:2], *after),
        kernel=window,
        stride=window,
        padding=[0, 0],
        dilation=[1, 1],
        ceil_mode=False,
    )
    return [out, None]


def _in_a_row(builder: GraphBuilder, x: Node, kind: str, **fields: Any) -> str:
    """A pool over one axis: one over images of one row."""
    batch, channels, width = builder.shape(x)
    after = builder.shape(builder.node)[-1]
    value = builder.value(builder[x])
    row = builder.emit("reshape", [value], (batch, channels, 1, width), shape=[None, channels, 1, width])
    out = builder.emit(kind, [row], (batch, channels, 1, after), **fields)
    return builder.emit("reshape", [out], shape=[None, channels, after])


def _along(size: Sizes, other: int) -> list[int]:
    return [other, pair(size)[1]]


def _max_pool1d(
    builder: GraphBuilder,
    x: Node,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,  # noqa: FBT001, FBT002 - ATen's own order
) -> str:
    fields = {"kernel": _along(kernel, 1), "stride": _along(stride or kernel, 1), "padding": _along(padding, 0)}
    return _in_a_row(builder, x, "max_pool2d", **fields, dilation=_along(dilation, 1), ceil_mode=ceil_mode)


def _avg_pool1d(
    builder: GraphBuilder,
    x: Node,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,  # noqa: FBT001, FBT002 - ATen's own order
    count_include_pad: bool = True,  # noqa: FBT001, FBT002
) -> str:
    fields = {"kernel": _along(kernel, 1), "stride": _along(stride or kernel, 1), "padding": _along(padding, 0)}
    return _in_a_row(builder, x, "avg_pool2d", **fields, ceil_mode=ceil_mode, count_include_pad=count_include_pad)


def _adaptive_avg_pool1d(builder: GraphBuilder, x: Node, size: Sizes) -> str:
    return _in_a_row(builder, x, "adaptive_avg_pool2d", size=_along(size, 1))


def _resize(builder: GraphBuilder, x: Node, *, scale: Sequence[float] | None, mode: str, align_corners: bool) -> str:
    image = _image(builder, x)
    before = [length(builder, x, 2), length(builder, x, 3)]
    after = [int(n) for n in builder.node.meta["val"].shape[2:]]
    # Where the scale leads to a whole number of pixels, the size alone says the same.
    exact = scale is None or all(b * s == a for b, s, a in zip(before, scale, after, strict=True))
    fields: dict[str, Any] = {"size": after} if exact or scale is None else {"scale": [float(s) for s in scale]}
    return builder.emit("resize", [image], **fields, mode=mode, align_corners=align_corners)


def _nearest(builder: GraphBuilder, x: Node, size: Any, scale: Sequence[float] | None = None) -> str:
    return _resize(builder, x, scale=scale, mode="nearest", align_corners=False)


def _bilinear(
    builder: GraphBuilder,
    x: Node,
    size: Any,
    align_corners: bool,  # noqa: FBT001 - ATen's own order
    scale: Sequence[float] | None = None,
) -> str:
    # With aligned corners the corners decide, not the scale.
    return _resize(builder, x, scale=None if align_corners else scale, mode="bilinear", align_corners=align_corners)


RULES: dict[str, Callable[..., Any]] = {
    "aten.max_pool2d.default": _max_pool2d,
    "aten.avg_pool2d.default": _avg_pool2d,
    "aten.adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
    "aten.adaptive_max_pool2d.default": _adaptive_max_pool2d,
    "aten.max_pool1d.default": _max_pool1d,
    "aten.avg_pool1d.default": _avg_pool1d,
    "aten.adaptive_avg_pool1d.default": _adaptive_avg_pool1d,
    "aten.upsample_nearest2d.vec": _nearest,
    "aten.upsample_bilinear2d.vec": _bilinear,
}
