"""Freezing: stop learning the thresholds, fix the support, or fix the budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch

from softprune.core.parametrization import replace_transform
from softprune.core.sharding import refuse_sharded
from softprune.methods.masks import Masked
from softprune.methods.transforms import Target, Transform

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
                replace_transform(module, tensor, after)
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
