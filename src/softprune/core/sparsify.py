"""The entry: put a method on a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from softprune.budget.costs import Profile, TensorCost
from softprune.budget.profiler import profile
from softprune.core.parametrization import register
from softprune.core.plan import plan
from softprune.core.refusal import refuse_model
from softprune.core.rule import Match, Rule
from softprune.core.sparsifier import Sparsifier
from softprune.methods.base import Method


def sparsify(
    model: nn.Module,
    method: Method,
    *,
    skip: Match | Iterable[Match] = (),
    rules: Sequence[Rule] = (),
    example: Any = None,
) -> Sparsifier:
    """Put a method on the weights of any model, in place.

    The model keeps its modules, its Parameter objects and its forward. Every managed weight now reads as the
    method's transform of the raw one. Everything is checked before the first change.

    Args:
        model: any module; wrap it (DistributedDataParallel, fully_shard, torch.compile) afterwards.
        method: such as `STR(s_init=-3200)`.
        skip: tensors to leave alone: globs, regular expressions, module types, predicates on (name, module).
        rules: settings for some tensors, applied in order.
        example: an input (or a tuple or dict of inputs) of batch size one; with it budgets know their MACs.

    Returns:
        The handle to attach optimizers to, to measure and to bake.

    Raises:
        ValueError: for input that cannot work; the model is untouched then.
    """
    inner = refuse_model(model)
    decided = plan(inner, method, skip=skip, rules=rules)
    managed = decided.managed
    if example is not None:
        costs = profile(inner, example, tensors=[p.target.name for p in managed])
    else:
        costs = Profile(
            tuple(TensorCost(p.target.name, tuple(p.target.raw.shape), macs=0) for p in managed), counted=False
        )
    for planned in managed:
        assert planned.transform is not None
        planned.transform.train(planned.target.module.training)
        for module, tensor in planned.target.sites:
            register(module, tensor, planned.transform)
    return Sparsifier(inner, method, decided, costs)
