"""Norms, means and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from softprune.deploy.export.graph_builder import GraphBuilder, UnsupportedError, axis_of, constant, length


def scale_shift(builder: GraphBuilder, x: str, scale: torch.Tensor, shift: torch.Tensor, shape: Any = None) -> str:
    """scale * x + shift with one number per channel (axis 1)."""
    return builder.emit("scale_shift", [x], shape, scale=builder.weight(scale), shift=builder.weight(shift))


@torch.no_grad()
def _affine(
    builder: GraphBuilder, weight: Node | None, bias: Node | None, mean: Node, variance: Node, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch norm as scale and shift, computed in double precision."""
    centre = constant(builder, mean, "running mean").double()
    spread = (constant(builder, variance, "running variance").double() + eps).rsqrt()
    scale = spread if weight is None else constant(builder, weight, "weight").double() * spread
    shift = -centre * scale
    if bias is not None:
        shift = shift + constant(builder, bias, "bias").double()
    return scale.float(), shift.float()


def _batch_norm(
    builder: GraphBuilder,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node | None,
    variance: Node | None,
    training: bool,  # noqa: FBT001 - ATen's own order
    momentum: float,
    eps: float,
    *rest: Any,
) -> str:
    if training or mean is None or variance is None:
        raise UnsupportedError("a batch norm without running statistics makes samples depend on each other")
    scale, shift = _affine(builder, weight, bias, mean, variance, eps)
    return scale_shift(builder, builder.value(builder[x]), scale, shift)


def _native_batch_norm(
    builder: GraphBuilder,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node,
    variance: Node,
    momentum: float,
    eps: float,
) -> list[str | None]:
    scale, shift = _affine(builder, weight, bias, mean, variance, eps)
    return [scale_shift(builder, builder.value(builder[x]), scale, shift, builder.shape(x)), None, None]


def _layer_norm(
    builder: GraphBuilder,
    x: Node,
    normalized: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    *rest: Any,
) -> str:
    ones, zeros = torch.ones(list(normalized)), torch.zeros(list(normalized))
    scale = ones if weight is None else constant(builder, weight, "weight")
    shift = zeros if bias is None else constant(builder, bias, "bias")
    return builder.emit(
        "layer_norm",
        [builder.value(builder[x])],
        weight=builder.weight(scale.flatten()),
        bias=builder.weight(shift.flatten()),
        eps=eps,
        axes=list(range(len(builder.shape(x)) - len(normalized), len(builder.shape(x)))),
    )


def _group_norm(
    builder: GraphBuilder,
    x: Node,
    groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    *rest: Any,
) -> str:
    """A layer norm over each group, then scale and shift per channel."""
    shape = builder.shape(x)
    channels = length(builder, x, 1)
    inside = channels // groups * math.prod(length(builder, x, axis) for axis in range(2, len(shape)))
    apart = builder.emit(
        "reshape", [builder.value(builder[x])], (shape[0], groups, inside), shape=[None, groups, inside]
    )
    even = builder.emit(
        "layer_norm",
        [apart],
        (shape[0], groups, inside),
        weight=builder.weight(np.ones(inside, np.float32)),
        bias=builder.weight(np.zeros(inside, np.float32)),
        eps=eps,
        axes=[2],
    )
    back = builder.emit("reshape", [even], shape, shape=[None, *shape[1:]])
    if weight is None and bias is None:
        return back
    scale = torch.ones(channels) if weight is None else constant(builder, weight, "weight")
    shift = torch.zeros(channels) if bias is None else constant(builder, bias, "bias")
    return scale_shift(builder, back, scale, shift)


def _instance_norm(builder: GraphBuilder, x: Node, weight: Node | None, bias: Node | None, *rest: Any) -> str:
    _, _, use_input_stats, _, eps = rest[:5]
    if not use_input_stats:
        raise UnsupportedError("an instance norm with running statistics is not in the format")
    return _group_norm(builder, x, length(builder, x, 1), weight, bias, eps)


def _mean(builder: GraphBuilder, x: Node, axes: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> str:  # noqa: FBT001, FBT002 - ATen's own order
    chosen = axes or range(len(builder.shape(x)))
    fixed = sorted(axis_of(builder, x, axis) for axis in chosen)
    for axis in fixed:
        length(builder, x, axis)
    return builder.emit("mean", [builder.value(builder[x])], axes=fixed, keepdim=keepdim)


def _sum(builder: GraphBuilder, x: Node, axes: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> str:  # noqa: FBT001, FBT002 - ATen's own order
    average = _mean(builder, x, axes, keepdim)
    chosen = axes or range(len(builder.shape(x)))
    count = math.prod(length(builder, x, axis_of(builder, x, axis)) for axis in chosen)
    return builder.emit("mul", [average], value=float(count))


def _softmax(builder: GraphBuilder, x: Node, axis: int, *rest: Any) -> str:
    place = axis_of(builder, x, axis)
    length(builder, x, place)
    return builder.emit("softmax", [builder.value(builder[x])], axis=place)


RULES: dict[str, Callable[..., Any]] = {
    "aten.batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit_no_training.default": _native_batch_norm,
    "aten.layer_norm.default": _layer_norm,
    "aten.group_norm.default": _group_norm,
    "aten.instance_norm.default": _instance_norm,
    "aten.mean.dim": _mean,
    "aten.mean.default": _mean,
    "aten.sum.dim_IntList": _sum,
    "aten.softmax.int": _softmax,
    "aten._softmax.default": _softmax,
}
