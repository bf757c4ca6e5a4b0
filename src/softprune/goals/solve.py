"""The solver: thresholds that meet the total of a constraint exactly; and the learner that moves them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from softprune.budget.costs import PerWeight
from softprune.goals.constraint import ConstrainedTensor, Constraint
from softprune.goals.scan import Array, count_nonzero, flat_like, for_each, numbers, rows_of, signed_sums
from softprune.goals.select import Bounds, Ranked, select, set_thresholds_, spent
from softprune.methods.transforms import Solved

if TYPE_CHECKING:
    from softprune.structure.joint_cost import JointCost

# Units are few: all of their keys are looked at.
EVERYTHING = Bounds(0.0, math.inf)


@torch.no_grad()
def solve(constraint: Constraint, allowed: float) -> None:
    """Move the shared offset of the thresholds until the kept weights cost what is allowed.

    A tensor that would fall below its floor keeps its largest weights, and its s is set to what that means, so that it
    can leave the floor again.
    """
    transforms = {one: one.transform for one in constraint.tensors}
    if allowed >= constraint.full:
        for one, transform in transforms.items():
            alpha, crossing = torch.zeros_like(transform.alpha), torch.zeros_like(transform.crossing)
            transform.take_(alpha, crossing, one.target.raw)
        return
    _refuse_scattered(constraint)
    ranked = {one: _ranked(one, transform) for one, transform in transforms.items()}
    guess = constraint.predictor.guess(sum(r.w.numel() for r in ranked.values()))
    # What one more unit of each tensor costs about now, where units cost together.
    marginal = dict.fromkeys(constraint.tensors, 1.0)
    if constraint.joint is not None:
        # From here on units are counted: as many as the joint cost allows.
        now = sum(int(torch.count_nonzero(r.w.abs() > transforms[one].alpha)) for one, r in ranked.items())
        floors = [one.floor for one in constraint.tensors]
        allowed, costs = affordable(constraint.joint, list(ranked.values()), floors, allowed, about=now)
        marginal, guess = dict(zip(constraint.tensors, costs, strict=True)), EVERYTHING
    held: dict[ConstrainedTensor, int] = {}  # tensors at their floor, and what they keep
    free, room = list(constraint.tensors), allowed
    while True:
        selection = select([ranked[one] for one in free], room, guess=guess)
        if selection is None:
            break
        # Without the tensors at their floor the border lies close by: most often what has been seen shows it, too.
        guess = selection.bounds
        floored = [_floor(one, ranked[one], kept) for one, kept in zip(free, selection.kept, strict=True)]
        if all(floor is None for floor in floored):
            break
        held |= {one: floor for one, floor in zip(free, floored, strict=True) if floor is not None}
        free = [one for one in free if one not in held]
        room = allowed - sum(spent(one.cost, floor) for one, floor in held.items())
    border = 0.0 if selection is None else selection.border
    for one, found in zip(free, set_thresholds_([ranked[one] for one in free], selection), strict=True):
        # Where one weight costs more than another of the same tensor, crossings are counted in what they cost.
        slope = 1.0 if one.cost.linear else one.cost.slope(found.kept)
        crossing = found.crossing * (slope * marginal[one])
        transforms[one].take_(found.alpha, crossing, ranked[one].w)
    for one, floor in held.items():
        _hold(one, transforms[one], ranked[one], floor, border, guess)
    _refuse_flushed(constraint, border)
    constraint.predictor.note(border, 0.0 if selection is None else selection.weights_per_log)


def _floor(one: ConstrainedTensor, ranked: Ranked, kept: int) -> int | None:
    """The number of weights to hold a tensor at that would keep this many; None if they are enough."""
    if kept >= one.floor:
        return None
    # A weight that is 0 by itself cannot be kept.
    floor = count_nonzero(ranked.rows, enough=one.floor)
    return floor if kept < floor else None


def _ranked(one: ConstrainedTensor, transform: Solved) -> Ranked:
    scores = transform.scores(one.target.raw.detach())
    # All values of s are NaN until there is a first one.
    if math.isnan(transform.s.view(-1)[0]):
        transform.s.fill_(_start(one, transform.s.dtype))
    return Ranked(scores, torch.exp(transform.s), one.cost)


def _start(one: ConstrainedTensor, dtype: torch.dtype) -> float:
    """The first value of s, from the weights as they are when the first of them goes."""
    if one.settings.start == "equal":
        return 0.0
    if one.settings.start == "dimensions":
        return -0.5 * math.log(sum(one.target.shape))
    mean = float(one.target.raw.detach().abs().to(dtype).mean())
    return math.log(mean) if 0.0 < mean < math.inf else 0.0


def _hold(
    one: ConstrainedTensor, transform: Solved, ranked: Ranked, floor: int, border: float, guess: Bounds | None
) -> None:
    """Keep this many of a tensor's largest weights."""
    ranked.cost = PerWeight()  # a floor is a number of weights
    selection = select([ranked], floor, guess=guess)
    (found,) = set_thresholds_([ranked], selection)
    # A tensor at its floor has no say in where the border lies.
    transform.take_(found.alpha, torch.zeros_like(found.crossing), ranked.w)
    transform.pull.zero_()
    # Where s is not learnt it is the method's own measure of the weights, and stays what it is.
    if one.settings.pace > 0.0 and selection is not None and selection.border > 0.0 and border > 0.0:
        transform.s.add_(math.log(selection.border / border))


def _refuse_flushed(constraint: Constraint, border: float) -> None:
    """Differences of numbers this small are denormal: where the processor takes these for 0, more weights go."""
    tiny = torch.finfo(torch.float32).tiny
    if 0.0 < border < 1e-30 and bool(torch.full((1,), tiny) * 0.5 == 0.0):
        raise ValueError(
            f"{constraint.goal} cuts at |w| = {border:.3g}, and torch.set_flush_denormal(True) takes differences of "
            "such small weights for 0, so that the total would be missed: turn it off, or scale the weights"
        )


def _refuse_scattered(constraint: Constraint) -> None:
    devices = {one.target.raw.device for one in constraint.tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(
            f"{constraint.goal} is for tensors on several devices ({names}), whose weights cannot be compared: give "
            "each device a goal of its own with Rule(..., goal=...)"
        )


# Units that cost together: how many of them, the largest keys first, fit into a total.


def affordable(
    joint: JointCost, ranked: Sequence[Ranked], floors: Sequence[int], allowed: float, *, about: int
) -> tuple[int, list[float]]:
    """The units that each tensor keeps in any case, and then the largest keys, as many as are allowed.

    Found is a number of units that fit, while with the next one they do not. That holds also where the cost does not
    rise with every unit.

    Args:
        joint: what units cost.
        ranked: the importances.
        floors: the number of units that each of them keeps.
        allowed: the total.
        about: where the search begins: how many units there are now.

    Returns:
        The number of units, and what one of each tensor costs about then.
    """
    joint = joint.now()
    keys = [_keys(r) for r in ranked]
    starts = np.cumsum([0, *map(len, keys)])
    key = np.concatenate(keys)
    alive = np.zeros(len(key), np.bool_)
    for start, mine, floor in zip(starts, keys, floors, strict=False):
        alive[start + np.argsort(-mine, kind="stable")[:floor]] = True
    alive &= key > 0.0  # one that is 0 by itself cannot be kept
    more = np.argsort(-key, kind="stable")
    more = more[(key[more] > 0.0) & ~alive[more]]
    least = int(np.count_nonzero(alive))

    def with_more(count: int) -> list[Array]:
        both = alive.copy()
        both[more[:count]] = True
        return np.split(both, starts[1:-1])

    fits = most_that_fit(lambda n: joint.total(with_more(n)) <= allowed, len(more), about - least)
    return least + fits, joint.marginal(with_more(fits))


def most_that_fit(fits: Callable[[int], bool], count: int, about: int) -> int:
    """A number from 0 to count that fits (0 does), while the next one does not: by growing steps from `about`, then
    by halving."""
    low, high, step = 0, count + 1, 1
    probe = min(max(about, 1), count)
    while high - low > 1:
        if fits(probe):
            low = probe
        else:
            high = probe
        if low == 0 or high == count + 1:
            probe = min(low + step, count) if low else max(high - step, 1)
            step *= 2
        else:
            probe = (low + high) // 2
    return low


def _keys(ranked: Ranked) -> Array:
    window = ranked.window(EVERYTHING)
    key = np.zeros(ranked.w.numel())
    key[window.found.position] = window.key
    return key


# The learner: moves the thresholds of a constraint against each other, by the gradient of the loss at a fixed total.
#
# With P = <dL/dS, sign(w) 1[S != 0]> the loss changes by G = dL/dlog alpha = -alpha P where a threshold moves alone.
# But the total is held by a shared offset: raising one threshold lowers all others. Along the constraint the gradient
# is
#
#     D_l = G_l - (f_l / F) * sum_j G_j,
#
# with f_l the cost of the weights that a threshold meets per unit of log alpha, and F their sum.


# Running averages of D and of its square, in steps: about ten and a hundred.
KEEP_PULL, KEEP_FORCE = 0.9, 0.99
# No step moves a threshold by more than this factor (in log alpha), whatever the gradient says.
LARGEST_STEP = 0.1


@torch.no_grad()
def observe(constraint: Constraint, *, loss_scale: float = 1.0) -> None:
    """Take in the gradients of the step that is about to be made.

    Args:
        constraint: whose thresholds learn.
        loss_scale: the factor on the gradients, where a fused optimizer under GradScaler gets them scaled. It changes
            during the training, and what is averaged over steps must not.
    """
    learning = _learning(constraint)
    if not learning:
        return
    transforms = list(learning.values())
    along = for_each(_along, list(learning.items()), sum(one.target.raw.numel() for one in learning))
    alpha = torch.cat([transform.alpha.flatten() for transform in transforms])
    forces = torch.from_numpy(np.concatenate(along)).to(alpha).mul_(alpha).div_(-loss_scale)
    if not bool(torch.isfinite(forces).all()):
        return
    if all(one.settings.gradient == "projected" for one in learning):
        crossing = torch.cat([transform.crossing.flatten().mul(one.cost.each) for one, transform in learning.items()])
        total, summed = float(crossing.sum(dtype=torch.float64)), float(forces.sum(dtype=torch.float64))
        if total > 0.0:
            forces -= crossing.mul_(summed / total)
    _take_in_(transforms, forces)


def _along(learning: tuple[ConstrainedTensor, Solved]) -> Array:
    """P, flat, from the gradient of the raw weights: for those that live it is dL/dS in every backward mode."""
    raw, alpha = learning[0].target.raw, learning[1].alpha
    rows = rows_of(raw.detach(), alpha.shape)
    assert raw.grad is not None
    grad, thresholds = flat_like(raw.grad, raw), numbers(alpha.flatten().cpu())
    if rows.group is None:
        return signed_sums(rows, grad, thresholds)
    group = rows.group.numpy()
    return np.bincount(group, signed_sums(rows, grad, thresholds[group]), minlength=len(thresholds))


def _take_in_(transforms: Sequence[Solved], forces: Tensor) -> None:
    """Bring the running averages up to date; `forces` has D of all tensors one after the other."""
    sizes = [transform.s.numel() for transform in transforms]
    parts = zip(forces.split(sizes), forces.square().split(sizes), strict=True)
    counts = torch.stack([transform.observed for transform in transforms]).tolist()
    for transform, count, (force, square) in zip(transforms, counts, parts, strict=True):
        pull, size = transform.pull.view(-1), transform.force.view(-1)
        # As long as an average has seen fewer steps than it remembers it is a plain mean, so that it is right from the
        # first step on: one that starts from 0 would be too small, and the slower one by more.
        pull.lerp_(force.to(pull.dtype), max(1 - KEEP_PULL, 1 / (count + 1)))
        size.lerp_(square.to(size.dtype), max(1 - KEEP_FORCE, 1 / (count + 1)))
        transform.observed.add_(1)


@torch.no_grad()
def learn(constraint: Constraint, progress: float, total_steps: int) -> None:
    """Move every s. One common measure of the gradients' size is divided out, so neither the scale of the loss nor the
    optimizer of the weights plays a part, while tensors keep their say relative to each other."""
    learning = _learning(constraint)
    if not learning:
        return
    force = torch.cat([transform.force.flatten() for transform in learning.values()])
    size = math.sqrt(float(force.sum(dtype=torch.float64)) / len(force))
    if size == 0.0:
        return
    for one, transform in learning.items():
        # Cosine, with mean 1: `pace` is how far s can travel, in units of log alpha.
        rate = one.settings.pace / total_steps * (1 + math.cos(math.pi * min(progress, 1.0)))
        step = (transform.pull * (rate / size)).clamp_(-LARGEST_STEP, LARGEST_STEP)
        transform.s.sub_(step)


def _learning(constraint: Constraint) -> dict[ConstrainedTensor, Solved]:
    """The tensors whose thresholds are in use, may move, and that have a gradient."""
    movable = {t: t.transform for t in constraint.tensors if t.settings.pace > 0.0 and t.target.raw.grad is not None}
    if not movable:
        return {}
    alphas = [transform.alpha for transform in movable.values()]
    # One question to the device for all of them.
    used = torch.stack([alpha[0] if alpha.shape == (1,) else alpha.amax() for alpha in alphas]).tolist()
    return {one: transform for (one, transform), in_use in zip(movable.items(), used, strict=True) if in_use}
