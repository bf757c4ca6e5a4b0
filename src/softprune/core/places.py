"""Places: which layers of a model get gates, and on which of their tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from softprune.budget.sandbox import sandbox
from softprune.core.gate import Gated
from softprune.ops.units import Units

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
