"""What cannot work, refused by name with a way out, before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from softprune.methods.transforms import Target, Transform

# First byte, the byte after the last, name and Parameter.
ByteRange: TypeAlias = tuple[int, int, str, nn.Parameter]


def refuse_model(model: nn.Module) -> nn.Module:
    """The module to work on (a compiled model's own module), or an error for one that must not be wrapped yet."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"sparsify works on a torch.nn.Module, got {type(model).__name__}")
    model = inside_compiled(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            "a TorchScript module cannot be changed any more: sparsify the Python module, script after bake()"
        )
    for path, module in model.named_modules():
        wrapper = type(module).__name__
        where = f"{path} is wrapped in {wrapper}, which" if path else wrapper
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise ValueError(
                f"{where} has already registered the parameters: sparsify the module first, then wrap it in {wrapper}"
            )
        if wrapper == "FullyShardedDataParallel":
            raise ValueError(
                f"{where} flattens the parameters: sparsify the module first and shard it with fully_shard (FSDP2)"
            )
    return model


def inside_compiled(model: nn.Module) -> nn.Module:
    inner = getattr(model, "_orig_mod", None)  # torch.compile's wrapper
    return inner if isinstance(inner, nn.Module) else model


def refuse_unfilled(target: Target, transform: Transform | None) -> None:
    """Raise if the state of a transform was chosen from weights that are not there, and nothing fills it later."""
    if target.raw.device.type != "meta" or transform is None:
        return
    if {name for name, _ in (*transform.named_parameters(), *transform.named_buffers())} - transform.first.keys():
        raise ValueError(
            f"{target.name} is on the meta device and has no weights to choose from: load the weights first"
        )


def refuse_tensor(target: Target, ranges: Sequence[ByteRange]) -> None:
    """Raise if a transform on this tensor could not work."""
    if target.managed:
        _refuse_computed(target)
    raw, name = target.raw, target.name
    for module, _ in target.sites:
        _refuse_module(module, name)
    if isinstance(raw, nn.UninitializedParameter):
        raise ValueError(f"{name} has no shape yet: run one forward pass through the lazy module, then sparsify")
    if type(raw).__name__ == "DTensor" or type(raw.data).__name__ == "DTensor":
        raise ValueError(f"{name} is sharded already: sparsify first, then call fully_shard")
    if raw.layout is not torch.strided:
        raise ValueError(f"{name} is stored sparsely ({raw.layout}): make it dense (.to_dense()) first")
    if raw.numel() == 0 or raw.ndim == 0:
        what = "is a single number" if raw.ndim == 0 else f"has no elements (shape {tuple(raw.shape)})"
        raise ValueError(f"{name} {what}: leave it out with skip=[{name!r}]")
    if raw.device.type == "meta":
        return
    sharer = _sharer(raw, ranges)
    if sharer is not None:
        raise ValueError(
            f"{name} and {sharer} share memory but are different parameters: tie them by assigning the same "
            f"Parameter to both modules, or leave both out with skip=[{name!r}, {sharer!r}]"
        )
    bad = int((~torch.isfinite(raw.detach())).sum())
    if bad:
        raise ValueError(f"{name} has {bad} NaN or infinite weights of {raw.numel()}: start from finite weights")


def _refuse_computed(target: Target) -> None:
    """Raise for a weight that is not a Parameter of its module."""
    module, tensor, name = target.module, target.tensor, target.name
    if not parametrize.is_parametrized(module, tensor):
        raise ValueError(
            f"{name} is not a parameter (pruned by torch.nn.utils.prune, or normalised by hooks): "
            f"make it one first (prune.remove, remove_weight_norm), or leave it out with skip=[{name!r}]"
        )
    transforms = list(module.parametrizations[tensor])  # type: ignore[index,union-attr,arg-type]
    if isinstance(transforms[0], Transform):
        raise ValueError(f"{name} is sparsified already: call bake() or remove() first, or pass skip=[{name!r}]")
    kinds = ", ".join(type(t).__name__ for t in transforms)
    raise ValueError(
        f"{name} already has the parametrization {kinds}: remove it first "
        f"(torch.nn.utils.parametrize.remove_parametrizations), or leave it out with skip=[{name!r}]"
    )


def _refuse_module(module: nn.Module, name: str) -> None:
    """Raise for a module that does with its weight what no computed weight allows."""
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(
            f"{name} is in a TorchScript module, which cannot be changed any more: leave it out with skip=[{name!r}]"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        raise ValueError(
            f"{name} belongs to an {type(module).__name__} with max_norm, which rescales its weight in place in every "
            f"forward pass: set max_norm=None, or leave it out with skip=[{name!r}]"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
        raise ValueError(
            f"{name} belongs to an {type(module).__name__} with sparse=True, whose gradient is a sparse tensor: "
            f"set sparse=False, or leave it out with skip=[{name!r}]"
        )


def byte_ranges(model: nn.Module) -> list[ByteRange]:
    """Which bytes the parameters of a model occupy.

    Views of one buffer are common and harmless (cuDNN's recurrent layers keep all weights in one) as long as no byte
    belongs to two of them, so what counts is the range from first to last byte.
    """
    ranges = []
    for name, p in model.named_parameters():
        if isinstance(p, nn.UninitializedParameter) or is_traceable_wrapper_subclass(p):
            continue
        if p.device.type != "meta" and p.layout is torch.strided and p.numel() > 0:
            last = sum((n - 1) * stride for n, stride in zip(p.shape, p.stride(), strict=True))
            ranges.append((p.data_ptr(), p.data_ptr() + (last + 1) * p.element_size(), name, p))
    return ranges


def _sharer(raw: nn.Parameter, ranges: Sequence[ByteRange]) -> str | None:
    """The name of another Parameter that shares memory with this one."""
    mine = next(((start, end) for start, end, _, p in ranges if p is raw), None)
    if mine is None:
        return None
    return next((name for a, b, name, p in ranges if p is not raw and a < mine[1] and mine[0] < b), None)
