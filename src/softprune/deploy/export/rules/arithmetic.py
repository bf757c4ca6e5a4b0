"""Sums, products and activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.graph_builder import GraphBuilder, UnsupportedError, constant
from softprune.deploy.export.rules.norm import scale_shift
from softprune.deploy.format.graph import SymbolicShape

Operand = str | Tensor | float


def combine(builder: GraphBuilder, kind: str, a: Operand, b: Operand) -> str:
    """The sum or product of a value and a value, a constant or a number."""
    if not isinstance(a, str):
        a, b = b, a
    if not isinstance(a, str):
        raise UnsupportedError("one of its operands must be computed from an input")
    if isinstance(b, str):
        return builder.emit(kind, [a, b], broadcast(builder, a, b))
    if isinstance(b, Tensor):
        return _with_constant(builder, kind, a, b)
    return builder.emit(kind, [a], builder.graph.shapes[a], value=_finite(float(b)))


def _finite(number: float) -> float:
    if not torch.isfinite(torch.tensor(number)):
        raise UnsupportedError(f"the number {number} is not in the format")
    return number


def _with_constant(builder: GraphBuilder, kind: str, value: str, constant: Tensor) -> str:
    shape = builder.graph.shapes[value]
    if constant.numel() == 1 and constant.ndim <= len(shape):
        return combine(builder, kind, value, float(constant))
    channels = _per_channel(constant, shape)
    if channels is not None:
        # A convolution in front of it can take scale and shift into its weights.
        neutral = torch.ones_like(channels) if kind == "add" else torch.zeros_like(channels)
        pair = (neutral, channels) if kind == "add" else (channels, neutral)
        return scale_shift(builder, value, *pair, shape)
    other = builder.value(constant)
    return builder.emit(kind, [value, other], broadcast(builder, value, other))


def _per_channel(constant: Tensor, shape: SymbolicShape) -> Tensor | None:
    """The numbers of a constant that has one for each channel of an image, None of any other."""
    full = (1,) * (len(shape) - constant.ndim) + tuple(constant.shape)
    if len(shape) == 4 and len(full) == 4 and full == (1, shape[1], 1, 1):
        return constant.detach().float().reshape(-1)
    return None


def broadcast(builder: GraphBuilder, a: str, b: str) -> SymbolicShape:
    """The shape of a sum of two values."""
    first, second = builder.graph.shapes[a], builder.graph.shapes[b]
    ndim = max(len(first), len(second))
    padded = [(1,) * (ndim - len(shape)) + shape for shape in (first, second)]
    return tuple(q if p == 1 else p for p, q in zip(*padded, strict=True))


def _scaled(builder: GraphBuilder, what: Any, factor: float) -> Operand:
    """factor * what."""
    if factor == 1:
        return what
    if isinstance(what, str):
        return combine(builder, "mul", what, factor)
    return what * factor


def _add(builder: GraphBuilder, a: Any, b: Any, *, alpha: float = 1) -> str:
    return combine(builder, "add", builder[a], _scaled(builder, builder[b], alpha))


def _sub(builder: GraphBuilder, a: Any, b: Any, *, alpha: float = 1) -> str:
    return combine(builder, "add", builder[a], _scaled(builder, builder[b], -alpha))


def _rsub(builder: GraphBuilder, a: Any, b: Any, alpha: float = 1) -> str:
    return _sub(builder, b, a, alpha=alpha)


def _mul(builder: GraphBuilder, a: Any, b: Any) -> str:
    return combine(builder, "mul", builder[a], builder[b])


def _div(builder: GraphBuilder, a: Any, b: Any, **more: Any) -> str:
    below = builder[b]
    if isinstance(below, str) or more.get("rounding_mode") is not None:
        raise UnsupportedError("only a division by a constant is in the format")
    return combine(builder, "mul", builder[a], 1.0 / below)


def _pow(builder: GraphBuilder, x: Node, exponent: Any) -> str:
    if exponent not in (1, 2, 3, 4):
        raise UnsupportedError(f"the power {exponent} is not in the format, only 1 to 4")
    value = out = builder.value(builder[x])
    for _ in range(int(exponent) - 1):
        out = combine(builder, "mul", out, value)
    return out


def activation(kind: str, **fields: Any) -> Callable[..., str]:
    """The rule of an activation that the format has."""

    def rule(builder: GraphBuilder, x: Node) -> str:
        return builder.emit(kind, [builder.value(builder[x])], **fields)

    return rule


def _gelu(builder: GraphBuilder, x: Node, *, approximate: str = "none") -> str:
    return builder.emit("gelu", [builder.value(builder[x])], approximate=approximate)


def _elu(builder: GraphBuilder, x: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> str:
    if input_scale != 1:
        raise UnsupportedError("an ELU that scales its input is not in the format")
    value = builder.value(builder[x])
    return str(_scaled(builder, builder.emit("elu", [value], alpha=_finite(float(alpha))), scale))


def _selu(builder: GraphBuilder, x: Node) -> str:
    return _elu(builder, x, 1.6732632423543772, 1.0507009873554805)


def _softplus(builder: GraphBuilder, x: Node, beta: float = 1.0, threshold: float = 20.0) -> str:
    if not 1e-6 <= beta <= 1e6:
        raise UnsupportedError(f"a softplus with beta {beta} is not in the format, only from 1e-6 to 1e6")
    value = builder.value(builder[x])
    return builder.emit("softplus", [value], beta=float(beta), threshold=_finite(float(threshold)))


def _clamp(builder: GraphBuilder, x: Node, low: float | None = None, high: float | None = None) -> str:
    """relu(x - low) + low is the larger, high - relu(high - x) the smaller of two."""
    out = builder.value(builder[x])
    if low == 0 and high == 6:
        return builder.emit("relu6", [out])
    if low is not None:
        above = out if low == 0 else combine(builder, "add", out, -low)
        out = builder.emit("relu", [above])
        out = out if low == 0 else combine(builder, "add", out, low)
    if high is not None:
        room = combine(builder, "add", combine(builder, "mul", out, -1.0), high)
        out = combine(builder, "add", combine(builder, "mul", builder.emit("relu", [room]), -1.0), high)
    return out


def _hardtanh(builder: GraphBuilder, x: Node, low: float = -1.0, high: float = 1.0) -> str:
    return _clamp(builder, x, low, high)


def _leaky_relu(builder: GraphBuilder, x: Node, slope: float = 0.01) -> str:
    """slope * x + (1 - slope) * relu(x)."""
    value = builder.value(builder[x])
    positive = combine(builder, "mul", builder.emit("relu", [value]), 1.0 - slope)
    return combine(builder, "add", combine(builder, "mul", value, slope), positive)


def _prelu(builder: GraphBuilder, x: Node, weight: Node) -> str:
    slope = constant(builder, weight, "weight").detach().reshape(-1)
    if slope.numel() == 1:
        return _leaky_relu(builder, x, float(slope))
    value, none = builder.value(builder[x]), torch.zeros_like(slope)
    positive = scale_shift(builder, builder.emit("relu", [value]), 1.0 - slope, none)
    return combine(builder, "add", scale_shift(builder, value, slope, none), positive)


def _absolute(builder: GraphBuilder, x: Node) -> str:
    value = builder.value(builder[x])
    negative = builder.emit("relu", [combine(builder, "mul", value, -1.0)])
    return combine(builder, "add", builder.emit("relu", [value]), negative)


RULES: dict[str, Callable[..., Any]] = {
    "aten.add.Tensor": _add,
    "aten.add.Scalar": _add,
    "aten.sub.Tensor": _sub,
    "aten.sub.Scalar": _sub,
    "aten.rsub.Scalar": _rsub,
    "aten.rsub.Tensor": _rsub,
    "aten.mul.Tensor": _mul,
    "aten.mul.Scalar": _mul,
    "aten.div.Tensor": _div,
    "aten.div.Scalar": _div,
    "aten.neg.default": lambda builder, x: combine(builder, "mul", builder[x], -1.0),
    "aten.pow.Tensor_Scalar": _pow,
    "aten.square.default": lambda builder, x: _pow(builder, x, 2),
    "aten.abs.default": _absolute,
    "aten.gelu.default": _gelu,
    "aten.elu.default": _elu,
    "aten.selu.default": _selu,
    "aten.softplus.default": _softplus,
    "aten.clamp.default": _clamp,
    "aten.clamp_min.default": _clamp,
    "aten.clamp_max.default": lambda builder, x, high: _clamp(builder, x, None, high),
    "aten.hardtanh.default": _hardtanh,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.prelu.default": _prelu,
    **{
        f"aten.{kind}.default": activation(kind)
        for kind in ("relu", "relu6", "hardswish", "hardsigmoid", "silu", "sigmoid", "tanh", "mish")
    },
}
