"""Sums, products, activations, norms, means and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.translate import GraphBuilder, Rules, UnsupportedError, aten
from softprune.deploy.format.graph import SymbolicShape

# Sums and products.


def add(builder: GraphBuilder, a: Any, b: Any, alpha: float = 1) -> str:
    """a + alpha b, of two values, or of a value and a constant or a number."""
    b = builder[b]
    if alpha != 1:
        b = mul(builder, b, alpha) if isinstance(b, str) else b * alpha
    return _combine(builder, "add", builder[a], b)


def mul(builder: GraphBuilder, a: Any, b: Any) -> str:
    """a b, of two values, or of a value and a constant or a number."""
    return _combine(builder, "mul", builder[a], builder[b])


def scale_shift(builder: GraphBuilder, x: Any, scale: Tensor, shift: Tensor, shape: SymbolicShape | None = None) -> str:
    """scale x + shift with one number per channel (axis 1)."""
    return builder.emit("scale_shift", [x], shape, scale=builder.weight(scale), shift=builder.weight(shift))


def _combine(builder: GraphBuilder, kind: str, a: Any, b: Any) -> str:
    if not isinstance(a, str):
        a, b = b, a
    if not isinstance(a, str):
        raise UnsupportedError("one of its operands must be computed from an input")
    shape = builder.shape(a)
    if isinstance(b, Tensor) and b.numel() == 1 and b.ndim <= len(shape):
        b = float(b)
    if isinstance(b, Tensor) and len(shape) == 4 and (1,) * (4 - b.ndim) + tuple(b.shape) == (1, shape[1], 1, 1):
        # One number per channel: a convolution in front of it can take scale and shift into its weights.
        channels = b.detach().float().reshape(-1)
        if kind == "add":
            return scale_shift(builder, a, torch.ones_like(channels), channels, shape)
        return scale_shift(builder, a, channels, torch.zeros_like(channels), shape)
    if isinstance(b, str | Tensor):
        b = builder.value(b)
        return builder.emit(kind, [a, b], _broadcast(shape, builder.shape(b)))
    return builder.emit(kind, [a], shape, value=_finite(float(b)))


def _broadcast(*shapes: SymbolicShape) -> SymbolicShape:
    """The shape of a sum of two values."""
    ndim = max(map(len, shapes))
    first, second = ((1,) * (ndim - len(shape)) + shape for shape in shapes)
    return tuple(q if p == 1 else p for p, q in zip(first, second, strict=True))


def _finite(number: float) -> float:
    if not torch.isfinite(torch.tensor(number)):
        raise UnsupportedError(f"the number {number} is not in the format")
    return number


def _sub(builder: GraphBuilder, a: Any, b: Any, alpha: float = 1) -> str:
    return add(builder, a, b, -alpha)


def _div(builder: GraphBuilder, a: Any, b: Any) -> str:
    below = builder[b]
    if isinstance(below, str):
        raise UnsupportedError("only a division by a constant is in the format")
    return mul(builder, a, 1.0 / below)


def _pow(builder: GraphBuilder, x: Node, exponent: Any) -> str:
    if exponent not in (1, 2, 3, 4):
        raise UnsupportedError(f"the power {exponent} is not in the format, only 1 to 4")
    value = out = builder.value(x)
    for _ in range(int(exponent) - 1):
        out = mul(builder, out, value)
    return out


# Activations.


def _elu(builder: GraphBuilder, x: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> str:
    if input_scale != 1:
        raise UnsupportedError("an ELU that scales its input is not in the format")
    out = builder.emit("elu", [x], alpha=_finite(float(alpha)))
    return out if scale == 1 else mul(builder, out, scale)


def _softplus(builder: GraphBuilder, x: Node, beta: float = 1.0, threshold: float = 20.0) -> str:
    if not 1e-6 <= beta <= 1e6:
        raise UnsupportedError(f"a softplus with beta {beta} is not in the format, only from 1e-6 to 1e6")
    return builder.emit("softplus", [x], beta=float(beta), threshold=_finite(float(threshold)))


def _clamp(builder: GraphBuilder, x: Node, low: float | None = None, high: float | None = None) -> str:
    """relu(x - low) + low is the larger, high - relu(high - x) the smaller of two."""
    out = builder.value(x)
    if low == 0 and high == 6:
        return builder.emit("relu6", [out])
    if low == 0:
        out = builder.emit("relu", [out])
    elif low is not None:
        out = add(builder, builder.emit("relu", [add(builder, out, -low)]), low)
    if high is not None:
        room = add(builder, mul(builder, out, -1.0), high)
        out = add(builder, mul(builder, builder.emit("relu", [room]), -1.0), high)
    return out


def _leaky_relu(builder: GraphBuilder, x: Node, slope: float = 0.01) -> str:
    """slope * x + (1 - slope) * relu(x)."""
    positive = mul(builder, builder.emit("relu", [x]), 1.0 - slope)
    return add(builder, mul(builder, x, slope), positive)


def _prelu(builder: GraphBuilder, x: Node, weight: Node) -> str:
    slope = builder.constant(weight, "weight").detach().reshape(-1)
    if slope.numel() == 1:
        return _leaky_relu(builder, x, float(slope))
    none = torch.zeros_like(slope)
    positive = scale_shift(builder, builder.emit("relu", [x]), 1.0 - slope, none)
    return add(builder, scale_shift(builder, x, slope, none), positive)


def _abs(builder: GraphBuilder, x: Node) -> str:
    negative = builder.emit("relu", [mul(builder, x, -1.0)])
    return add(builder, builder.emit("relu", [x]), negative)


def _activation(kind: str) -> Callable[..., str]:
    return lambda builder, x: builder.emit(kind, [x])


# Norms, means and softmax.


@torch.no_grad()
def _batch_norm(
    builder: GraphBuilder,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node | None,
    variance: Node | None,
    training: bool,
    momentum: float,
    eps: float,
    *rest: Any,
) -> str:
    """As scale and shift, computed in double precision."""
    if training or mean is None or variance is None:
        raise UnsupportedError("a batch norm without running statistics makes samples depend on each other")
    centre = builder.constant(mean, "running mean").double()
    scale = (builder.constant(variance, "running variance").double() + eps).rsqrt()
    if weight is not None:
        scale = builder.constant(weight, "weight").double() * scale
    shift = -centre * scale
    if bias is not None:
        shift = shift + builder.constant(bias, "bias").double()
    return scale_shift(builder, x, scale.float(), shift.float(), builder.shape(x))


def _native_batch_norm(builder: GraphBuilder, x: Node, *rest: Any) -> list[str | None]:
    return [_batch_norm(builder, x, *rest[:4], False, *rest[4:]), None, None]


def _affine(builder: GraphBuilder, weight: Node | None, bias: Node | None, size: int) -> tuple[Tensor, Tensor]:
    scale = torch.ones(size) if weight is None else builder.constant(weight, "weight").flatten()
    shift = torch.zeros(size) if bias is None else builder.constant(bias, "bias").flatten()
    return scale, shift


def _normalised(builder: GraphBuilder, x: Any, scale: Tensor, shift: Tensor, eps: float, axes: int) -> str:
    """A layer norm over the last axes of a node or a value."""
    shape = builder.shape(x)
    names = {"weight": builder.weight(scale), "bias": builder.weight(shift)}
    return builder.emit("layer_norm", [x], shape, **names, eps=eps, axes=[*range(len(shape) - axes, len(shape))])


def _layer_norm(
    builder: GraphBuilder,
    x: Node,
    normalized: Sequence[int],
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    *rest: Any,
) -> str:
    scale, shift = _affine(builder, weight, bias, math.prod(normalized))
    return _normalised(builder, x, scale, shift, eps, len(normalized))


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
    shape, channels = builder.shape(x), builder.length(x, 1)
    inside = channels // groups * math.prod(builder.length(x, axis) for axis in range(2, len(shape)))
    apart = builder.reshape(x, (shape[0], groups, inside))
    out = builder.reshape(_normalised(builder, apart, torch.ones(inside), torch.zeros(inside), eps, 1), shape)
    if weight is None and bias is None:
        return out
    return scale_shift(builder, out, *_affine(builder, weight, bias, channels))


def _instance_norm(builder: GraphBuilder, x: Node, weight: Node | None, bias: Node | None, *rest: Any) -> str:
    _, _, use_input_stats, _, eps = rest[:5]
    if not use_input_stats:
        raise UnsupportedError("an instance norm with running statistics is not in the format")
    return _group_norm(builder, x, builder.length(x, 1), weight, bias, eps)


def _mean(builder: GraphBuilder, x: Node, axes: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> str:
    fixed = sorted(builder.axis(x, axis) for axis in axes or range(len(builder.shape(x))))
    for axis in fixed:
        builder.length(x, axis)
    return builder.emit("mean", [x], axes=fixed, keepdim=keepdim)


def _sum(builder: GraphBuilder, x: Node, axes: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> str:
    average = _mean(builder, x, axes, keepdim)
    count = math.prod(builder.length(x, axis) for axis in axes or range(len(builder.shape(x))))
    return mul(builder, average, float(count))


def _softmax(builder: GraphBuilder, x: Node, axis: int, *rest: Any) -> str:
    builder.length(x, axis)
    return builder.emit("softmax", [x], axis=builder.axis(x, axis))


RULES: Rules = {
    **aten(add, "add.Tensor", "add.Scalar"),
    **aten(_sub, "sub.Tensor", "sub.Scalar"),
    **aten(lambda builder, a, b, alpha=1: _sub(builder, b, a, alpha), "rsub.Tensor", "rsub.Scalar"),
    **aten(mul, "mul.Tensor", "mul.Scalar"),
    **aten(_div, "div.Tensor", "div.Scalar"),
    **aten(lambda builder, x: mul(builder, x, -1.0), "neg"),
    **aten(_pow, "pow.Tensor_Scalar"),
    **aten(lambda builder, x: _pow(builder, x, 2), "square"),
    **aten(_abs, "abs"),
    **{
        f"aten.{kind}.default": _activation(kind)
        for kind in ("relu", "relu6", "hardswish", "hardsigmoid", "silu", "sigmoid", "tanh", "mish")
    },
    **aten(lambda builder, x, approximate="none": builder.emit("gelu", [x], approximate=approximate), "gelu"),
    **aten(_elu, "elu"),
    **aten(lambda builder, x: _elu(builder, x, 1.6732632423543772, 1.0507009873554805), "selu"),
    **aten(_softplus, "softplus"),
    **aten(_clamp, "clamp", "clamp_min"),
    **aten(lambda builder, x, high: _clamp(builder, x, None, high), "clamp_max"),
    **aten(lambda builder, x, low=-1.0, high=1.0: _clamp(builder, x, low, high), "hardtanh"),
    **aten(_leaky_relu, "leaky_relu"),
    **aten(_prelu, "prelu"),
    **aten(_batch_norm, "batch_norm"),
    **aten(_native_batch_norm, "_native_batch_norm_legit_no_training"),
    **aten(_layer_norm, "layer_norm"),
    **aten(_group_norm, "group_norm"),
    **aten(_instance_norm, "instance_norm"),
    **aten(_mean, "mean", "mean.dim"),
    **aten(_sum, "sum.dim_IntList"),
    **aten(_softmax, "softmax.int", "_softmax"),
}
