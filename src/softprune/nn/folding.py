"""Making layers of low rank as small as they can be stored."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from softprune.nn.low_rank import LowRankConv2d, LowRankLinear

_Module = TypeVar("_Module", bound=nn.Module)


def stored_weights(in_features: int, out_features: int, *, rank: int) -> int:
    """Weights of a matrix as `fold` stores it: as factors, or whole where that is no more.

    >>> stored_weights(9, 80, rank=9), stored_weights(80, 80, rank=8)
    (720, 1280)
    """
    return min(rank * (in_features + out_features), in_features * out_features)


@torch.no_grad()
def fold_linear(layer: LowRankLinear) -> nn.Linear | LowRankLinear:
    """The layer without m and without the directions that m has made zero.

    Args:
        layer: left as it is.

    Returns:
        Factors, or one matrix if that takes no more weights. A layer whose m is all zero keeps one direction of zeros.

    >>> layer = LowRankLinear(8, 8, learned=True)
    >>> _ = layer.m.data.copy_(torch.tensor([2.0, 0, 0, 0.5, 0, 0, 0, 0]))
    >>> folded = fold_linear(layer)
    >>> folded.rank, torch.allclose(folded.weight, layer.weight)
    (2, True)
    """
    m = layer.up.new_ones(layer.rank) if layer.m is None else layer.m.detach()
    alive = m.nonzero().flatten() if m.any() else torch.zeros(1, dtype=torch.int64, device=m.device)
    inputs, outputs, rank = layer.in_features, layer.out_features, len(alive)
    if rank * (inputs + outputs) >= inputs * outputs:
        whole = nn.Linear(inputs, outputs, bias=layer.bias is not None)
        return _filled(whole, {"weight": layer.weight, "bias": layer.bias}, layer)
    thin = LowRankLinear(inputs, outputs, rank=rank, bias=layer.bias is not None)
    return _filled(thin, {"up": (layer.up * m)[:, alive], "down": layer.down[alive], "bias": layer.bias}, layer)


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    """A copy of a model with every layer of low rank folded; nothing else changes.

    Call it on a baked model: a layer whose tensors a Sparsifier still manages is refused.

    Args:
        model: any module; left as it is.

    Raises:
        ValueError: if a layer of low rank is parametrized.

    >>> model = nn.Sequential(LowRankLinear(4, 4), nn.ReLU())
    >>> fold(model)[0]
    Linear(in_features=4, out_features=4, bias=True)
    """
    for path, module in model.named_modules():
        if isinstance(module, LowRankLinear) and "parametrizations" in module._modules:
            raise ValueError(f"{path or 'the model'} is still managed: bake the model first, then fold it")
    model = copy.deepcopy(model)
    if isinstance(model, LowRankLinear | LowRankConv2d):
        return _folded(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LowRankLinear | LowRankConv2d):
                setattr(module, name, _folded(child))
    return model


def _folded(layer: LowRankLinear | LowRankConv2d) -> nn.Module:
    if isinstance(layer, LowRankLinear):
        return fold_linear(layer).train(layer.training)
    small = fold_linear(layer.linear)
    if isinstance(small, LowRankLinear):
        return LowRankConv2d(small, stride=layer.stride).train(layer.training)
    conv = nn.Conv2d(small.in_features, small.out_features, 1, stride=layer.stride, bias=small.bias is not None)  # type: ignore[arg-type]
    return _filled(conv, {"weight": small.weight[..., None, None], "bias": small.bias}, layer).train(layer.training)


def _filled(target: _Module, values: dict[str, Tensor | None], like: nn.Module) -> _Module:
    """A module with these tensors, with the device and precision of another."""
    first = next(like.parameters())
    target.to(first.device, first.dtype)
    for name, value in values.items():
        if value is not None:
            getattr(target, name).copy_(value)
    return target
