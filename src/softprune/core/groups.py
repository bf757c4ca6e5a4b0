"""Parameters as optimizers have them: shards of tensors, and the groups that say with which decay each is trained.

Which group a parameter belongs to depends on its module's type, never on its name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import LBFGS, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from softprune.methods.base import Context, Method
from softprune.methods.transforms import Target, Transform


def whole(t: Tensor) -> Tensor:
    """The full tensor; for a shard this gathers, so every process must call it."""
    return t.full_tensor() if isinstance(t, DTensor) else t


def local(t: Tensor) -> Tensor:
    """What this process holds of a tensor."""
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


def refuse_readers(contexts: Mapping[Method, Context], *, to_goal: bool) -> None:
    """Raise if a method that looks at whole weights, as every one does under a goal, has a sharded tensor."""
    for method, context in contexts.items():
        if method.reads_weights:
            refuse_sharded(
                context.targets,
                str(method),
                "it looks at whole weights after each step; use DistributedDataParallel, or min_keep=0",
            )
        if to_goal:
            refuse_sharded(context.targets, "training to a goal", "use DistributedDataParallel")


NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

# These update each element on its own, so that a threshold may join a group of weights. Others (Muon,
# LARS) look at the whole tensor and must not get one unasked.
ELEMENTWISE = (SGD, Adam, AdamW, NAdam, RAdam, Adamax, RMSprop, Adagrad, Adadelta)


def param_groups(
    model: nn.Module,
    targets: Sequence[Target] = (),
    importances: Sequence[nn.Parameter] = (),
    *,
    weight_decay: float,
    norm_decay: float,
    threshold_decay: float | None = None,
    importance_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Groups that hold each trainable parameter once: "weight", "norm", "importance", "threshold" and "undecayed".

    None is empty. "norm" has the parameters of normalisation modules and everything else of one dimension, such as
    biases, unless it is managed. Thresholds and importances are decayed like weights unless they have a decay of their
    own; importances without one are among the weights.
    """
    threshold_decay = weight_decay if threshold_decay is None else threshold_decay
    check_decay("weight_decay", weight_decay)
    check_decay("norm_decay", norm_decay)
    check_decay("threshold_decay", threshold_decay)
    thresholds, undecayed = learnt(targets), learnt(targets, decayed=False)
    if thresholds and threshold_decay == 0:
        raise ValueError(
            "threshold_decay is 0: without decay s never leaves s_init and nothing becomes sparse; "
            "pass threshold_decay > 0 (the paper uses the weight decay), or freeze('thresholds') first"
        )
    if importance_decay is None:
        importances = ()
    else:
        check_decay("importance_decay", importance_decay)
        if not importances:
            raise ValueError("importance_decay is for importances of units, and there are none: leave it out")
    seen = {id(p) for p in (*thresholds, *undecayed, *importances)}
    managed = {id(target.raw) for target in targets}
    weights: list[nn.Parameter] = []
    norms: list[nn.Parameter] = []
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            small = isinstance(module, NORMS) or parameter.ndim <= 1
            (norms if small and id(parameter) not in managed else weights).append(parameter)
    groups: list[dict[str, Any]] = [
        {"name": "weight", "params": weights, "weight_decay": weight_decay},
        {"name": "norm", "params": norms, "weight_decay": norm_decay},
        {"name": "importance", "params": list(importances), "weight_decay": importance_decay},
        {"name": "threshold", "params": thresholds, "weight_decay": threshold_decay},
        {"name": "undecayed", "params": undecayed, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def learnt(targets: Iterable[Target], *, decayed: bool = True) -> list[nn.Parameter]:
    """What transforms learn, each parameter once: with weight decay, which are the thresholds, or without."""
    found = [p for t in targets if t.transform.decayed is decayed for p in t.transform.parameters()]
    return [p for p in dict.fromkeys(found) if p.requires_grad]


def check_decay(what: str, decay: float) -> None:
    if not (math.isfinite(decay) and decay >= 0):
        raise ValueError(f"{what} must be a finite number, 0 or more; got {decay}")


def group_of(parameter: nn.Parameter, optimizers: Iterable[Optimizer]) -> tuple[Optimizer, dict[str, Any]] | None:
    """The optimizer and its group that hold the parameter."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if any(p is parameter for p in group["params"]):
                return optimizer, group
    return None


def join_group(
    s: nn.Parameter,
    name: str,
    weight: nn.Parameter,
    optimizers: Sequence[Optimizer],
    decay: float | None,
    *,
    group_name: Literal["threshold", "undecayed"] = "threshold",
) -> None:
    """Let what a method learns be trained by an optimizer that was built before it existed.

    It joins the group of its weight and so has the same learning rate schedule and decay, as in the paper. A decay of
    its own needs a group of its own, like that of its weight in everything else.
    """
    found = group_of(weight, optimizers)
    assert found is not None
    optimizer, group = found
    kind = type(optimizer).__name__
    # A subclass with a step of its own may do anything. torch wraps the step of every class that it meets, so what is
    # compared is the function inside the wrappers.
    own_step = inspect.unwrap(type(optimizer).step)
    if not any(own_step is inspect.unwrap(known.step) for known in ELEMENTWISE):
        raise ValueError(
            f"{name} is in no optimizer and {kind} is not known to treat each element on its own: put the "
            f'"{group_name}" group of param_groups() into an SGD or AdamW and attach that one too'
        )
    as_weight = decay is None or decay == group["weight_decay"]
    if not as_weight and "initial_lr" in group:
        raise ValueError(
            f"{name} with a decay of {decay:g} needs a group of its own in {kind}, but a learning rate scheduler has "
            "been built on this optimizer and would not drive it: build the scheduler after attach(), or the optimizer "
            "from param_groups()"
        )
    wanted = {**_settings(group), "name": group_name, "weight_decay": decay}
    own = group if as_weight else next((g for g in optimizer.param_groups if _settings(g) == wanted), None)
    if own is not None:
        own["params"].append(s)
        if "param_names" in own:
            own["param_names"].append(name)
        return
    # torch wants names in all groups or in none. A tensor (a learning rate) is filled in place by schedulers:
    # two groups must not share one.
    copied = {key: v.clone() if isinstance(v, Tensor) else v for key, v in wanted.items()}
    optimizer.add_param_group({**copied, "params": [(name, s) if "param_names" in group else s]})


def take_out(thresholds: Iterable[nn.Parameter], optimizers: Sequence[Optimizer], decay: float) -> None:
    """Take thresholds out of groups that decay otherwise, so that `join_group` gives them one of their own.

    Only for optimizers that have no state yet: an optimizer over `model.parameters()` of a managed model.
    """
    for s in thresholds:
        found = group_of(s, optimizers)
        if found is not None and found[1].get("weight_decay") != decay:
            index = next(i for i, p in enumerate(found[1]["params"]) if p is s)
            for key in {"params", "param_names"} & found[1].keys():
                del found[1][key][index]


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def refuse_optimizers(optimizers: Sequence[Any], targets: Sequence[Target], total_steps: int) -> None:
    """Raise for what cannot be attached, before anything is changed."""
    if not isinstance(total_steps, int) or isinstance(total_steps, bool) or total_steps <= 0:
        raise ValueError(
            f"total_steps is the number of optimizer steps of the whole training, at least 1; got {total_steps!r}"
        )
    if not optimizers:
        raise ValueError("attach() needs at least one optimizer")
    if len({id(o) for o in optimizers}) < len(optimizers):
        raise ValueError("attach() was given the same optimizer twice")
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        # A wrapper may pose as an Optimizer, but torch runs hooks only for those that it has set up itself.
        if not isinstance(optimizer, Optimizer) or "_optimizer_step_pre_hooks" not in vars(optimizer):
            raise TypeError(f"attach() takes torch optimizers, got {kind}; for a wrapper pass the optimizer inside it")
        if isinstance(optimizer, LBFGS):
            raise ValueError(
                "LBFGS evaluates the loss many times inside one step, so there is no moment at which thresholds could "
                "be updated: use SGD or AdamW"
            )
    for target in targets:
        raw = target.raw
        _refuse_hooked(target.name, raw)
        holders = [o for o in optimizers if group_of(raw, [o])]
        if len(holders) > 1:
            raise ValueError(f"{target.name} is in {len(holders)} of the attached optimizers; keep it in one")
        if not holders and raw.requires_grad:
            raise ValueError(
                f"{target.name} is in none of the attached optimizers: build them from param_groups() or "
                "model.parameters() of this model, or freeze it (requires_grad_(False)) before sparsify"
            )


def _refuse_hooked(name: str, parameter: nn.Parameter) -> None:
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)
    if hooks or getattr(parameter, "_in_backward_optimizers", None):
        raise ValueError(
            f"{name} is stepped inside backward (optimizer-in-backward, or a post-accumulate-grad hook): there "
            "is no single step to attach to; use one optimizer and call its step() after backward"
        )


@contextmanager
def unchanged_on_error(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Give the optimizers their parameter groups back if the block raises."""
    kept = [
        [(group, list(group["params"]), list(group.get("param_names", ()))) for group in optimizer.param_groups]
        for optimizer in optimizers
    ]
    try:
        yield
    except BaseException:
        for optimizer, groups in zip(optimizers, kept, strict=True):
            optimizer.param_groups[:] = [group for group, _, _ in groups]
            for group, params, names in groups:
                group["params"][:] = params
                if "param_names" in group:
                    group["param_names"][:] = names
        raise


def place(
    model: nn.Module,
    targets: Sequence[Target],
    optimizers: Sequence[Optimizer],
    *,
    decayed: bool,
    decay: float | None = None,
) -> None:
    """See that one of the optimizers trains everything that transforms learn; what none has joins its weight's group.

    Thresholds (`decayed`) would never move without weight decay, and nothing would become sparse; other parameters
    must have none. `decay` is that of thresholds, by default that of the group.
    """
    if decay is not None:
        check_decay("threshold_decay", decay)
    names = {parameter: name for name, parameter in model.named_parameters()}
    weights = {p: target.raw for target in reversed(targets) for p in target.transform.parameters()}
    for parameter in learnt(targets, decayed=decayed):
        name = names[parameter]
        _refuse_hooked(name, parameter)
        holders = [o for o in optimizers if group_of(parameter, [o])]
        if len(holders) > 1:
            raise ValueError(f"{name} is in {len(holders)} of the attached optimizers; keep it in one")
        if not holders:
            group_name: Literal["threshold", "undecayed"] = "threshold" if decayed else "undecayed"
            own_decay = decay if decayed else 0.0
            join_group(parameter, name, weights[parameter], optimizers, own_decay, group_name=group_name)
        found = group_of(parameter, optimizers)
        assert found is not None
        kind, has = type(found[0]).__name__, found[1].get("weight_decay", 0.0)
        if decayed and not has > 0:
            raise ValueError(
                f"the thresholds are in a group of {kind} with weight_decay {has}: s would never move. A rule such as "
                "'no decay for one-dimensional parameters' catches them; build the optimizer from param_groups(), or "
                "pass threshold_decay > 0"
            )
        if decayed and decay is not None and has != decay:
            raise ValueError(
                f"threshold_decay={decay:g} was asked for, but the thresholds are already in a group with weight_decay "
                f"{has:g}: say it once"
            )
        if not decayed and has != 0.0:
            raise ValueError(
                f"{name} is in a group of {kind} with weight_decay {has:g}, which would drive it to 0: build the "
                "optimizer from param_groups()"
            )
