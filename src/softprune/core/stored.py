"""Stored parameters: how many numbers a network has when what is pruned is no longer kept."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from softprune.core.gate import Gate, Importance, gated, learns_rank
from softprune.core.parametrization import raw_parameter
from softprune.ops.units import Units


@torch.no_grad()
def stored_params(model: nn.Module, units: Units, importances: Mapping[nn.Module, Tensor]) -> int | None:
    """Parameters of a managed network, biases and norms included, as they will be stored.

    Blocks are stored by their weights; layers of low rank say themselves what they take.

    Args:
        model: with its gates.
        units: that are managed.
        importances: by the module that holds them; those that are zero are pruned.

    Returns:
        None where it cannot be told: what a filter costs shows when the network is shrunk, and what a single weight
        costs depends on the format.
    """
    if units.kind == "rank":
        layers = [m for m in model.modules() if learns_rank(m)]
        inside = {p for layer in layers for p in layer.parameters()}
        kept = sum(_of_rank(layer, importances.get(layer)) for layer in layers)
    elif units.kind == "block":
        places = gated(model)
        inside = {p for m in model.modules() if isinstance(m, Importance) for p in m.parameters()}
        inside |= {raw_parameter(module, tensor) for module, tensor in places}
        kept = sum(_of_blocks(module, tensor, importances) for module, tensor in places)
    else:
        return None
    return kept + sum(p.numel() for p in model.parameters() if p not in inside)


def _of_rank(layer: nn.Module, m: Tensor | None) -> int:
    held = getattr(layer, "m", None) if m is None else m
    directions = layer.rank if held is None else int(torch.count_nonzero(held))
    return int(layer.stored_params(directions))  # type: ignore[operator]


def _of_blocks(module: nn.Module, tensor: str, importances: Mapping[nn.Module, Tensor]) -> int:
    """Weights behind gates that are not closed."""
    gate = module.parametrizations[tensor][0]  # type: ignore[index,union-attr]
    assert isinstance(gate, Gate)
    raw = raw_parameter(module, tensor)
    spread = gate.spread(importances.get(gate.owner, gate.importances), raw)
    return int(torch.count_nonzero(spread.expand_as(raw)))
