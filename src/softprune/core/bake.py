"""From a managed model back to a plain one: what is fixed on the way, and baking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from softprune.core.collapse import refuse_nonfinite
from softprune.core.groups import refuse_sharded
from softprune.core.parametrization import inside_compiled, link_of, managed_tensors, unregister
from softprune.goals.constraint import Constraint, copied
from softprune.methods.masks import Masked
from softprune.methods.transforms import Target, Transform
from softprune.structure.gates import behind_gates, fold_gates, fold_ranks

if TYPE_CHECKING:
    from softprune.core.sparsifier import Sparsifier


def managed_targets(model: nn.Module) -> tuple[Target, ...]:
    """The managed tensors of any model, also of a deep copy or an average; tied ones once."""
    sites: dict[int, tuple[str, list[tuple[nn.Module, str]]]] = {}
    for name, module, tensor in managed_tensors(model):
        raw = Target(name, ((module, tensor),)).raw
        sites.setdefault(id(raw), (name, []))[1].append((module, tensor))
    return tuple(Target(name, tuple(places)) for name, places in sites.values())


def constraints_of(sparsifier: Sparsifier, model: nn.Module) -> tuple[tuple[Constraint, ...], tuple[Target, ...]]:
    """The goals and tensors of a Sparsifier as they are in `model`: its own model, a copy, or what is around either."""
    found, inner = [], model
    for target in managed_targets(model):
        link = link_of(*target.sites[0])
        if link.sparsifier is sparsifier:
            if target.name.endswith(f".{link.name}"):
                inner = model.get_submodule(target.name.removesuffix(f".{link.name}"))
            found.append(Target(link.name, target.sites))  # under the name that it has in the model of the Sparsifier
    own = {id(target.raw) for target in sparsifier.targets}
    if all(id(target.raw) in own for target in found):
        return sparsifier.goals, sparsifier.targets
    targets = copied(sparsifier.targets, found)
    return tuple(constraint.on(inner, targets) for constraint in sparsifier.goals), targets


def bake(model: nn.Module, *, at: Literal["now", "target"] | None = None, fold: bool = True) -> nn.Module:
    """Write the zeros into the weights and give every module its own class back, in place.

    The model then has the keys, the classes and the Parameter objects that it had before `sparsify`, and
    computes exactly what the managed model computed. Works on copies and averages of a managed model, and on what is
    around either: averages get the masks and thresholds of the model, a copy whose weights are those of the moment at
    which it was made keeps its own, and every goal is met anew with their weights.

    Layers whose ranks were managed (`Units.rank`) are replaced by smaller ones: without m, without dead directions, and
    as one matrix where factors would take no fewer weights.

    Args:
        model: the managed model.
        at: under a goal that the training has not reached yet: "now" takes the weights as sparse as they are, "target"
            makes them as sparse as the goal says, without training.
        fold: False keeps such layers as they are, with zeros in m.

    Returns:
        The same model; of a compiled or DistributedDataParallel one the module inside. A model that is itself a layer
        of low rank cannot be made smaller in place: then it is the smaller layer.

    Raises:
        ValueError: if nothing is managed, the weights are sharded, or not finite, or a goal does not hold yet.
    """
    if at not in (None, "now", "target"):
        raise ValueError(f'bake() takes at="now" or at="target", got {at!r}')
    model = _plain_inside(model)
    links = (link_of(module, tensor) for _, module, tensor in managed_tensors(model))
    for sparsifier in {id(link.sparsifier): link.sparsifier for link in links}.values():
        if sparsifier is not None:
            sparsifier.prepare_bake(model, at)
    model, targets = _unwrap(model, keep_zeros=True)
    return fold_ranks(model, targets) if fold else model


def remove(model: nn.Module) -> nn.Module:
    """Take the transforms off and leave the raw dense weights, in place."""
    return _unwrap(model, keep_zeros=False)[0]


def _plain_inside(model: nn.Module) -> nn.Module:
    model = inside_compiled(model)
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        model = inside_compiled(model.module)
    return model


@torch.no_grad()
def _unwrap(model: nn.Module, *, keep_zeros: bool) -> tuple[nn.Module, tuple[Target, ...]]:
    model = _plain_inside(model)
    targets = managed_targets(model)
    if not targets:
        raise ValueError(
            f"nothing is managed in {type(model).__name__}: it was baked or removed already, or never sparsified"
        )
    refuse_sharded(
        targets,
        "bake() or remove()",
        "gather with torch.distributed.checkpoint.state_dict.get_model_state_dict(full_state_dict=True), "
        "load that into a sparsified model that is not sharded, and bake that one",
    )
    if keep_zeros:
        refuse_nonfinite((*targets, *behind_gates(model)), "bake()")
    for target in targets:
        if keep_zeros:
            target.transform.settle_(target.raw)
            effective = target.effective.detach()
            if effective.data_ptr() != target.raw.data_ptr():
                target.raw.copy_(effective)
        for module, tensor in target.sites:
            unregister(module, tensor)
    fold_gates(model)
    return model, targets


# Batch norm statistics for a network whose weights have changed without training.


@torch.no_grad()
def recalibrate_bn(model: nn.Module, loader: Iterable[Any], *, batches: int | None = None) -> nn.Module:
    """Measure the running statistics of every batch norm anew, as a plain average over the batches.

    Needed after thresholds were changed by hand, after averaging weights, or after one-shot pruning; not after
    `bake()`, which changes nothing. Only batch norms are in training mode meanwhile: dropout stays off.

    Args:
        model: any module; it is returned.
        loader: batches as the model's training loop gets them: a tensor, a (inputs, ...) tuple or a dict of inputs.
        batches: how many to use; None takes all.

    Raises:
        ValueError: if the model has no batch norm with running statistics, or the loader no batch.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not norms:
        raise ValueError(
            f"{type(model).__name__} has no batch norm with running statistics: there is nothing to recalibrate"
        )
    if batches is not None and batches < 1:
        raise ValueError(f"batches must be at least 1, got {batches}")
    training = {m: m.training for m in model.modules()}
    momenta = {m: m.momentum for m in norms}
    kept = {m: (m.running_mean, m.running_var, m.num_batches_tracked) for m in norms}
    before = {m: [None if t is None else t.clone() for t in tensors] for m, tensors in kept.items()}
    device = next((t.device for t in model.parameters()), torch.device("cpu"))
    seen = 0
    try:
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # torch's word for a cumulative average
            norm.train()
        for batch in islice(loader, batches):
            if isinstance(batch, dict):
                model(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()})
            else:
                model((batch[0] if isinstance(batch, list | tuple) else batch).to(device))
            seen += 1
        if not seen:
            raise ValueError("the loader gave no batch: pass one with data (an iterator can be read only once)")
    except BaseException:
        for norm, tensors in before.items():
            for current, old in zip(kept[norm], tensors, strict=True):
                if current is not None and old is not None:
                    current.copy_(old)
        raise
    finally:
        for module, flag in training.items():
            module.training = flag
        for norm, momentum in momenta.items():
            norm.momentum = momentum
    return model


# Freezing: stop learning the thresholds, fix the support, or fix the budget.


Freezable = Literal["thresholds", "support", "budget"]
# What is fixed, the more the later: a fixed support fixes the number of weights too, and that the threshold.
FIXED = ("nothing", "thresholds", "budget", "support")


@torch.no_grad()
def freeze_(targets: Sequence[Target], what: Freezable) -> None:
    """Change the transforms of all targets.

    - "thresholds": s stays where it is; weights may still fall below it or grow above it.
    - "support": the present zeros stay, everything else trains freely. The raw weights take the effective
      values, the threshold goes, a fixed mask comes.
    - "budget": every tensor keeps the number of weights it has now, under a soft threshold that follows its
      weights. A mask stays as it is: that keeps the number too.

    DistributedDataParallel waits for a gradient of every threshold that it has seen: wrap the model anew after
    freezing, or wrap it with find_unused_parameters=True.
    """
    if what not in get_args(Freezable):
        raise ValueError(f"freeze() takes {', '.join(map(repr, get_args(Freezable)))}; got {what!r}")
    for target in targets:
        fixed = target.transform.fixes
        if FIXED.index(fixed) > FIXED.index(what):
            raise ValueError(f"the {fixed} of {target.name} is fixed already, freeze({what!r}) would change nothing")
        if what == "budget" and not target.transform.countable:
            raise ValueError(f"what {target.name} keeps without a goal is not a fixed number: use freeze('support')")
    if what != "thresholds":
        refuse_sharded(targets, f"freeze({what!r})", "freeze before fully_shard, or use DistributedDataParallel")
    for target in targets:
        before = target.transform
        after = before.held(target.raw) if what == "budget" else _masked(target) if what == "support" else None
        if after is not None:
            after.train(target.module.training)
            for module, tensor in target.sites:
                lists: Any = module.parametrizations
                lists[tensor][0] = after
        if after is not None or what == "thresholds":
            for learnt in before.parameters():
                learnt.requires_grad_(False)
                # Optimizers skip a parameter without a gradient, its decay included.
                learnt.grad = None


def _masked(target: Target) -> Transform:
    target.transform.settle_(target.raw)
    effective = target.effective.detach().clone()
    target.raw.copy_(effective)
    return Masked(target.transform.support(effective))
