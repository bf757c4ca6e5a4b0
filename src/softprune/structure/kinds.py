"""The kinds of units: weights, filters, blocks, ranks. Each knows its gates, its cost and what is stored of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from softprune.budget.profiler import low_rank_uses, profile, prunable_tensors, sandbox, weight_names
from softprune.budget.units import Units
from softprune.core.parametrization import raw_parameter, transform_of
from softprune.goals.base import Goal
from softprune.goals.scan import Array
from softprune.methods.base import Method
from softprune.methods.transforms import Target
from softprune.structure.gates import IMPORTANCE, VECTOR, Gated, Importance, gated, learns_rank, tensor_name
from softprune.structure.joint_cost import FilterCost, JointCost, StoredUnits, SumOfUnits
from softprune.structure.network import LayerCosts, follow
from softprune.structure.rules import CONVOLUTIONS

# A tensor's name, its module, its attribute there.
NamedSite: TypeAlias = tuple[str, nn.Module, str]
# The joint cost of a goal, of the importances that it is for, and of others that have goals of their own.
JointCostOf: TypeAlias = Callable[[Goal, Sequence[Target], Sequence[Target]], "JointCost | None"]


class UnitKind:
    """What is kept or pruned as a whole, and where it is in a model."""

    # Goals that are numbers of these units.
    _numbers = "Sparsity(...)"

    def __init__(self, units: Units) -> None:
        self.units = units  # as the user gave them

    def check(self, model: nn.Module, goals: Sequence[Goal], method: Method, example: Any) -> None:
        """Refuse goals, methods and models that these units cannot have."""
        if any(p.device.type == "meta" for p in model.parameters()):
            raise ValueError(
                f"{self.units.text} units need weights that are there: give the model its values, then sparsify"
            )
        for goal in goals:
            goal.check_units(self.units, example=example is not None)
            if goal.measure is not None and method.moves_masks:
                raise ValueError(
                    f"{type(method).__name__} divides a number of units over the tensors, {goal} is none: "
                    f"give it a {self._numbers}"
                )

    def gates(self, model: nn.Module, example: Any) -> list[Gated]:
        """Where gates go; nowhere if layers have their own importances."""
        return []

    def managed(self, model: nn.Module) -> set[str]:
        """The names of the tensors that are managed unless a rule says otherwise."""
        return {
            tensor_name(path, VECTOR)
            for path, module in model.named_modules()
            if self._holds(module) and module._parameters.get(VECTOR) is not None
        }

    def _holds(self, module: nn.Module) -> bool:
        return isinstance(module, Importance)

    def computed(self, model: nn.Module) -> list[NamedSite]:
        """Weights that are candidates but not Parameters of their module."""
        return []

    def joint_cost(self, model: nn.Module, goals: Sequence[Goal], gates: Sequence[Gated], example: Any) -> JointCostOf:
        """What makes the joint costs of these goals. It is called before gates are on, and inspects the plain model."""
        return lambda goal, targets, others: None

    def stored(self, model: nn.Module, importances: Mapping[nn.Module, Tensor]) -> int | None:
        """Parameters of a managed network, biases and norms included, as they will be stored without zero importances.

        None where it is unknown: what a filter costs shows when the network is shrunk, and what a single weight costs
        depends on the format. ``importances`` are by the module that holds them.
        """
        return None


class WeightKind(UnitKind):
    """Single weights, each of which costs something by itself."""

    def check(self, model: nn.Module, goals: Sequence[Goal], method: Method, example: Any) -> None:
        for goal in goals:
            goal.check_units(self.units, example=example is not None)

    def managed(self, model: nn.Module) -> set[str]:
        return {t.name for t in prunable_tensors(model)} | {name for name, _, _ in self.computed(model)}

    def computed(self, model: nn.Module) -> list[NamedSite]:
        """Weights that are parametrized, pruned by torch, or normalised by hooks."""
        return [
            (tensor_name(path, tensor), module, tensor)
            for path, module in model.named_modules()
            for tensor in weight_names(module)
            if tensor not in module._parameters
        ]


_LAYERS = (*CONVOLUTIONS, nn.Linear)


class FilterKind(UnitKind):
    """Output channels with their biases. What one costs depends on its neighbours."""

    _numbers = "Sparsity(...), or Filters(...)"

    def check(self, model: nn.Module, goals: Sequence[Goal], method: Method, example: Any) -> None:
        super().check(model, goals, method, example)
        of_network = [goal for goal in goals if goal.measure is not None]
        if of_network and len(goals) > 1:
            raise ValueError(
                f"{of_network[0]} is a total of the whole network, since what a filter costs depends on its "
                "neighbours: make it the only goal, or use Sparsity(...) and Filters(...), which rules can have too"
            )

    def gates(self, model: nn.Module, example: Any) -> list[Gated]:
        """Behind the batch norm of a layer, which would undo any scale before it.

        Outputs of the network have no gates, nor have depthwise filters: their channels belong to the layer before.
        """
        if example is None:
            raise ValueError("to prune filters, pass example=: an input that shows which norm follows which layer")
        norms, last = _watched(model, example)
        found = []
        for path, module in _layers(model):
            depthwise = isinstance(module, CONVOLUTIONS) and 1 < module.groups == module.in_channels
            if depthwise or module in last:
                continue
            owner = norms.get(module, module)
            if not isinstance(owner.weight, Tensor):
                continue  # a norm without a scale
            tensors = tuple((owner, name) for name in ("weight", "bias") if getattr(owner, name) is not None)
            found.append(Gated(path, module, (module.weight.shape[0],), tensors))
        return _some(found, model, "a convolution or linear layer whose outputs stay inside the network")

    def joint_cost(self, model: nn.Module, goals: Sequence[Goal], gates: Sequence[Gated], example: Any) -> JointCostOf:
        if all(goal.measure is None for goal in goals):
            return lambda goal, targets, others: None
        if isinstance(example, Mapping):
            raise ValueError(
                "to foresee what shrinking leaves, pass the example as a tensor or a tuple of tensors, not by names"
            )
        network, costs = follow(model, example), profile(model, example)
        params = sum(p.numel() for p in model.parameters())
        batch = len(example if isinstance(example, Tensor) else example[0])

        def cost(goal: Goal, targets: Sequence[Target], others: Sequence[Target]) -> JointCost | None:
            if goal.measure is None:
                return None
            whole = {"macs": costs.total_macs(), "params": params, "weights": costs.params}[goal.measure]
            layers = LayerCosts(network, model, {row.name: row.macs for row in costs}, batch)
            mine = [_gated(gates, target) for target in targets]
            return FilterCost(network, layers, model, mine, goal.measure, whole)

        return cost


class BlockKind(UnitKind):
    """Blocks of outputs and inputs, each of which costs its weights; those at the edges are smaller."""

    def gates(self, model: nn.Module, example: Any) -> list[Gated]:
        size, found = (self.units.rows, self.units.cols), []
        for path, module in _layers(model):
            rows, cols = module.weight.shape[:2]
            if rows >= size[0] and cols >= size[1]:
                shape = (-(-rows // size[0]), -(-cols // size[1]))
                found.append(Gated(path, module, shape, ((module, "weight"),), size))
        return _some(found, model, f"a linear layer or convolution of at least {size[0]} outputs and {size[1]} inputs")

    def joint_cost(self, model: nn.Module, goals: Sequence[Goal], gates: Sequence[Gated], example: Any) -> JointCostOf:
        params = sum(p.numel() for p in model.parameters())
        counts_macs = any(goal.measure == "macs" for goal in goals)
        macs = profile(model, example, tensors=[tensor_name(g.path, "weight") for g in gates]) if counts_macs else None

        def cost(goal: Goal, targets: Sequence[Target], others: Sequence[Target]) -> JointCost | None:
            if goal.measure is None:
                return None
            sizes = [_block_sizes(_gated(gates, target)) for target in targets]
            if goal.measure != "macs":
                managed = sum(int(_block_sizes(_gated(gates, target)).sum()) for target in (*targets, *others))
                return SumOfUnits(sizes, params - managed if goal.measure == "params" else 0.0)
            assert macs is not None
            rows = [macs[tensor_name(_gated(gates, target).path, "weight")] for target in targets]
            each = [size * (row.macs / row.params) for size, row in zip(sizes, rows, strict=True)]
            return SumOfUnits(each, macs.total_macs() - sum(row.macs for row in rows))

        return cost

    @torch.no_grad()
    def stored(self, model: nn.Module, importances: Mapping[nn.Module, Tensor]) -> int | None:
        places = gated(model)
        inside = {p for m in model.modules() if isinstance(m, Importance) for p in m.parameters()}
        inside |= {raw_parameter(module, tensor) for module, tensor in places}
        total = _outside(model, inside)
        for module, tensor in places:
            gate: Any = transform_of(module, tensor)
            raw = raw_parameter(module, tensor)
            spread = gate.spread(importances.get(gate.owner, gate.importances), raw)
            total += int(torch.count_nonzero(spread.expand_as(raw)))
        return total


class RankKind(UnitKind):
    """Directions of low-rank layers that learn their rank, which have importances and know what they store."""

    def _holds(self, module: nn.Module) -> bool:
        return learns_rank(module)

    def joint_cost(self, model: nn.Module, goals: Sequence[Goal], gates: Sequence[Gated], example: Any) -> JointCostOf:
        params = sum(p.numel() for p in model.parameters())

        def cost(goal: Goal, targets: Sequence[Target], others: Sequence[Target]) -> JointCost | None:
            if goal.measure is None:
                return None
            layers: dict[str, Any] = {path: m for path, m in model.named_modules() if learns_rank(m)}
            stored: list[Any] = [target.module.stored_weights for target in targets]
            sizes = [target.shape.numel() for target in targets]
            # The low-rank layers without a goal have the rank that they have.
            ours = {target.module for target in (*targets, *others)}
            fixed = {path: m.stored_weights(m.down.shape[0]) for path, m in layers.items() if m not in ours}
            if goal.measure != "macs":
                factors = [p for layer in layers.values() for p in (layer.up, layer.down, layer.m) if p is not None]
                rest = params - sum(p.numel() for p in factors) + sum(fixed.values())
                return StoredUnits(sizes, stored, rest if goal.measure == "params" else 0)
            uses = low_rank_uses(model, example, layers)
            paths: dict[Any, str] = {layer: path for path, layer in layers.items()}
            fixed |= {paths[t.module]: t.module.stored_weights(t.shape.numel()) for t in others}  # type: ignore[operator]
            rest = uses.other_macs + sum(count * uses.vectors[path] for path, count in fixed.items())
            each = [uses.vectors[paths[target.module]] for target in targets]
            return StoredUnits(sizes, [partial(_times, one, use) for one, use in zip(stored, each, strict=True)], rest)

        return cost

    @torch.no_grad()
    def stored(self, model: nn.Module, importances: Mapping[nn.Module, Tensor]) -> int | None:
        layers: list[Any] = [m for m in model.modules() if learns_rank(m)]
        total = _outside(model, {p for layer in layers for p in layer.parameters()})
        for layer in layers:
            m = importances[layer] if layer in importances else getattr(layer, "m", None)
            total += int(layer.stored_params(layer.rank if m is None else int(torch.count_nonzero(m))))
        return total


# By their names; their words, which reports need without torch, are in `budget.units.KINDS`.
UNIT_KINDS: dict[str, type[UnitKind]] = {
    "weight": WeightKind,
    "filter": FilterKind,
    "block": BlockKind,
    "rank": RankKind,
}


def unit_kind(units: Units) -> UnitKind:
    return UNIT_KINDS[units.kind](units)


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The convolutions and linear layers whose weights are trained, by their paths."""
    for path, module in model.named_modules():
        if isinstance(module, _LAYERS) and module.weight.requires_grad:
            yield path, module


def _some(found: list[Gated], model: nn.Module, what: str) -> list[Gated]:
    """Those whose tensors no other module reads: tied weights cannot be multiplied for one layer alone."""
    readers = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    found = [g for g in found if all(readers[id(module._parameters.get(name))] <= 1 for module, name in g.tensors)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no {what}: there is nothing to gate")
    return found


def _gated(gates: Sequence[Gated], target: Target) -> Gated:
    """The gate whose importances a target is."""
    return next(g for g in gates if g.layer._modules.get(IMPORTANCE) is target.module)


def _block_sizes(gate: Gated) -> Array:
    """The number of weights in each block."""
    weight: Any = gate.layer.weight
    sides = [
        np.diff(np.minimum(np.arange(count + 1) * size, length))
        for count, size, length in zip(gate.shape, gate.block, weight.shape[:2], strict=True)
    ]
    sizes: Array = np.outer(*sides).reshape(-1) * math.prod(weight.shape[2:])
    return sizes


def _outside(model: nn.Module, inside: set[nn.Parameter]) -> int:
    return sum(p.numel() for p in model.parameters() if p not in inside)


def _times(stored: Callable[[int], int], uses: int, rank: int) -> int:
    return stored(rank) * uses


def _watched(model: nn.Module, example: Any) -> tuple[dict[nn.Module, nn.Module], set[nn.Module]]:
    """Which batch norm reads each layer directly, and which layers make outputs of the network."""
    makers: dict[int, nn.Module] = {}
    norms: dict[nn.Module, nn.Module] = {}
    ends: dict[Any, nn.Module] = {}
    alive: list[Any] = []  # so that no two tensors have one identity

    def made(module: nn.Module, _: Any, output: Any) -> None:
        alive.append(output)
        makers[id(output)] = module
        ends[output.grad_fn] = module

    def read(module: nn.Module, inputs: Any) -> None:
        maker = makers.get(id(inputs[0]))
        if maker is not None:
            norms[maker] = module

    handles = [m.register_forward_hook(made) for m in model.modules() if isinstance(m, _LAYERS)]
    handles += [m.register_forward_pre_hook(read) for m in model.modules() if isinstance(m, _BatchNorm)]
    try:
        with sandbox(model), torch.enable_grad():
            inputs = example if isinstance(example, tuple) else (example,)
            output = model(**example) if isinstance(example, dict) else model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return norms, _last(output, ends)


def _last(output: Any, ends: dict[Any, nn.Module]) -> set[nn.Module]:
    """The layers that no other layer follows."""
    found: set[nn.Module] = set()
    waiting: list[Any] = [leaf.grad_fn for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    seen: set[Any] = {None}
    while waiting:
        step = waiting.pop()
        if step in ends and step not in seen:
            found.add(ends[step])
        elif step not in seen:
            waiting.extend(before for before, _ in step.next_functions)
        seen.add(step)
    return found
