"""The solver: thresholds at which a part of the model keeps exactly its total."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from softprune.goals.constraint import ConstrainedTensor, Part
from softprune.goals.cost import PerWeight
from softprune.goals.scan import Array, count_nonzero
from softprune.goals.select import Bracket, Candidate, Selected, choose, part_

if TYPE_CHECKING:
    from softprune.structure.joint_cost import JointCost

# Units are few: all of their keys are looked at.
EVERYTHING = Bracket(0.0, math.inf)


@torch.no_grad()
def solve(part: Part, allowed: float) -> None:
    """Move the shared offset of the thresholds until the kept weights cost what is allowed.

    A tensor that would fall below its floor keeps its largest weights, and its s is set to what that means, so that it
    can leave the floor again.
    """
    if allowed >= part.full:
        for one in part.tensors:
            alpha, crossing = one.transform.alpha, one.transform.crossing
            one.transform.take_(torch.zeros_like(alpha), torch.zeros_like(crossing), one.target.raw)
        return
    _refuse_scattered(part)
    candidates = {one: _candidate(one) for one in part.tensors}
    guess = part.trail.guess(sum(c.w.numel() for c in candidates.values()))
    # What one more unit of each tensor costs about now, where units cost together.
    marginal = dict.fromkeys(part.tensors, 1.0)
    if part.joint is not None:
        # From here on units are counted: as many as the joint cost allows.
        now = sum(int(torch.count_nonzero(c.w.abs() > one.transform.alpha)) for one, c in candidates.items())
        floors = [one.floor for one in part.tensors]
        allowed, costs = affordable(part.joint, list(candidates.values()), floors, allowed, about=now)
        marginal, guess = dict(zip(part.tensors, costs, strict=True)), EVERYTHING
    held: dict[ConstrainedTensor, int] = {}  # tensors at their floor, and what they keep
    free, room = list(part.tensors), allowed
    while True:
        choice = choose([candidates[one] for one in free], room, guess=guess)
        if choice is None:
            break
        # Without the tensors at their floor the border lies close by: most often what has been seen shows it, too.
        guess = choice.bracket
        floored = [_floor(one, candidates[one], kept) for one, kept in zip(free, choice.kept, strict=True)]
        if all(floor is None for floor in floored):
            break
        held |= {one: floor for one, floor in zip(free, floored, strict=True) if floor is not None}
        free = [one for one in free if one not in held]
        room = allowed - sum(one.cost.of(floor) for one, floor in held.items())
    for one, selected in zip(free, part_([candidates[one] for one in free], choice), strict=True):
        _take(one, candidates[one], selected, marginal[one])
    border = 0.0 if choice is None else choice.border
    for one, floor in held.items():
        _hold(one, candidates[one], floor, border, guess)
    _refuse_flushed(part, border)
    part.trail.note(border, 0.0 if choice is None else choice.crowd)


def _take(one: ConstrainedTensor, candidate: Candidate, selected: Selected, marginal: float = 1.0) -> None:
    # Where one weight costs more than another of the same tensor, crossings are counted in what they cost.
    crossing = selected.crossing * (one.cost.slope(selected.kept) * marginal)
    one.transform.take_(selected.alpha, crossing, candidate.w)


def _floor(one: ConstrainedTensor, candidate: Candidate, kept: int) -> int | None:
    """The number of weights to hold a tensor at that would keep this many; None if they are enough."""
    if kept >= one.floor:
        return None
    # A weight that is 0 by itself cannot be kept.
    floor = count_nonzero(candidate.rows, enough=one.floor)
    return floor if kept < floor else None


def _candidate(one: ConstrainedTensor) -> Candidate:
    transform = one.transform
    scores = transform.scores(one.target.raw.detach())
    # All values of s are NaN until there is a first one.
    if math.isnan(transform.s.view(-1)[0]):
        transform.s.fill_(_start(one))
    return Candidate(scores, torch.exp(transform.s), one.cost)


def _start(one: ConstrainedTensor) -> float:
    """The first value of s, from the weights as they are when the first of them goes."""
    start = one.settings.start
    if start == "equal":
        return 0.0
    if start == "dimensions":
        return -0.5 * math.log(sum(one.target.shape))
    mean = float(one.target.raw.detach().abs().to(one.transform.s.dtype).mean())
    return math.log(mean) if 0.0 < mean < math.inf else 0.0


def _hold(one: ConstrainedTensor, candidate: Candidate, floor: int, border: float, guess: Bracket | None) -> None:
    """Keep this many of a tensor's largest weights."""
    transform = one.transform
    candidate.cost = PerWeight()  # a floor is a number of weights
    choice = choose([candidate], floor, guess=guess)
    _take(one, candidate, part_([candidate], choice)[0])
    # A tensor at its floor has no say in where the border lies.
    transform.crossing.zero_()
    transform.pull.zero_()
    # Where s is not learnt it is the method's own measure of the weights, and stays what it is.
    if one.settings.pace > 0.0 and choice is not None and choice.border > 0.0 and border > 0.0:
        transform.s.add_(math.log(choice.border / border))


def _refuse_flushed(part: Part, border: float) -> None:
    """Differences of numbers this small are denormal: where the processor takes these for 0, more weights go."""
    tiny = torch.finfo(torch.float32).tiny
    if 0.0 < border < 1e-30 and bool(torch.full((1,), tiny) * 0.5 == 0.0):
        raise ValueError(
            f"{part.goal} cuts at |w| = {border:.3g}, and torch.set_flush_denormal(True) takes differences of such "
            "small weights for 0, so that the total would be missed: turn it off, or scale the weights"
        )


def _refuse_scattered(part: Part) -> None:
    devices = {one.target.raw.device for one in part.tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(
            f"{part.goal} is for tensors on several devices ({names}), whose weights cannot be compared: give each "
            "device a goal of its own with Rule(..., goal=...)"
        )


# Units that cost together: how many of them, the largest keys first, fit into a total.


def affordable(
    joint: JointCost, candidates: Sequence[Candidate], floors: Sequence[int], allowed: float, *, about: int
) -> tuple[int, list[float]]:
    """The units that each tensor keeps in any case, and then the largest keys, as many as are allowed.

    Found is a number of units that fit, while with the next one they do not. That holds also where the cost does not
    rise with every unit.

    Args:
        joint: what units cost.
        candidates: the importances.
        floors: the number of units that each of them keeps.
        allowed: the total.
        about: where the search begins: how many units there are now.

    Returns:
        The number of units, and what one of each tensor costs about then.
    """
    joint = joint.now()
    keys = [_keys(c) for c in candidates]
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


def _keys(c: Candidate) -> Array:
    look = c.look(EVERYTHING)
    key = np.zeros(c.w.numel())
    key[look.found.place] = look.key
    return key
