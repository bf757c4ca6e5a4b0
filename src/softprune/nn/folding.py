"""Making layers of low rank as small as they can be stored."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from softprune.nn.low_rank import LowRankConv2d, LowRankLinear


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    """A copy of a model with every layer of low rank folded; nothing else changes.

    `bake` does so by itself for layers whose ranks were learnt. A layer whose tensors a Sparsifier still manages is
    refused.

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
        return model.folded()
    made: dict[nn.Module, nn.Module] = {}  # a layer that is used at two places stays one
    for module in list(model.modules()):
        for name, child in module._modules.items():  # named_children leaves out repeated ones
            if isinstance(child, LowRankLinear | LowRankConv2d):
                if child not in made:
                    made[child] = child.folded()
                module._modules[name] = made[child]
    return model


def take_ranks_(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Give the linear layers of a network the ranks that stored weights have: factors, or one matrix.

    Only layers that are stored in the other form, or with another rank, are replaced. Weights are not loaded.

    Args:
        model: built as the network was before its ranks were learnt.
        weights: what a folded network has in its state dict.

    >>> model = nn.Sequential(LowRankLinear(8, 8, learned=True))
    >>> take_ranks_(model, LowRankLinear(8, 8, rank=2).state_dict(prefix="0."))[0].rank
    2
    """
    for path, layer in list(model.named_modules()):
        if not path or not isinstance(layer, nn.Linear | LowRankLinear):
            continue
        parent, name = model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        down = weights.get(f"{path}.down")
        sizes, bias = (layer.in_features, layer.out_features), layer.bias is not None
        if down is not None and f"{path}.m" not in weights and 1 <= down.shape[0] <= min(sizes):
            if isinstance(layer, nn.Linear) or layer.m is not None or layer.rank != down.shape[0]:
                setattr(parent, name, LowRankLinear(*sizes, rank=down.shape[0], bias=bias))
        elif f"{path}.weight" in weights and isinstance(layer, LowRankLinear) and not isinstance(parent, LowRankConv2d):
            setattr(parent, name, nn.Linear(*sizes, bias=bias))
    return model
