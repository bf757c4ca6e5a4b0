"""What a method accepts as its total, and how a total is divided over tensors to begin with."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from softprune.budget.goals import Filters, Flops, Goal, Latency, Params
from softprune.methods.base import Method, Target, Total, generator
from softprune.methods.shares import share_out
from softprune.methods.transforms import Transform


def refuse_total(method: Method, total: Total) -> None:
    """Raise if the method cannot work with what it is given, and say with what it can."""
    if total in method.accepts:
        return
    name = type(method).__name__
    if method.accepts == ("none",):
        raise ValueError(f"{name} takes neither a goal nor a budget: leave it out")
    ways = {
        "none": "leave it out",
        "goal": "pass a goal, as in goal=Sparsity(0.9)",
        "budget": "pass a budget, as in budget=erk(softprune.profile(model, example), Sparsity(0.9))",
    }
    has = {
        "none": f"{name} prunes to a total and got none",
        "goal": f"{name} keeps what each tensor is given and cannot share a goal out",
        "budget": f"{name} finds out by itself what each tensor keeps and takes no budget",
    }
    raise ValueError(f"{has[total]}: {' or '.join(ways[way] for way in method.accepts)}")


def divide(goal: Goal, sizes: Mapping[str, int]) -> dict[str, int]:
    """A total in equal proportions: whole weights, at least one for each tensor, and the sum is exact.

    >>> divide(Params(5), {"a": 10, "b": 20, "c": 3})
    {'a': 1, 'b': 3, 'c': 1}
    """
    if isinstance(goal, Flops | Latency):
        what = "multiply-adds" if isinstance(goal, Flops) else "milliseconds"
        raise ValueError(f"{goal} counts {what}: divide it first, as in budget=uniform(profile, goal)")
    if not isinstance(goal, Filters) and goal.scope != "managed":
        raise ValueError(f'{goal} counts all parameters, these masks know the managed ones only: leave out scope="all"')
    count = sum(sizes.values())
    total = min(goal.count, count) if isinstance(goal, Params | Filters) else goal.kept(count)
    if total < len(sizes):
        raise ValueError(f"{goal} keeps {total} weights, fewer than the {len(sizes)} tensors: ask for less sparsity")
    kept = {name: max(1, share) for name, share in share_out(total, sizes, sizes).items()}
    # Where the least of one has taken too many, the largest give.
    while sum(kept.values()) > total:
        kept[max(kept, key=lambda n: kept[n])] -= 1
    return kept


def first_masks(
    targets: Mapping[str, Target], methods: Mapping[str, Method], kept: Mapping[str, int], seed: int
) -> dict[str, Transform]:
    """The masks that training begins with."""
    made: dict[str, Transform] = {}
    for name, target in targets.items():
        if target.raw.device == torch.device("meta"):
            raise ValueError(f"{name} is on the meta device and has no weights to choose from: load the weights first")
        made[name] = methods[name].first_mask(target, kept[name], generator(seed, 0, name))
    return made
