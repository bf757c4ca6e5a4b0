"""Uses: how many vectors the matrix of a low-rank layer multiplies in one forward pass."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from softprune.budget.counter import MacCounter
from softprune.budget.profiler import run
from softprune.budget.sandbox import sandbox


class Uses(NamedTuple):
    """For each layer the vectors that it multiplies, and the multiply-adds of everything else, pools as well."""

    vectors: dict[str, int]
    other_macs: int


def low_rank_uses(model: nn.Module, example: Any, layers: Mapping[str, Any]) -> Uses:
    """Count them: through the factors, or through the product that the layer hands out as its ``weight``.

    Args:
        model: left as it was.
        example: as of :func:`softprune.budget.profiler.profile`.
        layers: name -> layer with the factors ``up`` and ``down`` and the product ``weight``.
    """
    counter = MacCounter()
    for name, layer in layers.items():
        for factor in ("up", "down"):
            counter.watch(getattr(layer, factor), f"{name}.{factor}")
    with ExitStack() as stack, sandbox(model):
        for name, layer in layers.items():
            stack.callback(setattr, layer, "__class__", type(layer))
            layer.__class__ = _watched(type(layer), name, counter)
        with counter:
            run(model, example)
    vectors, ours = {}, 0
    for name, layer in layers.items():
        whole, down = counter.macs.get(name, 0), counter.macs.get(f"{name}.down", 0)
        vectors[name] = whole // (layer.up.shape[0] * layer.down.shape[1]) + down // layer.down.numel()
        ours += whole + down + counter.macs.get(f"{name}.up", 0)
    return Uses(vectors, sum(counter.macs.values()) - ours + counter.other_macs + counter.pool_macs)


def _watched(kind: type[nn.Module], name: str, counter: MacCounter) -> type[nn.Module]:
    """The same class, but the product of the factors is known by name and costs nothing."""
    plain: Any = cast(Any, kind).weight

    def weight(self: nn.Module) -> Tensor:
        counter.paused += 1
        try:
            found: Tensor = plain.fget(self)
        finally:
            counter.paused -= 1
        counter.watch(found, name)
        return found

    return type(kind.__name__, (kind,), {"weight": property(weight)})
