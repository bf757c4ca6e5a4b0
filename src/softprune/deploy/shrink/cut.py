"""Cuts: layers of torch with some of their channels taken out, in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softprune.channels.layers import CONVOLUTIONS, NORMS, TRANSPOSED


@dataclass(frozen=True)
class Cut:
    """What stays of a layer.

    Args:
        inputs: the numbers of the channels that it goes on to read, rising.
        outputs: those that it goes on to make; of a norm both are the same.
        bias: whether it gets a bias that it did not have.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bias: bool = False


def sizes(module: nn.Module) -> tuple[int, int]:
    """How many channels a layer reads and makes."""
    if isinstance(module, NORMS):
        return module.num_features, module.num_features
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    assert isinstance(module, CONVOLUTIONS + TRANSPOSED)
    return module.in_channels, module.out_channels


@torch.no_grad()
def cut(module: nn.Module, what: Cut) -> None:
    """Take the other channels out of a layer."""
    inputs, outputs = list(what.inputs), list(what.outputs)
    if isinstance(module, NORMS):
        for name in ("weight", "bias", "running_mean", "running_var"):
            _pick(module, name, outputs)
        module.num_features = len(outputs)
        return
    if what.bias and module.bias is None:
        weight = module.weight
        assert isinstance(weight, Tensor)
        module.bias = nn.Parameter(weight.new_zeros(sizes(module)[1]), requires_grad=weight.requires_grad)
    _pick(module, "bias", outputs)
    if isinstance(module, nn.Linear):
        _replace(module, "weight", module.weight[outputs][:, inputs])
        module.in_features, module.out_features = len(inputs), len(outputs)
        return
    assert isinstance(module, CONVOLUTIONS + TRANSPOSED)
    depthwise = module.groups == module.in_channels and module.groups > 1
    groups = len(inputs) if depthwise else module.groups
    if depthwise and not isinstance(module, TRANSPOSED):
        _replace(module, "weight", module.weight[outputs])
    elif depthwise:
        _replace(module, "weight", module.weight[inputs])
    else:
        _replace(module, "weight", _per_group(module, inputs, outputs))
    module.in_channels, module.out_channels, module.groups = len(inputs), len(outputs), groups


def _per_group(module: nn.Module, inputs: Sequence[int], outputs: Sequence[int]) -> Tensor:
    """Each group of a convolution has channels of its own on both sides."""
    assert isinstance(module, CONVOLUTIONS + TRANSPOSED)
    turned = isinstance(module, TRANSPOSED)
    wide_in, wide_out = module.in_channels // module.groups, module.out_channels // module.groups
    rows, row_width = (inputs, wide_in) if turned else (outputs, wide_out)
    columns, column_width = (outputs, wide_out) if turned else (inputs, wide_in)
    parts = []
    for group in range(module.groups):
        mine = [r for r in rows if r // row_width == group]
        theirs = [c % column_width for c in columns if c // column_width == group]
        parts.append(module.weight[mine][:, theirs])
    return torch.cat(parts)


def _pick(module: nn.Module, name: str, kept: list[int]) -> None:
    found = getattr(module, name)
    if found is not None:
        _replace(module, name, found[kept])


def _replace(module: nn.Module, name: str, value: Tensor) -> None:
    old = getattr(module, name)
    if isinstance(old, nn.Parameter):
        value = nn.Parameter(value.clone(), requires_grad=old.requires_grad)
    setattr(module, name, value.clone() if not isinstance(value, nn.Parameter) else value)
