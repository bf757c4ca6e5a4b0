"""Folding: layers whose ranks were managed become as small as they can be stored.

How a layer does that it says itself, by a method ``folded()`` that returns the smaller layer. That is all that is known
here of layers of low rank, so that those of others can do the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast, runtime_checkable

from torch import nn

from softprune.core.gate import VECTOR, learns_rank
from softprune.methods.base import Target


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
