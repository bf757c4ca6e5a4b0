"""Rules for operations that treat every number by itself, or number by number with another tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from softprune.structure.channels import Flow, Reader, Values, Walk, shape

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


ELEMENTWISE: dict[str, Any] = {f"aten.{name}.default": alone for name in ALONE}
ELEMENTWISE |= {f"aten.{name}.{kind}": pair for name in WITH_NUMBER for kind in ("Tensor", "Scalar", "Tensor_Scalar")}
ELEMENTWISE |= {f"aten.{name}.{kind}": pair for name in PAIRS for kind in ("Tensor", "default")}


# Rules for layers with weights: they read channels and make new ones.


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def convolution(walk: Walk, node: Node) -> Flow | None:
    """aten.conv{1,2,3}d(x, weight, bias, stride, padding, dilation, groups)."""
    arguments = [*node.args, *([None] * 7)][:7]
    padding, groups = arguments[4] or [0], int(arguments[6] or 1)  # type: ignore[arg-type,call-overload]
    path = _owner(walk, node, CONVOLUTIONS)
    if path is None:
        return None
    outputs, inputs = shape(node.args[1])[:2]
    x = walk.read(node.args[0], 1, count=inputs * groups)
    padded = padding != "valid" and any(padding)  # type: ignore[arg-type,union-attr]
    return _made(walk, Layer(path, "convolution", outputs, groups, exact=not padded), x, bias=arguments[2])


def transposed(walk: Walk, node: Node) -> Flow | None:
    """aten.conv_transpose{1,2d,3d}(x, weight, bias, stride, padding, output_padding, groups, dilation)."""
    arguments = [*node.args, *([None] * 8)][:8]
    groups = int(arguments[6] or 1)  # type: ignore[arg-type,call-overload]
    path = _owner(walk, node, TRANSPOSED)
    if path is None:
        return None
    inputs, outputs = shape(node.args[1])[:2]
    x = walk.read(node.args[0], 1, count=inputs)
    # At the edges fewer taps reach an output.
    return _made(walk, Layer(path, "transposed", outputs * groups, groups, exact=False), x, bias=arguments[2])


def linear(walk: Walk, node: Node) -> Flow | None:
    """aten.linear(x, weight, bias)."""
    path = _owner(walk, node, (nn.Linear,))
    if path is None:
        return None
    outputs, inputs = shape(node.args[1])
    x = walk.read(node.args[0], len(shape(node)) - 1, count=inputs)
    return _made(walk, Layer(path, "linear", outputs), x, bias=node.args[2] if len(node.args) > 2 else None)


def norm(walk: Walk, node: Node) -> Flow | None:
    """aten._native_batch_norm_legit_no_training(x, weight, bias, mean, variance, momentum, eps)."""
    weight, bias, mean, variance = (walk.name(place) for place in node.args[1:5])
    if mean is None or variance is None:
        walk.stay(node)
        return None
    path = mean.rpartition(".")[0]
    if not isinstance(walk.model.get_submodule(path), NORMS):
        walk.stay(node, f"{path} is no batch norm of torch")
        return None
    count, eps = shape(node.args[3])[0], float(node.args[6])  # type: ignore[arg-type]
    x = walk.read(node.args[0], 1, count=count)

    def made(values: Values, held: Tensor) -> Tensor:
        scale = held.new_ones(count) if weight is None else values.held(weight)
        shift = held.new_zeros(count) if bias is None else values.held(bias)
        usual = (held - values.held(mean)) / (values.held(variance) + eps).sqrt() * scale + shift
        return torch.where(scale == 0, shift, usual)

    walk.use(Reader(path, "norm", x.channels, x.constant, x.channels))
    return Flow(1, x.channels, walk.tape.note(made, x.constant))


@dataclass(frozen=True)
class Layer:
    """A layer that reads channels and makes others; fields as of :class:`Reader`, with the number of its outputs."""

    path: str
    kind: str
    count: int
    groups: int = 1
    exact: bool = True


def _owner(walk: Walk, node: Node, kinds: tuple[type[nn.Module], ...]) -> str | None:
    """The path of the layer whose weight this is, if it is one that can be cut."""
    name = walk.name(node.args[1])
    if name is None:
        walk.stay(node, "its weight is computed")
        return None
    path, _, tensor = name.rpartition(".")
    module = walk.model.get_submodule(path)
    if tensor != "weight" or not isinstance(module, kinds):
        walk.stay(node, f"{name} is not the weight of a layer of torch")
        return None
    return path


def _made(walk: Walk, layer: Layer, x: Flow, *, bias: Any) -> Flow:
    """What a layer makes."""
    count, groups = layer.count, layer.groups
    if groups > 1 and groups == len(x.channels):
        outputs = [channel for channel in x.channels for _ in range(count // groups)]
    else:
        outputs = walk.channels.fresh(count)
    reader = Reader(layer.path, layer.kind, x.channels, x.constant, outputs, groups, layer.exact)
    walk.use(reader)
    shift = walk.name(bias)

    def made(values: Values, held: Tensor) -> Tensor:
        answer = values.answer(reader, held)
        return answer if shift is None else answer + values.held(shift)

    return Flow(x.axis, outputs, walk.tape.note(made, x.constant))


LAYERS: dict[str, Any] = {
    "aten.conv1d.default": convolution,
    "aten.conv2d.default": convolution,
    "aten.conv3d.default": convolution,
    "aten.conv_transpose1d.default": transposed,
    "aten.conv_transpose2d.input": transposed,
    "aten.conv_transpose3d.input": transposed,
    "aten.linear.default": linear,
    "aten._native_batch_norm_legit_no_training.default": norm,
}
