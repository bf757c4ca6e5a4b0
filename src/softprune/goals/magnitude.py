"""Global magnitude: one threshold on the weights' size for the whole model."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor, nn

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost
from softprune.budget.profiler import PrunableTensor, first_names, named_tensors, prunable_tensors
from softprune.goals.base import Goal

# What this many kept weights of a tensor add to the total.
Cost = Callable[[int], Fraction]


def global_magnitude(model: nn.Module, goal: Goal, *, profile: Profile | None = None) -> Budget:
    """Keep the largest weights of the whole model, whatever tensor they are in.

    The kept weights are a prefix of all weights sorted by size, equal sizes by (tensor, flat index):
    the longest one that does not exceed the goal. ``Sparsity`` and ``Params`` are met exactly;
    ``Flops`` to less than the MACs of one weight, ``Latency`` to less than its time.

    Args:
        model: its raw weights are read (before any parametrization).
        goal: ``Flops`` needs a profile; each weight costs its tensor's MACs per weight. ``Latency`` brings its table.
        profile: the tensors to share over; default all prunable ones.

    Example:
        >>> import torch
        >>> from softprune import Sparsity
        >>> layer = torch.nn.Linear(4, 1)
        >>> _ = layer.weight.data.copy_(torch.tensor([[0.1, -0.4, 0.3, 0.2]]))
        >>> global_magnitude(layer, Sparsity(0.5))["weight"]
        0.5
    """
    entries = _entries(model, profile)
    goal.check_allocatable()
    if profile is not None:
        rows = profile.only(entry.name for entry in entries)
    elif goal.measure == "macs":
        raise ValueError(
            f"a {type(goal).__name__} goal needs the costs: global_magnitude(model, goal, "
            "profile=softprune.profile(...))"
        )
    else:
        shapes = (TensorCost(entry.name, tuple(entry.parameter.shape), macs=0) for entry in entries)
        rows = Profile(tuple(shapes), counted=False)
    costs = goal.costs(rows)
    counts = _kept(
        [_sorted_bits(entry) for entry in entries],
        [costs[entry.name].exact for entry in entries],
        limit=Fraction(goal.allowance(rows)),
    )
    densities = {e.name: count / e.parameter.numel() for e, count in zip(entries, counts, strict=True)}
    return Budget(densities, profile, f"global magnitude, {goal}")


def _entries(model: nn.Module, profile: Profile | None) -> list[PrunableTensor]:
    if profile is None:
        entries = first_names(prunable_tensors(model))
    else:
        entries = named_tensors(model, profile.names)
        if wrong := [e.name for e in entries if tuple(e.parameter.shape) != profile[e.name].shape]:
            raise ValueError(f"the profile is of another model: {', '.join(wrong)} have other shapes there")
    entries = [entry for entry in entries if entry.parameter.numel()]
    if not entries:
        raise ValueError(f"{type(model).__name__} has no prunable weights")
    return entries


def _sorted_bits(entry: PrunableTensor) -> Tensor:
    """|w| in ascending order as integers: the bits of non-negative floats order as the floats do."""
    weight = entry.parameter.detach()
    if weight.is_meta:
        raise ValueError(f"{entry.name} is on the meta device and has no values; load the weights first")
    if weight.isnan().any():
        raise ValueError(f"{entry.name} contains NaN; its weights cannot be ranked")
    # float64 holds every other float type exactly, so that one scale serves tensors of mixed types.
    return weight.abs().flatten().double().sort().values.view(torch.int64)


def _kept(ranked: Sequence[Tensor], costs: Sequence[Cost], *, limit: Fraction) -> list[int]:
    """How many of each tensor's largest entries fit into ``limit``."""

    def above(bits: int) -> list[int]:
        return [len(keys) - int(torch.searchsorted(keys, bits, right=True)) for keys in ranked]

    def total(counts: Sequence[int]) -> Fraction:
        return sum((cost(n) for n, cost in zip(counts, costs, strict=True)), Fraction(0))

    # The smallest key such that everything strictly above it fits; -1 is below every key.
    low, high = -2, max(int(keys[-1]) for keys in ranked)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if total(above(middle)) <= limit else (middle, high)
    counts = above(high)
    left = limit - total(counts)
    for i, (with_ties, cost) in enumerate(zip(above(high - 1), costs, strict=True)):
        most = cost(counts[i]) + left
        # Of equal weights as many as fit: costs never fall with the number.
        fit = bisect_right(range(counts[i] + 1, with_ties + 1), most, key=cost)
        left = most - cost(counts[i] + fit)
        counts[i] += fit
        if counts[i] < with_ties:
            break
    return counts
