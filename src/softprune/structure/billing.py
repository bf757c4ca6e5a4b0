"""Billing: which totals units can have, and what makes them up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from softprune.budget.profiler import low_rank_uses, profile
from softprune.goals.cost import Bill, FilterBill, Gates, Stored, Sum
from softprune.goals.goal import Filters, Flops, Goal, Latency, Params, Sparsity
from softprune.goals.scan import Array
from softprune.methods.base import Method
from softprune.methods.transforms import Target
from softprune.ops.units import Units
from softprune.structure.gates import Gated, learns_rank
from softprune.structure.network import follow
from softprune.structure.removal import Ledger, Unit


def refuse_totals(goals: Sequence[Goal], units: Units, method: Method, example: Any) -> None:
    """Raise for a total that these units cannot have, and say which they can."""
    for goal in goals:
        if isinstance(goal, Filters) and units.kind != "filter":
            raise ValueError(
                f"{goal} counts filters, and the units are of kind {units.kind!r}: pass units=Units.filter"
            )
        if units.kind == "weight":
            continue
        if isinstance(goal, Latency):
            raise ValueError(
                f"{goal} is for single weights: its table has times of layers with zeros in them, not of layers that "
                f"lack units of kind {units.kind!r}; use Flops(...)"
            )
        if isinstance(goal, Sparsity) and goal.scope != "managed":
            raise ValueError(f'{goal} is a share of the units, of which there are no others: leave out scope="all"')
        if isinstance(goal, Flops) and example is None:
            raise ValueError(f"{goal} needs an example input to count multiply-adds: pass example=")
        if isinstance(goal, Params | Flops) and method.moves_masks:
            raise ValueError(
                f"{type(method).__name__} divides a number of units over the tensors, {goal} is none: "
                f"give it a Sparsity(...){', or Filters(...)' if units.kind == 'filter' else ''}"
            )
    billed = [goal for goal in goals if isinstance(goal, Params | Flops)]
    if units.kind == "filter" and billed and len(goals) > 1:
        raise ValueError(
            f"{billed[0]} is a total of the whole network, since what a filter costs depends on its neighbours: make "
            "it the only goal, or use Sparsity(...) and Filters(...), which rules can have too"
        )


class Billing:
    """Makes bills; what must be seen of the model without gates it sees when it is made.

    Args:
        model: without gates.
        units: that are decided on.
        goals: that there will be bills for.
        gates: where gates will go.
        example: an input.
    """

    def __init__(
        self, model: nn.Module, units: Units, goals: Sequence[Goal], gates: Sequence[Gated], example: Any
    ) -> None:
        self._model, self._units, self._gates, self._example = model, units, gates, example
        billed = [goal for goal in goals if isinstance(goal, Params | Flops)]
        if not billed or units.kind == "weight":
            return
        self._params = sum(p.numel() for p in model.parameters())
        if units.kind == "rank":
            return
        if units.kind == "filter":
            _refuse_example(model, example)
            self._network = follow(model, example)
            self._profile = profile(model, example)
        elif any(isinstance(goal, Flops) for goal in billed):
            paths = {module: path for path, module in model.named_modules()}
            self._profile = profile(model, example, tensors=[_named(paths[g.layer], "weight") for g in gates])

    def bill(self, goal: Goal, targets: Sequence[Target], others: Sequence[Target] = ()) -> Bill | None:
        """The bill of a goal for these importances, with the gates on; None for one that counts units.

        Args:
            goal: the total.
            targets: the importances that it is for.
            others: importances that have goals of their own.
        """
        if self._units.kind == "weight" or not isinstance(goal, Params | Flops):
            return None
        if self._units.kind == "filter":
            return self._filters(goal, targets)
        return (self._blocks if self._units.kind == "block" else self._ranks)(goal, targets, others)

    def _filters(self, goal: Params | Flops, targets: Sequence[Target]) -> Bill:
        paths = {module: path for path, module in self._model.named_modules()}
        gated = [self._gated(target) for target in targets]
        gates = Gates(
            tuple(paths[g.layer] for g in gated),
            tuple(g.shape[0] for g in gated),
            tuple(tuple(_named(paths[module], tensor) for module, tensor in g.tensors) for g in gated),
        )
        unit: Unit = "macs" if isinstance(goal, Flops) else "params" if goal.scope == "all" else "weights"
        whole = {"macs": self._profile.total_macs(), "params": self._params, "weights": self._profile.params}[unit]
        first = self._example if isinstance(self._example, torch.Tensor) else self._example[0]
        macs = {row.name: row.macs for row in self._profile}
        ledger = Ledger(self._network, self._model, macs, batch=len(first))
        return FilterBill(self._network, ledger, self._model, gates, unit, whole)

    def _blocks(self, goal: Params | Flops, targets: Sequence[Target], others: Sequence[Target]) -> Bill:
        costs = [_block_sizes(self._gated(target)) for target in targets]
        if isinstance(goal, Params):
            mine = [*targets, *others]
            managed = sum(int(_block_sizes(self._gated(target)).sum()) for target in mine)
            return Sum(costs, self._params - managed if goal.scope == "all" else 0.0)
        paths = {module: path for path, module in self._model.named_modules()}
        rows = [self._profile[_named(paths[self._gated(target).layer], "weight")] for target in targets]
        costs = [cost * (row.macs / row.params) for cost, row in zip(costs, rows, strict=True)]
        return Sum(costs, self._profile.total_macs() - sum(row.macs for row in rows))

    def _ranks(self, goal: Params | Flops, targets: Sequence[Target], others: Sequence[Target]) -> Bill:
        layers = {path: m for path, m in self._model.named_modules() if learns_rank(m)}
        paths = {layer: path for path, layer in layers.items()}
        stored = [partial(_stored, target.module) for target in targets]
        sizes = [target.shape.numel() for target in targets]
        # The other layers of low rank, each with the rank that it has; those with goals of their own count apart.
        ours = {target.module for target in (*targets, *others)}
        fixed = {path: _stored(layer, layer.down.shape[0]) for path, layer in layers.items() if layer not in ours}  # type: ignore[union-attr,index]
        if isinstance(goal, Params):
            factors = sum(p.numel() for layer in layers.values() for p in _factors(layer))
            rest = self._params - factors + sum(fixed.values()) if goal.scope == "all" else 0
            return Stored(sizes, stored, rest)
        uses = low_rank_uses(self._model, self._example, layers)
        for target in others:
            fixed[paths[target.module]] = _stored(target.module, target.shape.numel())
        rest = uses.other_macs + sum(cost * uses.vectors[path] for path, cost in fixed.items())
        each = [uses.vectors[paths[target.module]] for target in targets]
        return Stored(sizes, [partial(_times, one, use) for one, use in zip(stored, each, strict=True)], rest)

    def _gated(self, target: Target) -> Gated:
        return next(g for g in self._gates if g.layer._modules.get("importance") is target.module)


def _refuse_example(model: nn.Module, example: Any) -> None:
    if any(p.device.type == "meta" for p in model.parameters()):
        raise ValueError(
            "the model is on the meta device, where its channels cannot be followed: load the weights first"
        )
    if isinstance(example, Mapping):
        raise ValueError(
            "to foresee what shrinking leaves, pass the example as a tensor or a tuple of tensors, not by names"
        )


def _named(path: str, tensor: str) -> str:
    return f"{path}.{tensor}" if path else tensor


def _block_sizes(gated: Gated) -> Array:
    """The weights of each block; those at the edges are smaller."""
    weight: Any = gated.layer.weight
    sides = [
        np.diff(np.minimum(np.arange(count + 1) * size, length))
        for count, size, length in zip(gated.shape, gated.block, weight.shape[:2], strict=True)
    ]
    sizes: Array = np.outer(*sides).reshape(-1) * math.prod(weight.shape[2:])
    return sizes


def _stored(layer: Any, rank: int) -> int:
    return int(layer.stored_weights(rank))


def _times(stored: Any, uses: int, rank: int) -> int:
    return int(stored(rank) * uses)


def _factors(layer: Any) -> list[nn.Parameter]:
    return [p for p in (layer.up, layer.down, layer.m) if p is not None]
