"""Gates: an importance for each unit of a layer, a number that multiplies all weights of the unit.

The importances are one small tensor, which a method manages like any other; the weights read as their products with it.
Taking the gates off multiplies them in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from softprune.budget.profiler import sandbox
from softprune.core.parametrization import raw_parameter, register, unregister
from softprune.methods.transforms import Target
from softprune.ops.units import Units

# Under this name the importances are a part of their layer.
IMPORTANCE, VECTOR = "importance", "m"


class Importance(nn.Module):
    """One number per unit, all 1 at first."""

    def __init__(self, *shape: int, like: Tensor) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.ones(shape, dtype=like.dtype, device=like.device))

    def extra_repr(self) -> str:
        return "x".join(map(str, self.m.shape))


class Gate(nn.Module):
    """Multiplies a tensor with the importances of the units that its elements belong to.

    Args:
        importance: of the layer. It is no submodule: several tensors share it, and it has its place in the layer.
        block: elements of the tensor along each of its first axes that share an importance.
    """

    def __init__(self, importance: Importance, block: Sequence[int] = (1,)) -> None:
        super().__init__()
        self._shared = [importance]
        self.block = tuple(block)

    def forward(self, raw: Tensor) -> Tensor:
        return raw * self.spread(self.importances, raw)

    def right_inverse(self, effective: Tensor) -> Tensor:
        """The raw tensor behind an effective one; a closed gate tells nothing about it."""
        spread = self.spread(self.importances, effective)
        return torch.where(spread == 0, effective, effective / spread)

    @property
    def owner(self) -> Importance:
        """What holds the importances."""
        return self._shared[0]

    @property
    def importances(self) -> Tensor:
        """Those of now."""
        m: Tensor = self.owner.m
        return m

    def spread(self, m: Tensor, raw: Tensor) -> Tensor:
        """Importances as a tensor that can be multiplied with a raw one."""
        for axis, size in enumerate(self.block):
            if size > 1:
                m = m.repeat_interleave(size, dim=axis).narrow(axis, 0, raw.shape[axis])
        return m.reshape(m.shape + (1,) * (raw.ndim - m.ndim))


@dataclass(frozen=True, eq=False)
class Gated:
    """Where gates go.

    Args:
        path: of the layer whose units they are.
        layer: that layer.
        shape: of the importances.
        tensors: the tensors that they act on, with their modules.
        block: as of :class:`Gate`.
    """

    path: str
    layer: nn.Module
    shape: tuple[int, ...]
    tensors: tuple[tuple[nn.Module, str], ...]
    block: tuple[int, ...] = (1,)


@contextmanager
def gates_on(model: nn.Module, places: Sequence[Gated]) -> Iterator[None]:
    """Put gates on; if the block raises the model is as it was."""
    for place in places:
        first = place.tensors[0]
        importance = Importance(*place.shape, like=getattr(*first))
        place.layer.add_module(IMPORTANCE, importance)
        for module, tensor in place.tensors:
            register(module, tensor, Gate(importance, place.block))
    try:
        yield
    except BaseException:
        if places:
            fold_gates(model)
        raise


def gated(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Every tensor behind a gate."""
    return [(module, name) for module in model.modules() for name in _gated_in(module)]


def _gated_in(module: nn.Module) -> list[str]:
    if not parametrize.is_parametrized(module):
        return []
    lists = module.parametrizations
    return [name for name in lists if isinstance(lists[name][0], Gate)]  # type: ignore[union-attr,index]


def behind_gates(model: nn.Module) -> tuple[Target, ...]:
    """What importances multiply: the tensors behind gates, and those of layers that bring their importances."""
    found = []
    for path, module in model.named_modules():
        tensors = _gated_in(module)
        if learns_rank(module) and VECTOR not in module._parameters:
            tensors += [name for name, p in module._parameters.items() if p is not None]
        found += [Target(f"{path}.{tensor}" if path else tensor, ((module, tensor),)) for tensor in tensors]
    return tuple(found)


@torch.no_grad()
def fold_gates(model: nn.Module) -> None:
    """Multiply the importances into the weights and take the gates off."""
    for module, tensor in gated(model):
        effective = getattr(module, tensor)
        raw_parameter(module, tensor).copy_(effective)
        unregister(module, tensor)
    for module in model.modules():
        if isinstance(getattr(module, IMPORTANCE, None), Importance):
            del module._modules[IMPORTANCE]


def importances(model: nn.Module, units: Units) -> list[str]:
    """The names of all importances of these units: those of gates, and for ranks those that layers bring."""
    return [
        f"{path}.{VECTOR}" if path else VECTOR
        for path, module in model.named_modules()
        if (learns_rank(module) if units.kind == "rank" else isinstance(module, Importance))
        and module._parameters.get(VECTOR) is not None
    ]


def learns_rank(module: nn.Module) -> bool:
    """Whether it is a low-rank layer, which brings the importances of its directions."""
    return getattr(module, "importance_of", None) == "rank"


def is_importance(module: nn.Module, tensor: str) -> bool:
    """Whether this tensor holds importances."""
    return tensor == VECTOR and (isinstance(module, Importance) or learns_rank(module))


# Places: which layers of a model get gates, and on which of their tensors.


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LAYERS = (*_CONVOLUTIONS, nn.Linear)


def gates_for(model: nn.Module, units: Units, example: Any) -> list[Gated]:
    """Where the gates of these units go; none where the units are weights, or directions, whose layers bring their own.

    Raises:
        ValueError: if the units are filters and there is no example, or there is no layer for them.
    """
    if units.kind in ("weight", "rank"):
        return []
    if units.kind == "filter":
        found = _filters(model, example)
        what = "a convolution or linear layer whose outputs stay inside the network"
    else:
        found = _blocks(model, units)
        what = f"a linear layer or convolution of at least {units.rows} outputs and {units.cols} inputs"
    # What another module reads too (tied weights) cannot be multiplied for one of them alone.
    readers = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    found = [g for g in found if all(readers[id(module._parameters.get(name))] <= 1 for module, name in g.tensors)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no {what}: there is nothing to gate")
    return found


def _filters(model: nn.Module, example: Any) -> list[Gated]:
    """Filters are gated behind their batch norm, which would undo any scale before it.

    Outputs of the network have no gates, nor have depthwise filters: their channels belong to the layer before.
    """
    if example is None:
        raise ValueError("to prune filters, pass example=: an input that shows which norm follows which layer")
    norms, last = _watched(model, example)
    found = []
    for path, module in model.named_modules():
        if not isinstance(module, _LAYERS) or module in last or not module.weight.requires_grad:
            continue
        if isinstance(module, _CONVOLUTIONS) and module.groups > 1 and module.groups == module.in_channels:
            continue
        owner = norms.get(module, module)
        if not isinstance(owner.weight, Tensor):
            continue  # a norm without a scale
        tensors = tuple((owner, name) for name in ("weight", "bias") if getattr(owner, name) is not None)
        found.append(Gated(path, module, (module.weight.shape[0],), tensors))
    return found


def _blocks(model: nn.Module, units: Units) -> list[Gated]:
    found = []
    for path, module in model.named_modules():
        if not isinstance(module, _LAYERS) or not module.weight.requires_grad:
            continue
        rows, cols = module.weight.shape[:2]
        if rows < units.rows or cols < units.cols:
            continue
        shape = (-(-rows // units.rows), -(-cols // units.cols))
        found.append(Gated(path, module, shape, ((module, "weight"),), (units.rows, units.cols)))
    return found


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
    """The layers behind which no other layer comes."""
    found: set[nn.Module] = set()
    waiting: list[Any] = [leaf.grad_fn for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    seen: set[Any] = {None}
    while waiting:
        step = waiting.pop()
        if step in seen:
            continue
        seen.add(step)
        if step in ends:
            found.add(ends[step])
        else:
            waiting.extend(before for before, _ in step.next_functions)
    return found


# Stored parameters: how many numbers a network has when what is pruned is no longer kept.


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


# Folding: layers whose ranks were managed become as small as they can be stored.
#
# How a layer does that it says itself, by a method ``folded()`` that returns the smaller layer. That is all that is
# known
# here of layers of low rank, so that those of others can do the same.


@runtime_checkable
class Foldable(Protocol):
    """A layer with importances, or around such a layer, that can do without those that are zero."""

    def folded(self) -> nn.Module:
        """A smaller layer with the same function; this one stays as it is."""


def fold_ranks(model: nn.Module, targets: Iterable[Target]) -> nn.Module:
    """Replace the layers whose directions these targets are, in place.

    Args:
        model: no longer managed.
        targets: what was managed.

    Returns:
        The model; or, if it is itself such a layer, the smaller layer.
    """
    learnt = {module for t in targets for module, tensor in t.sites if tensor == VECTOR and learns_rank(module)}
    made: dict[nn.Module, nn.Module] = {}  # a layer that is used at two places stays one

    def small(module: nn.Module) -> nn.Module:
        # The outermost one: what stands around a layer may count on its factors.
        if not isinstance(module, Foldable) or learnt.isdisjoint(module.modules()):
            return module
        if module not in made:
            made[module] = cast("Foldable", module).folded()
        return made[module]

    def walk(module: nn.Module) -> None:
        for name, child in module._modules.items():  # named_children leaves out repeated ones
            if child is None:
                continue
            other = small(child)
            if other is child:
                walk(child)
            else:
                module._modules[name] = other

    if not learnt:
        return model
    top = small(model)
    if top is model:
        walk(model)
    return top
