"""Convolutions, transposed convolutions and linear layers, and the padding in front of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.graph_builder import GraphBuilder, UnsupportedError, constant, optional, pair
from softprune.deploy.export.rules.layout import filled

# What lies around an image.
#
# Zeros are part of the convolution behind them where there is one, operations of their own otherwise; an image's own
# pixels (reflect, circular, replicate) are one operation.

MODES = ("reflect", "circular", "replicate")
PADS = ("aten.constant_pad_nd.default", "aten.pad.default")


class Margins(NamedTuple):
    """Rows and columns of zeros around an image."""

    top: int
    bottom: int
    left: int
    right: int

    def __add__(self, other: tuple[Any, ...]) -> Margins:  # type: ignore[override]
        return Margins(*(a + b for a, b in zip(self, other, strict=True)))


def margins_around(builder: GraphBuilder, x: Node) -> tuple[str, Margins]:
    """The image in front of zero padding, if that is what ``x`` is, and the margins of zeros."""
    if x.op == "call_function" and str(x.target) in PADS and isinstance(builder[x], str):
        image, pads = x.args[0], list(x.args[1])  # type: ignore[arg-type]
        if len(pads) <= 4 and all(isinstance(size, int) and size >= 0 for size in pads) and _is_zero(x):
            left, right, top, bottom = (*pads, 0, 0)[:4]
            return builder.value(builder[image]), Margins(top, bottom, left, right)
    return builder.value(builder[x]), Margins(0, 0, 0, 0)


def _is_zero(pad: Node) -> bool:
    """Whether a pad is one with zeros."""
    named = str(pad.target) == "aten.pad.default"
    if named and len(pad.args) > 2 and pad.args[2] != "constant":
        return False
    value = pad.args[3 if named else 2] if len(pad.args) > (3 if named else 2) else pad.kwargs.get("value")
    return value in (None, 0)


def _pad(builder: GraphBuilder, x: Node, pads: Sequence[int], *rest: Any, **more: Any) -> str:
    """Zeros as values, joined to the image; unused where a convolution takes them over."""
    mode = rest[0] if rest and isinstance(rest[0], str) else more.get("mode", "constant")
    if mode != "constant":
        return _own_pixels(builder, x, pads, mode)
    if not _is_zero(builder.node):
        raise UnsupportedError("only padding with zeros or an image's own pixels is in the format")
    shape = list(builder.shape(x))
    value = builder.value(builder[x])
    for position in range(len(pads) // 2):
        axis = len(shape) - 1 - position
        before, behind = pads[2 * position], pads[2 * position + 1]
        if before < 0 or behind < 0:
            raise UnsupportedError("negative padding is not in the format")
        if not before and not behind:
            continue
        parts = []
        for count in (before, behind):
            zeros = [*shape[:axis], count, *shape[axis + 1 :]]
            parts.append(filled(builder, tuple(zeros), torch.zeros(())) if count else None)
        size: Any = shape[axis]
        shape[axis] = size + before + behind
        joined = [part for part in (parts[0], value, parts[1]) if part is not None]
        value = builder.emit("concat", joined, tuple(shape), axis=axis)
    return value


def _own_pixels(builder: GraphBuilder, x: Node, pads: Sequence[int], mode: str) -> str:
    """Pixels of the image around it, of rows of samples too, which are images of one row."""
    shape = builder.shape(x)
    if mode not in MODES:
        raise UnsupportedError(f"padding in mode {mode} is not in the format, only {', '.join(MODES)}")
    if len(shape) not in (3, 4) or len(pads) != 2 * (len(shape) - 2) or min(pads) < 0:
        raise UnsupportedError(f"padding {list(pads)} of {len(shape)} axes in mode {mode} is not in the format")
    value = builder.value(builder[x])
    if len(shape) == 4:
        left, right, top, bottom = pads
        return builder.emit("pad", [value], padding=[top, bottom, left, right], mode=mode)
    batch, channels, width = shape
    row = builder.emit("reshape", [value], (batch, channels, 1, width), shape=[None, channels, 1, width])
    _, _, after = builder.shape(builder.node)
    row = builder.emit("pad", [row], (batch, channels, 1, after), padding=[0, 0, *pads], mode=mode)
    return builder.emit("reshape", [row], shape=[None, channels, after])


Sizes = int | Sequence[int]


def _conv2d(
    builder: GraphBuilder,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> str:
    kernel = constant(builder, weight, "weight")
    name, margins = margins_around(builder, x)
    margins = margins + _margins(padding, kernel, pair(dilation))
    kernel, margin = _symmetric(kernel, margins, pair(dilation))
    return builder.emit(
        "conv2d",
        [name],
        weight=builder.weight(kernel),
        bias=optional(builder, bias, "bias"),
        stride=pair(stride),
        padding=margin,
        dilation=pair(dilation),
        groups=groups,
        activation=None,
        residual=None,
    )


def _margins(padding: Sizes | str, kernel: Tensor, dilation: list[int]) -> Margins:
    if not isinstance(padding, str):
        rows, columns = pair(padding)
        return Margins(rows, rows, columns, columns)
    if padding == "valid":
        return Margins(0, 0, 0, 0)
    rows, columns = (d * (k - 1) for d, k in zip(dilation, kernel.shape[2:], strict=True))
    return Margins(rows // 2, rows - rows // 2, columns // 2, columns - columns // 2)


def _symmetric(kernel: Tensor, margins: Margins, dilation: list[int]) -> tuple[Tensor, list[int]]:
    """The same convolution with as much padding in front as behind.

    A kernel that has zeros where the larger padding would let it see more computes the same, and zeros cost nothing.
    """
    margin = [max(margins.top, margins.bottom), max(margins.left, margins.right)]
    grown = Margins(
        margin[0] - margins.top, margin[0] - margins.bottom, margin[1] - margins.left, margin[1] - margins.right
    )
    if not any(grown):
        return kernel, margin
    for more, step in ((grown.top + grown.bottom, dilation[0]), (grown.left + grown.right, dilation[1])):
        if more and step != 1:
            raise UnsupportedError("uneven padding together with a dilation is not in the format")
    with torch.no_grad():
        return torch.nn.functional.pad(kernel, (grown.left, grown.right, grown.top, grown.bottom)), margin


def _conv1d(
    builder: GraphBuilder,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> str:
    """One row of pixels."""
    batch, channels, width = builder.shape(x)
    kernel = constant(builder, weight, "weight").unsqueeze(2)
    step = pair(dilation)[1]
    margins = _margins(padding if isinstance(padding, str) else [0, pair(padding)[1]], kernel, [1, step])
    kernel, margin = _symmetric(kernel, margins, [1, step])
    row = builder.emit(
        "reshape", [builder.value(builder[x])], (batch, channels, 1, width), shape=[None, channels, 1, width]
    )
    _, outputs, after = builder.shape(builder.node)
    out = builder.emit(
        "conv2d",
        [row],
        (batch, outputs, 1, after),
        weight=builder.weight(kernel),
        bias=optional(builder, bias, "bias"),
        stride=[1, pair(stride)[1]],
        padding=margin,
        dilation=[1, step],
        groups=groups,
        activation=None,
        residual=None,
    )
    return builder.emit("reshape", [out], shape=[None, outputs, after])


def _conv_transpose2d(
    builder: GraphBuilder,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> str:
    return builder.emit(
        "conv_transpose2d",
        [builder.value(builder[x])],
        weight=builder.weight(constant(builder, weight, "weight")),
        bias=optional(builder, bias, "bias"),
        stride=pair(stride),
        padding=pair(padding),
        output_padding=pair(output_padding),
        dilation=pair(dilation),
        groups=groups,
        activation=None,
        residual=None,
    )


def linear(builder: GraphBuilder, x: str, weight: Tensor, bias: str | None = None) -> str:
    """x W^T + bias over the last axis."""
    name = builder.weight(weight)
    return builder.emit("linear", [x], weight=name, bias=bias, activation=None, residual=None)


def _linear(builder: GraphBuilder, x: Node, weight: Node, bias: Node | None = None) -> str:
    kernel = constant(builder, weight, "weight")
    return linear(builder, builder.value(builder[x]), kernel, optional(builder, bias, "bias"))


RULES: dict[str, Callable[..., Any]] = {
    "aten.conv2d.default": _conv2d,
    "aten.conv2d.padding": _conv2d,
    "aten.conv1d.default": _conv1d,
    "aten.conv1d.padding": _conv1d,
    "aten.conv_transpose2d.input": _conv_transpose2d,
    "aten.linear.default": _linear,
    **dict.fromkeys(PADS, _pad),
}
