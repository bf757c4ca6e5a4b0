"""Freezing: stop learning the thresholds, fix the support, or fix the budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch

from softprune.core.parametrization import replace_transform
from softprune.core.sharding import refuse_sharded
from softprune.methods.base import Target
from softprune.methods.transforms import (
    HeldThreshold,
    Masked,
    PowerThreshold,
    SoftThreshold,
    SolvedMask,
    SolvedThreshold,
    Transform,
)
from softprune.methods.vd import Variational

Freezable = Literal["thresholds", "support", "budget"]


def freeze_(targets: Sequence[Target], what: Freezable) -> None:
    """Change the transforms of all targets.

    - "thresholds": s stays where it is; weights may still fall below it or grow above it.
    - "support": the zeros of now stay, everything else trains freely. The raw weights take the effective
      values, the threshold goes, a fixed mask comes.
    - "budget": every tensor keeps the number of weights it has now, under a soft threshold that follows its
      weights.

    DistributedDataParallel waits for a gradient of every threshold that it has seen: wrap the model anew after
    freezing, or wrap it with find_unused_parameters=True.
    """
    if what not in get_args(Freezable):
        raise ValueError(f"freeze() takes {', '.join(map(repr, get_args(Freezable)))}; got {what!r}")
    _refuse_loosening(targets, what)
    if what != "thresholds":
        refuse_sharded(tuple(targets), f"freeze({what!r})", "freeze before fully_shard, or use DistributedDataParallel")
    for target in targets:
        if what == "thresholds":
            _stop_threshold(target)
        else:
            _exchange(target, _support(target) if what == "support" else _held(target))


def _refuse_loosening(targets: Sequence[Target], what: Freezable) -> None:
    """A fixed support fixes the number of weights too, and that the threshold: one may only go on to fix more."""
    fixed: dict[type[Transform], str] = {Masked: "support", HeldThreshold: "budget"}
    fixes_less: dict[Freezable, tuple[type[Transform], ...]] = {
        "thresholds": (Masked, HeldThreshold),
        "budget": (Masked,),
        "support": (),
    }
    for target in targets:
        kind = type(target.transform)
        if kind in fixes_less[what]:
            raise ValueError(
                f"the {fixed[kind]} of {target.name} is fixed already, freeze({what!r}) would change nothing"
            )
        if what == "budget" and kind is Variational:
            raise ValueError(f"what {target.name} keeps without a goal is no number to hold: use freeze('support')")


def _stop_threshold(target: Target) -> None:
    for learnt in target.transform.parameters():
        learnt.requires_grad_(False)
        # Optimizers skip a parameter without a gradient, its decay included.
        learnt.grad = None


@torch.no_grad()
def _support(target: Target) -> Transform | None:
    target.transform.settle_(target.raw)
    effective = target.effective.detach().clone()
    target.raw.copy_(effective)
    # A weight that a mask has just let in is 0 by its value only.
    return Masked(target.transform.mask if isinstance(target.transform, Masked) else effective != 0)


@torch.no_grad()
def _held(target: Target) -> Transform | None:
    transform = target.transform
    # A mask stays as it is: that keeps the number too.
    if not isinstance(transform, SoftThreshold | SolvedThreshold) or isinstance(transform, SolvedMask):
        return None
    kept = int(torch.count_nonzero(target.effective))
    rescale = isinstance(transform, SolvedThreshold) and transform.rescale
    power = transform.power if isinstance(transform, PowerThreshold) else 1.0
    alpha = transform.in_use if isinstance(transform, SolvedThreshold) else transform.alpha
    held = HeldThreshold(alpha, kept, backward=transform.backward_mode, rescale=rescale, power=power)
    if held.leak is not None and transform.leak is not None:
        held.leak.copy_(transform.leak)
    return held


def _exchange(target: Target, transform: Transform | None) -> None:
    if transform is None:
        return
    _stop_threshold(target)
    transform.train(target.module.training)
    for module, tensor in target.sites:
        replace_transform(module, tensor, transform)
