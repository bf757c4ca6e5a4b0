"""Rules for layers with weights: they read channels and make new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from softprune.channels.channel import Flow, Reader
from softprune.channels.values import Values
from softprune.channels.walk import Walk, shape

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


RULES: dict[str, Any] = {
    "aten.conv1d.default": convolution,
    "aten.conv2d.default": convolution,
    "aten.conv3d.default": convolution,
    "aten.conv_transpose1d.default": transposed,
    "aten.conv_transpose2d.input": transposed,
    "aten.conv_transpose3d.input": transposed,
    "aten.linear.default": linear,
    "aten._native_batch_norm_legit_no_training.default": norm,
}
