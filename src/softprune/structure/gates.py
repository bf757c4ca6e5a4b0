"""Gates: an importance for each unit of a layer, a number that multiplies all weights of the unit.

The importances are one small tensor, which a method manages like any other; taking the gates off multiplies them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from softprune.core.parametrization import raw_parameter, register, unregister
from softprune.methods.transforms import Target

# Under this name the importances are a part of their layer.
IMPORTANCE, VECTOR = "importance", "m"


class Importance(nn.Module):
    """One number per unit, 1 at first."""

    def __init__(self, *shape: int, like: Tensor) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.ones(shape, dtype=like.dtype, device=like.device))

    def extra_repr(self) -> str:
        return "x".join(map(str, self.m.shape))


class Gate(nn.Module):
    """Multiplies a tensor with the importances of the units that its elements belong to.

    Along each of the first axes ``block`` elements share an importance.
    """

    def __init__(self, importance: Importance, block: Sequence[int] = (1,)) -> None:
        super().__init__()
        self._shared = [importance]  # not as a submodule: it is one of the layer, and several tensors share it
        self.block = tuple(block)

    def forward(self, raw: Tensor) -> Tensor:
        return raw * self.spread(self.importances, raw)

    def right_inverse(self, effective: Tensor) -> Tensor:
        """The raw tensor behind an effective one; where a gate is closed, the effective one."""
        spread = self.spread(self.importances, effective)
        return torch.where(spread == 0, effective, effective / spread)

    @property
    def owner(self) -> Importance:
        return self._shared[0]

    @property
    def importances(self) -> Tensor:
        return self.owner.m

    def spread(self, m: Tensor, raw: Tensor) -> Tensor:
        """The importances in a shape that broadcasts to the raw tensor's."""
        for axis, size in enumerate(self.block):
            if size > 1:
                m = m.repeat_interleave(size, dim=axis).narrow(axis, 0, raw.shape[axis])
        return m.reshape(m.shape + (1,) * (raw.ndim - m.ndim))


@dataclass(frozen=True, eq=False)
class Gated:
    """A layer whose units have gates."""

    path: str  # of the layer whose units they are
    layer: nn.Module  # that layer
    shape: tuple[int, ...]  # of the importances
    tensors: tuple[tuple[nn.Module, str], ...]  # the tensors that they act on, with their modules
    block: tuple[int, ...] = (1,)  # as of `Gate`


@contextmanager
def gates_on(model: nn.Module, gates: Sequence[Gated]) -> Iterator[None]:
    """Add the gates; if the block raises, the model is restored."""
    for gate in gates:
        importance = Importance(*gate.shape, like=getattr(*gate.tensors[0]))
        gate.layer.add_module(IMPORTANCE, importance)
        for module, tensor in gate.tensors:
            register(module, tensor, Gate(importance, gate.block))
    try:
        yield
    except BaseException:
        if gates:
            fold_gates(model)
        raise


def tensor_name(path: str, tensor: str) -> str:
    return f"{path}.{tensor}" if path else tensor


def gated(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """(module, tensor name) of every tensor behind a gate."""
    return [(module, name) for module in model.modules() for name in _gated_in(module)]


def _gated_in(module: nn.Module) -> list[str]:
    if not parametrize.is_parametrized(module):
        return []
    lists = module.parametrizations
    return [name for name in lists if isinstance(lists[name][0], Gate)]  # type: ignore[union-attr,index]


def behind_gates(model: nn.Module) -> tuple[Target, ...]:
    """The tensors that importances multiply: those behind gates, and those of low-rank layers."""
    found = []
    for path, module in model.named_modules():
        tensors = _gated_in(module)
        if learns_rank(module) and VECTOR not in module._parameters:
            tensors += [name for name, p in module._parameters.items() if p is not None]
        found += [Target(tensor_name(path, tensor), ((module, tensor),)) for tensor in tensors]
    return tuple(found)


@torch.no_grad()
def fold_gates(model: nn.Module) -> None:
    """Multiply the importances into the weights and remove the gates."""
    for module, tensor in gated(model):
        raw_parameter(module, tensor).copy_(getattr(module, tensor))
        unregister(module, tensor)
    for module in model.modules():
        if isinstance(getattr(module, IMPORTANCE, None), Importance):
            del module._modules[IMPORTANCE]


def learns_rank(module: nn.Module) -> bool:
    """Whether this is a low-rank layer, which has importances of its directions."""
    return getattr(module, "importance_of", None) == "rank"


def has_importances(module: nn.Module) -> bool:
    """Whether the m of this module, if it has one, holds importances."""
    return isinstance(module, Importance) or learns_rank(module)


# Layers whose ranks were managed become as small as they can be stored, by their own method ``folded()``; nothing else
# is known here of low-rank layers, so that others' can do the same.


@runtime_checkable
class Foldable(Protocol):
    """A layer with importances, or around such a layer, that can do without those that are zero."""

    def folded(self) -> nn.Module:
        """A smaller layer with the same function; this one is left unchanged."""


def fold_ranks(model: nn.Module, targets: Iterable[Target]) -> nn.Module:
    """Replace the layers whose directions these targets were, in place; returns the model, or what replaces it."""
    learnt = {module for t in targets for module, tensor in t.sites if tensor == VECTOR and learns_rank(module)}
    made: dict[nn.Module, nn.Module] = {}  # a layer that is used at two places stays one

    def small(module: nn.Module) -> nn.Module:
        # The outermost one: what stands around a layer may count on its factors.
        if isinstance(module, Foldable) and not learnt.isdisjoint(module.modules()):
            if module not in made:
                made[module] = cast("Foldable", module).folded()
            return made[module]
        for name, child in module._modules.items():  # named_children leaves out repeated ones
            if child is not None:
                module._modules[name] = small(child)
        return module

    return small(model) if learnt else model
