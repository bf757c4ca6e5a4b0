"""Convolutions, transposed convolutions and linear layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.lowering import Lowering, UnsupportedError
from softprune.deploy.export.rules.argument import constant, optional, pair
from softprune.deploy.export.rules.padding import Frame, frame_around

Sizes = int | Sequence[int]


def _conv2d(
    lowering: Lowering,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> str:
    kernel = constant(lowering, weight, "weight")
    name, frame = frame_around(lowering, x)
    frame = frame + _margins(padding, kernel, pair(dilation))
    kernel, margin = _symmetric(kernel, frame, pair(dilation))
    return lowering.emit(
        "conv2d",
        [name],
        weight=lowering.weight(kernel),
        bias=optional(lowering, bias, "bias"),
        stride=pair(stride),
        padding=margin,
        dilation=pair(dilation),
        groups=groups,
        activation=None,
        residual=None,
    )


def _margins(padding: Sizes | str, kernel: Tensor, dilation: list[int]) -> Frame:
    if not isinstance(padding, str):
        rows, columns = pair(padding)
        return Frame(rows, rows, columns, columns)
    if padding == "valid":
        return Frame(0, 0, 0, 0)
    rows, columns = (d * (k - 1) for d, k in zip(dilation, kernel.shape[2:], strict=True))
    return Frame(rows // 2, rows - rows // 2, columns // 2, columns - columns // 2)


def _symmetric(kernel: Tensor, frame: Frame, dilation: list[int]) -> tuple[Tensor, list[int]]:
    """The same convolution with as much padding in front as behind.

    A kernel that has zeros where the larger padding would let it see more computes the same, and zeros cost nothing.
    """
    margin = [max(frame.top, frame.bottom), max(frame.left, frame.right)]
    grown = Frame(margin[0] - frame.top, margin[0] - frame.bottom, margin[1] - frame.left, margin[1] - frame.right)
    if not any(grown):
        return kernel, margin
    for more, step in ((grown.top + grown.bottom, dilation[0]), (grown.left + grown.right, dilation[1])):
        if more and step != 1:
            raise UnsupportedError("uneven padding together with a dilation is not in the format")
    with torch.no_grad():
        return torch.nn.functional.pad(kernel, (grown.left, grown.right, grown.top, grown.bottom)), margin


def _conv1d(
    lowering: Lowering,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> str:
    """One row of pixels."""
    batch, channels, width = lowering.shape(x)
    kernel = constant(lowering, weight, "weight").unsqueeze(2)
    step = pair(dilation)[1]
    frame = _margins(padding if isinstance(padding, str) else [0, pair(padding)[1]], kernel, [1, step])
    kernel, margin = _symmetric(kernel, frame, [1, step])
    row = lowering.emit(
        "reshape", [lowering.value(lowering[x])], (batch, channels, 1, width), shape=[None, channels, 1, width]
    )
    _, outputs, after = lowering.shape(lowering.node)
    out = lowering.emit(
        "conv2d",
        [row],
        (batch, outputs, 1, after),
        weight=lowering.weight(kernel),
        bias=optional(lowering, bias, "bias"),
        stride=[1, pair(stride)[1]],
        padding=margin,
        dilation=[1, step],
        groups=groups,
        activation=None,
        residual=None,
    )
    return lowering.emit("reshape", [out], shape=[None, outputs, after])


def _conv_transpose2d(
    lowering: Lowering,
    x: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> str:
    return lowering.emit(
        "conv_transpose2d",
        [lowering.value(lowering[x])],
        weight=lowering.weight(constant(lowering, weight, "weight")),
        bias=optional(lowering, bias, "bias"),
        stride=pair(stride),
        padding=pair(padding),
        output_padding=pair(output_padding),
        dilation=pair(dilation),
        groups=groups,
        activation=None,
        residual=None,
    )


def linear(lowering: Lowering, x: str, weight: Tensor, bias: str | None = None) -> str:
    """x W^T + bias over the last axis."""
    name = lowering.weight(weight)
    return lowering.emit("linear", [x], weight=name, bias=bias, activation=None, residual=None)


def _linear(lowering: Lowering, x: Node, weight: Node, bias: Node | None = None) -> str:
    kernel = constant(lowering, weight, "weight")
    return linear(lowering, lowering.value(lowering[x]), kernel, optional(lowering, bias, "bias"))


RULES: dict[str, Callable[..., Any]] = {
    "aten.conv2d.default": _conv2d,
    "aten.conv2d.padding": _conv2d,
    "aten.conv1d.default": _conv1d,
    "aten.conv1d.padding": _conv1d,
    "aten.conv_transpose2d.input": _conv_transpose2d,
    "aten.linear.default": _linear,
}
