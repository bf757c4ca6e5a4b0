"""Rules for operations that treat every number by itself, or number by number with another tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from softprune.channels.channel import Flow
from softprune.channels.walk import Walk, shape

ALONE = (
    "relu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "silu", "gelu", "sigmoid", "tanh", "leaky_relu",
    "elu", "selu", "celu", "mish", "softplus", "neg", "abs", "exp", "sqrt", "square", "clamp", "clamp_min",
    "clamp_max", "clone", "dropout", "feature_dropout", "alpha_dropout", "alias", "detach", "contiguous",
    "lift_fresh_copy",
)  # fmt: skip
WITH_NUMBER = ("add", "sub", "mul", "div", "pow")
PAIRS = ("add", "sub", "mul", "div", "maximum", "minimum")


def alone(walk: Walk, node: Node) -> Flow | None:
    """One tensor, and numbers."""
    x = walk.flow(node.args[0])
    if x is None or any(n is not node.args[0] for n in node.all_input_nodes):
        walk.stay(node)
        return None
    made = walk.tape.note(lambda _, held: _apply(node, held, *node.args[1:]), x.constant)
    return Flow(x.axis, x.channels, made)


def pair(walk: Walk, node: Node) -> Flow | None:
    """Two tensors, or a tensor and a number."""
    first, second = node.args[:2]
    if not isinstance(first, Node) or not isinstance(second, Node):
        return _with_number(walk, node)
    a, b = walk.flow(first), walk.flow(second)
    if a is None or b is None or len(shape(first)) != len(shape(second)) or a.axis != b.axis:
        walk.stay(node, "one of the two is not followed")
        return None
    if len(a.channels) != len(b.channels):
        return _spread(walk, node, a, b)
    walk.channels.join(a.channels, b.channels)
    made = walk.tape.note(lambda _, one, other: _together(node, one, other), a.constant, b.constant)
    return Flow(a.axis, a.channels, made)


def _with_number(walk: Walk, node: Node) -> Flow | None:
    x = next((walk.flow(n) for n in node.all_input_nodes), None)
    if x is None or len(node.all_input_nodes) != 1:
        walk.stay(node)
        return None
    made = walk.tape.note(
        lambda _, held: _apply(node, *(held if isinstance(a, Node) else a for a in node.args)), x.constant
    )
    return Flow(x.axis, x.channels, made)


def _spread(walk: Walk, node: Node, a: Flow, b: Flow) -> Flow | None:
    """One channel that acts on all of the other tensor."""
    narrow, wide = (a, b) if len(a.channels) == 1 else (b, a)
    if len(narrow.channels) != 1:
        walk.stay(node, "the two have different numbers of channels")
        return None
    walk.channels.pin(narrow.channels, f"{node.name}: it acts on all channels of another tensor")
    count = len(wide.channels)
    made = walk.tape.note(
        lambda _, one, other: _together(node, one.expand(count), other.expand(count)), a.constant, b.constant
    )
    return Flow(wide.axis, wide.channels, made)


def _together(node: Node, a: Tensor, b: Tensor) -> Tensor:
    made = _apply(node, a, b, *node.args[2:])
    if str(node.target).startswith("aten.mul"):
        # Whatever the other is: activations are finite.
        made = torch.where((a == 0) | (b == 0), 0.0, made)
    return made


def _apply(node: Node, *arguments: Any) -> Tensor:
    made: Tensor = node.target(*arguments, **node.kwargs)  # type: ignore[operator]
    for one in arguments:
        if isinstance(one, Tensor):
            made = torch.where(one.isnan(), torch.nan, made)
    return made


RULES: dict[str, Any] = {f"aten.{name}.default": alone for name in ALONE}
RULES |= {f"aten.{name}.{kind}": pair for name in WITH_NUMBER for kind in ("Tensor", "Scalar", "Tensor_Scalar")}
RULES |= {f"aten.{name}.{kind}": pair for name in PAIRS for kind in ("Tensor", "default")}
