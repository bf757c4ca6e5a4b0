"""Rules for layers with weights: they read channels and make new ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from softprune.deploy.shrink.channel import Flow, Reader
from softprune.deploy.shrink.walk import Walk

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
    weight = walk.held(node.args[1])
    assert weight is not None
    x = walk.read(node.args[0], 1, count=weight.shape[1] * groups)
    padded = padding != "valid" and any(padding)  # type: ignore[arg-type,union-attr]
    return _made(walk, path, "convolution", x, weight, walk.held(arguments[2]), groups=groups, exact=not padded)


def transposed(walk: Walk, node: Node) -> Flow | None:
    """aten.conv_transpose{1,2d,3d}(x, weight, bias, stride, padding, output_padding, groups, dilation)."""
    arguments = [*node.args, *([None] * 8)][:8]
    groups = int(arguments[6] or 1)  # type: ignore[arg-type,call-overload]
    path = _owner(walk, node, TRANSPOSED)
    if path is None:
        return None
    weight = walk.held(node.args[1])
    assert weight is not None
    x = walk.read(node.args[0], 1, count=weight.shape[0])
    turned = outputs_first(weight, groups)
    # At the edges fewer taps reach an output.
    return _made(walk, path, "transposed", x, turned, walk.held(arguments[2]), groups=groups, exact=False)


def linear(walk: Walk, node: Node) -> Flow | None:
    """aten.linear(x, weight, bias)."""
    path = _owner(walk, node, (nn.Linear,))
    if path is None:
        return None
    weight = walk.held(node.args[1])
    assert weight is not None
    axis = len(node.meta["val"].shape) - 1
    x = walk.read(node.args[0], axis, count=weight.shape[1])
    bias = walk.held(node.args[2]) if len(node.args) > 2 else None
    return _made(walk, path, "linear", x, weight, bias)


def norm(walk: Walk, node: Node) -> Flow | None:
    """aten._native_batch_norm_legit_no_training(x, weight, bias, mean, variance, momentum, eps)."""
    mean, variance = walk.held(node.args[3]), walk.held(node.args[4])
    name = walk.name(node.args[3])
    if mean is None or variance is None or name is None:
        walk.stay(node)
        return None
    path = name.rpartition(".")[0]
    if not isinstance(walk.model.get_submodule(path), NORMS):
        walk.stay(node, f"{path} is no batch norm of torch")
        return None
    x = walk.read(node.args[0], 1, count=len(mean))
    weight, bias = (walk.held(node.args[place]) for place in (1, 2))
    scale = torch.ones_like(mean) if weight is None else weight
    shift = torch.zeros_like(mean) if bias is None else bias
    usual = (x.constant - mean) / (variance + float(node.args[6])).sqrt() * scale + shift  # type: ignore[arg-type]
    walk.use(Reader(path, "norm", x.channels, x.constant, x.channels))
    return Flow(1, x.channels, torch.where(scale == 0, shift, usual))


def outputs_first(weight: Tensor, groups: int) -> Tensor:
    """The weights of a transposed convolution as those of a convolution: outputs, then inputs of the group."""
    parts = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:]).transpose(1, 2)
    return parts.reshape(-1, *parts.shape[2:])


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


def _made(
    walk: Walk,
    path: str,
    kind: str,
    x: Flow,
    weight: Tensor,
    bias: Tensor | None,
    *,
    groups: int = 1,
    exact: bool = True,
) -> Flow:
    """What a layer makes; its weights are given outputs first, inputs of the group second."""
    count = weight.shape[0]
    if groups > 1 and groups == len(x.channels):
        outputs = [channel for channel in x.channels for _ in range(count // groups)]
    else:
        outputs = walk.channels.fresh(count)
    walk.use(Reader(path, kind, x.channels, x.constant, outputs, groups, exact))
    constant = _constant(x.constant.view(groups, -1), weight, groups=groups, exact=exact)
    shift = torch.zeros(count, dtype=torch.double) if bias is None else bias
    axis = x.axis
    return Flow(axis, outputs, constant + shift)


def _constant(inputs: Tensor, weight: Tensor, *, groups: int, exact: bool) -> Tensor:
    """What each output is without the bias, if all inputs that it listens to are constant."""
    taps = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], math.prod(weight.shape[2:]))
    heard = taps.abs().amax(3) > 0
    known = inputs[:, None].expand_as(heard)
    parts = torch.where(heard, taps.sum(3) * known, 0.0)
    if not exact:
        parts = torch.where(heard & (known != 0), torch.nan, parts)
    return parts.sum(2).flatten()


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
