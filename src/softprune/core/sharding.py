"""Reading whole tensors where FSDP2 keeps only a shard of each on a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import chain

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.func import functional_call

from softprune.methods.base import Context, Method
from softprune.methods.transforms import Target, Transform


def whole(t: Tensor) -> Tensor:
    """The full tensor; for a shard this gathers, so every process must call it."""
    return t.full_tensor() if isinstance(t, DTensor) else t


def local(t: Tensor) -> Tensor:
    """What this process holds of a tensor: a shard's own part, or all of a plain tensor."""
    return t.to_local() if isinstance(t, DTensor) else t


def placed_like(t: Tensor, other: Tensor) -> Tensor:
    """A whole tensor, which every process has, split like `other`."""
    if not isinstance(other, DTensor):
        return t
    return distribute_tensor(t.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


def sharded(target: Target) -> bool:
    return isinstance(target.raw, DTensor)


@torch.no_grad()
def effective_weight(target: Target) -> Tensor:
    """The tensor that the network uses now, whole and without gradient. It may share memory with the raw one."""
    if not sharded(target):
        return target.effective.detach()
    transform = target.transform
    tensors = chain(transform.named_parameters(), transform.named_buffers())
    state = {name: whole(t.detach()) for name, t in tensors}
    return functional_call(transform, state, (whole(target.raw.detach()),))


@torch.no_grad()
def settle(target: Target) -> None:
    """Bring the transform in line with the present weights. Gathers them only for a transform that looks at them."""
    if type(target.transform).settle_ is not Transform.settle_:
        target.transform.settle_(whole(target.raw.detach()))


@torch.no_grad()
def settled_weight(target: Target) -> Tensor:
    """The effective weight after settling, without settling: to measure a training must not alter it."""
    if type(target.transform).settle_ is Transform.settle_:
        return effective_weight(target)
    transform, raw = deepcopy(target.transform), whole(target.raw.detach())
    transform.settle_(raw)
    return transform(raw)


def refuse_sharded(targets: Sequence[Target], what: str, instead: str) -> None:
    for target in targets:
        if sharded(target):
            raise ValueError(f"{what} is not possible while {target.name} is sharded by FSDP2: {instead}")


def refuse_split(targets: tuple[Target, ...], thresholds: int, shared: int) -> None:
    """Raise if what several modules shared was torn apart: each would go on with a copy of its own.

    Sharding does that, and so does to_empty() with a model on the meta device. There are so many different thresholds,
    `shared` when the model was sparsified.
    """
    where = "call fully_shard on one module that contains all places where it is used, not on the parts"
    instead = f"{where}; after to_empty() tie and then sparsify"
    for target in targets:
        raws = {id(module.parametrizations[tensor].original) for module, tensor in target.sites}  # type: ignore[index,union-attr]
        if len(raws) > 1:
            raise ValueError(f"fully_shard or to_empty has split {target.name} into {len(raws)} parameters: {instead}")
    if thresholds > shared:
        raise ValueError(
            f"fully_shard or to_empty has split a shared threshold ({shared} became {thresholds}): {instead}"
        )


def refuse_readers(contexts: Mapping[Method, Context]) -> None:
    """Raise if a method that looks at whole weights has a sharded tensor."""
    for method, context in contexts.items():
        if method.reads_weights:
            refuse_sharded(
                context.targets,
                str(method),
                "it looks at whole weights after each step; use DistributedDataParallel, or min_keep=0",
            )
