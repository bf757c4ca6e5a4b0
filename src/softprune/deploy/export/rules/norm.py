"""Norms, means and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from softprune.deploy.export.lowering import Lowering, UnsupportedError
from softprune.deploy.export.rules.argument import axis_of, constant, length


def scale_shift(lowering: Lowering, x: str, scale: torch.Tensor, shift: torch.Tensor, shape: Any = None) -> str:
    """scale * x + shift with one number per channel (axis 1)."""
    return lowering.emit("scale_shift", [x], shape, scale=lowering.weight(scale), shift=lowering.weight(shift))


@torch.no_grad()
def _affine(
    lowering: Lowering, weight: Node | None, bias: Node | None, mean: Node, variance: Node, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch norm as scale and shift, computed in double precision."""
    centre = constant(lowering, mean, "running mean").double()
    spread = (constant(lowering, variance, "running variance").double() + eps).rsqrt()
    scale = spread if weight is None else constant(lowering, weight, "weight").double() * spread
    shift = -centre * scale
    if bias is not None:
        shift = shift + constant(lowering, bias, "bias").double()
    return scale.float(), shift.float()


def _batch_norm(
    lowering: Lowering,
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
    scale, shift = _affine(lowering, weight, bias, mean, variance, eps)
    return scale_shift(lowering, lowering.value(lowering[x]), scale, shift)


def _native_batch_norm(
    lowering: Lowering,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node,
    variance: Node,
    momentum: float,
    eps: float,
) -> list[str | None]:
    scale, shift = _affine(lowering, weight, bias, mean, variance, eps)
    return [scale_shift(lowering, lowering.value(lowering[x]), scale, shift, lowering.shape(x)), None, None]


def _layer_norm(
    lowering: Lowering,
    x: Node,
    normalized: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    *rest: Any,
) -> str:
    ones, zeros = torch.ones(list(normalized)), torch.zeros(list(normalized))
    scale = ones if weight is None else constant(lowering, weight, "weight")
    shift = zeros if bias is None else constant(lowering, bias, "bias")
    return lowering.emit(
        "layer_norm",
        [lowering.value(lowering[x])],
        weight=lowering.weight(scale.flatten()),
        bias=lowering.weight(shift.flatten()),
        eps=eps,
        axes=list(range(len(lowering.shape(x)) - len(normalized), len(lowering.shape(x)))),
    )


def _group_norm(
    lowering: Lowering,
    x: Node,
    groups: int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    *rest: Any,
) -> str:
    """A layer norm over each group, then scale and shift per channel."""
    shape = lowering.shape(x)
    channels = length(lowering, x, 1)
    inside = channels // groups * math.prod(length(lowering, x, axis) for axis in range(2, len(shape)))
    apart = lowering.emit(
        "reshape", [lowering.value(lowering[x])], (shape[0], groups, inside), shape=[None, groups, inside]
    )
    even = lowering.emit(
        "layer_norm",
        [apart],
        (shape[0], groups, inside),
        weight=lowering.weight(np.ones(inside, np.float32)),
        bias=lowering.weight(np.zeros(inside, np.float32)),
        eps=eps,
        axes=[2],
    )
    back = lowering.emit("reshape", [even], shape, shape=[None, *shape[1:]])
    if weight is None and bias is None:
        return back
    scale = torch.ones(channels) if weight is None else constant(lowering, weight, "weight")
    shift = torch.zeros(channels) if bias is None else constant(lowering, bias, "bias")
    return scale_shift(lowering, back, scale, shift)


def _instance_norm(lowering: Lowering, x: Node, weight: Node | None, bias: Node | None, *rest: Any) -> str:
    _, _, use_input_stats, _, eps = rest[:5]
    if not use_input_stats:
        raise UnsupportedError("an instance norm with running statistics is not in the format")
    return _group_norm(lowering, x, length(lowering, x, 1), weight, bias, eps)


def _mean(lowering: Lowering, x: Node, axes: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> str:  # noqa: FBT001, FBT002 - ATen's own order
    chosen = axes or range(len(lowering.shape(x)))
    fixed = sorted(axis_of(lowering, x, axis) for axis in chosen)
    for axis in fixed:
        length(lowering, x, axis)
    return lowering.emit("mean", [lowering.value(lowering[x])], axes=fixed, keepdim=keepdim)


def _sum(lowering: Lowering, x: Node, axes: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> str:  # noqa: FBT001, FBT002 - ATen's own order
    average = _mean(lowering, x, axes, keepdim)
    chosen = axes or range(len(lowering.shape(x)))
    count = math.prod(length(lowering, x, axis_of(lowering, x, axis)) for axis in chosen)
    return lowering.emit("mul", [average], value=float(count))


def _softmax(lowering: Lowering, x: Node, axis: int, *rest: Any) -> str:
    place = axis_of(lowering, x, axis)
    length(lowering, x, place)
    return lowering.emit("softmax", [lowering.value(lowering[x])], axis=place)


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
