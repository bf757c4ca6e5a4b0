"""Allocators: share a total over the tensors by a rule. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost, equal_density
from softprune.goals.base import Goal

# Halvings of the searched interval: more than the bits of a float, so that the search is exact.
BISECTIONS = 80


def uniform(profile: Profile, goal: Goal, *, dense: Sequence[str] = ()) -> Budget:
    """The same density for every tensor.

    Args:
        goal: ``Sparsity`` counts the tensors that are not ``dense``, ``Params`` all tensors, ``Flops`` and ``Latency``
            also the other layers and the average pools.
        dense: names or shell-style patterns of tensors kept whole.

    Example:
        >>> from softprune import Budget, Sparsity
        >>> uniform(Budget.load("resnet50/uniform-90").profile, Sparsity(0.9)).macs()
        409018778
    """
    free = _free(profile, goal, dense)

    def share(kept: float) -> Mapping[str, float]:
        return dict.fromkeys((t.name for t in free), kept / sum(t.params for t in free))

    equal = None if goal.sparsity is None else dict.fromkeys((t.name for t in free), 1.0 - goal.sparsity)
    return _budget(profile, equal or _solve(profile, goal, free=free, share=share), f"uniform, {goal}")


def erk(profile: Profile, goal: Goal, *, dense: Sequence[str] = (), power: float = 1.0) -> Budget:
    """Erdos-Renyi-Kernel: the density of a tensor falls with the size of its shape.

    density_l = min(1, eps * raw_l), raw_l = (sum of the dimensions / number of weights)**power

    eps is set by the total; tensors that would pass density 1 are kept whole and the rest is shared anew (RigL,
    Evci et al. 2020, appendix).

    Args:
        goal: as in :func:`uniform`. For ``Sparsity`` each tensor gives floor(sparsity * weights) zeros to the total, as
            the reference implementation does.
        dense: names or shell-style patterns of tensors kept whole, left out of eps.
        power: 1 is ERK; 0 is uniform.

    Example:
        >>> from softprune import Budget, Sparsity
        >>> budget = erk(Budget.load("resnet50/erk-90").profile, Sparsity(0.9))
        >>> round(budget.sparsity("fc.weight"), 4)
        0.9273
    """
    if not (math.isfinite(power) and power >= 0):
        raise ValueError(f"power must be a finite number >= 0, got {power}")
    free = _free(profile, goal, dense)

    def share(kept: float) -> Mapping[str, float]:
        return _shared({t.name: (sum(t.shape) / t.params) ** power for t in free}, free, kept)

    if goal.sparsity is not None:
        densities = share(sum(t.params - math.floor(goal.sparsity * t.params) for t in free))
    else:
        densities = _solve(profile, goal, free=free, share=share)
    return _budget(profile, densities, f"erk, {goal}")


def scaled(profile: Profile, goal: Goal, *, like: Budget) -> Budget:
    """The proportions of another budget, at another total.

    density_l = min(1, c * like_l), with c set by the total. So a budget that was learnt at another sparsity, or on a
    smaller network of the same family whose tensors have the same names, serves here.

    Example:
        >>> from softprune import Budget, Sparsity
        >>> learnt = Budget.load("resnet50/str-95.03")
        >>> budget = scaled(learnt.profile, Sparsity(0.9), like=learnt)
        >>> round(budget.overall, 4), round(budget["conv1.weight"] / learnt["conv1.weight"], 3)
        (0.9, 2.01)
    """
    Budget(dict(like)).validate(profile)  # the shapes may differ, the names not
    free = [t for t in _free(profile, goal, ()) if like[t.name] > 0]

    def share(kept: float) -> Mapping[str, float]:
        return _shared({t.name: like[t.name] for t in free}, free, kept)

    if goal.sparsity is not None:
        kept, most = (1.0 - goal.sparsity) * profile.params, sum(t.params for t in free)
        if kept > most:
            raise ValueError(f"{goal} keeps {kept:,.0f} weights, the tensors that {like.source} keeps have {most:,}")
        densities = share(kept)
    else:
        densities = _solve(profile, goal, free=free, share=share, others=0.0)
    return _budget(profile, {name: densities.get(name, 0.0) for name in profile.names}, f"{like.source}, {goal}")


def _shared(raw: Mapping[str, float], tensors: Sequence[TensorCost], kept: float) -> dict[str, float]:
    """Share ``kept`` weights over ``tensors`` in proportion to ``raw``, none above density 1."""
    size = {t.name: t.params for t in tensors}
    open_ = dict(raw)
    while open_:
        # What the whole tensors leave: sum(N - z) over the open ones - sum(z) over the whole ones.
        left = kept - sum(n for name, n in size.items() if name not in open_)
        eps = left / sum(raw[name] * size[name] for name in open_)
        highest = max(open_.values())
        if highest * eps <= 1.0:
            return {name: eps * raw[name] if name in open_ else 1.0 for name in raw}
        open_ = {name: value for name, value in open_.items() if value != highest}
    return dict.fromkeys(raw, 1.0)


def _solve(
    profile: Profile,
    goal: Goal,
    *,
    free: Sequence[TensorCost],
    share: Callable[[float], Mapping[str, float]],
    others: float = 1.0,
) -> Mapping[str, float]:
    """The densities at which the total meets ``goal``; ``others`` is that of the tensors that are not free.

    Every density that ``share`` returns must grow with the weights shared.
    """
    costs, names = goal.costs(profile), {t.name for t in free}
    fixed = goal.fixed(profile) + sum(cost.at(others) for name, cost in costs.items() if name not in names)
    shared = {name: cost for name, cost in costs.items() if name in names}
    wanted = goal.amount(profile)
    low, high = (fixed + sum(cost.at(density) for cost in shared.values()) for density in (0.0, 1.0))
    goal.check_reachable(wanted, low, high)
    each = {cost.each for cost in shared.values()}
    if all(cost.linear for cost in shared.values()) and len(each) == 1:
        return share((wanted - fixed) / each.pop())

    def spent(kept: float) -> float:
        densities = share(kept)
        return math.fsum(cost.at(densities[name]) for name, cost in shared.items())

    return share(equal_density(spent, wanted - fixed, most=float(sum(t.params for t in free)), halvings=BISECTIONS))


def _free(profile: Profile, goal: Goal, dense: Sequence[str]) -> list[TensorCost]:
    goal.check_allocatable()
    kept_whole = set(profile.match(dense))
    free = [t for t in profile if t.name not in kept_whole and t.params]
    if not free:
        raise ValueError(f"dense={dense!r} keeps every tensor whole; leave at least one to the allocator")
    return free


def _budget(profile: Profile, densities: Mapping[str, float], source: str) -> Budget:
    # The last bit of a quotient may pass 1.
    return Budget({name: min(1.0, densities.get(name, 1.0)) for name in profile.names}, profile, source)
