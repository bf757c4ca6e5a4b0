"""What a goal means for the tensors that it is for: the price of their weights, and what they may cost together."""

from __future__ import annotations

from collections.abc import Mapping

from softprune.budget.costs import Profile
from softprune.budget.goals import Filters, Flops, Goal, Latency, Params, Sparsity, require_in_time, require_reachable
from softprune.core.goals.price import Price


def prices_of(goal: Goal, sizes: Mapping[str, int], profile: Profile) -> dict[str, Price]:
    """What kept weights of each tensor cost in the unit of the goal.

    Args:
        goal: the total.
        sizes: the number of weights of each tensor.
        profile: their multiply-adds, for a Flops goal.
    """
    if isinstance(goal, Latency):
        return {name: Price(curve=goal.table.curve(name), size=size) for name, size in sizes.items()}
    if isinstance(goal, Flops):
        return {name: Price(profile[name].macs / size) for name, size in sizes.items()}
    return dict.fromkeys(sizes, Price())


def allowance(goal: Goal, sizes: Mapping[str, int], profile: Profile, other_params: int) -> float:
    """What the tensors may cost together.

    Raises:
        ValueError: if no set of densities reaches the goal.
    """
    if isinstance(goal, Latency):
        table = goal.table
        none = table.total(dict.fromkeys(sizes, 0.0))
        require_in_time(goal, none, high=table.total({}))
        return goal.seconds - (none - sum(table.seconds(name, 0.0) for name in sizes))
    if isinstance(goal, Flops):
        fixed = profile.total_macs() - sum(profile[name].macs for name in sizes)
        require_reachable(goal, fixed, high=profile.total_macs())
        return float(goal.macs - fixed)
    count = sum(sizes.values())
    if isinstance(goal, Filters):
        require_reachable(goal, 0, high=count)
        return float(goal.count)
    if isinstance(goal, Params):
        outside = other_params if goal.scope == "all" else 0
        require_reachable(goal, outside, high=count + outside)
        return float(goal.count - outside)
    return float(_kept(goal, count, other_params))


def _kept(goal: Sparsity, count: int, other_params: int) -> int:
    if goal.scope == "managed":
        return goal.kept(count)
    kept = goal.kept(count + other_params) - other_params
    if kept < 1:
        raise ValueError(
            f"{goal} cannot be reached: {other_params:,} of the {count + other_params:,} parameters of the model are "
            'not managed; leave out scope="all", or ask for less'
        )
    return kept
