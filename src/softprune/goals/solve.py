"""Affordable: how many units, the largest keys first, a bill allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from softprune.goals.constraint import Member, Part
from softprune.goals.cost import Bill, Price
from softprune.goals.scan import Array, count_nonzero
from softprune.goals.select import Bracket, Candidate, Selected, choose, part_
from softprune.methods.transforms import Solved

# Units are few: all of their keys are looked at.
EVERYTHING = Bracket(0.0, math.inf)


@dataclass(frozen=True)
class Affordable:
    """How many units, and what one of each tensor costs about then."""

    units: int
    prices: list[float]


def affordable(
    bill: Bill, candidates: Sequence[Candidate], floors: Sequence[int], allowed: float, *, about: int
) -> Affordable:
    """The units that each tensor keeps in any case, and then the largest keys, as many as the bill allows.

    Found is a number of units that fit, while with the next one they do not. That holds also where the bill does not
    rise with every unit.

    Args:
        bill: what units cost.
        candidates: the importances.
        floors: the number of units that each of them keeps.
        allowed: the total.
        about: where the search begins: how many units there are now.
    """
    bill = bill.now()
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
    fits = most_that_fit(lambda n: bill.total(_parts(alive, more[:n], starts)) <= allowed, len(more), about - least)
    return Affordable(least + fits, bill.prices(_parts(alive, more[:fits], starts)))


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


def _parts(alive: Array, more: Array, starts: Array) -> list[Array]:
    both = alive.copy()
    both[more] = True
    return np.split(both, starts[1:-1])


def _keys(c: Candidate) -> Array:
    look = c.look(EVERYTHING)
    key = np.zeros(c.w.numel())
    key[look.found.place] = look.key
    return key


# The solver: thresholds at which a part of the model keeps exactly its total.


@dataclass
class _Entry:
    """A tensor to solve for.

    Args:
        floor: the number of weights that it is held at; None where it is free.
        marginal: what one more unit costs about now, where there is a bill.
    """

    member: Member
    transform: Solved
    candidate: Candidate
    floor: int | None = None
    marginal: float = 1.0

    def take_(self, selected: Selected) -> None:
        # Where one weight costs more than another of the same tensor, crossings are counted in what they cost.
        crossing = selected.crossing * (self.member.price.slope(selected.kept) * self.marginal)
        self.transform.take_(selected.alpha, crossing, self.candidate.w)


@torch.no_grad()
def solve(part: Part, allowed: float) -> None:
    """Move the shared offset of the thresholds until the kept weights cost what is allowed.

    A tensor that would fall below its floor keeps its largest weights, and its s is set to what that means, so that it
    can leave the floor again.
    """
    if allowed >= part.full:
        for member in part.members:
            transform = transform_of(member)
            transform.take_(torch.zeros_like(transform.alpha), torch.zeros_like(transform.crossing), member.target.raw)
        return
    _refuse_scattered(part)
    entries = free = [_entry(member) for member in part.members]
    guess = part.trail.guess(sum(e.candidate.w.numel() for e in entries))
    if part.bill is not None:
        # From here on units are counted: as many as the bill allows.
        floors = [member.floor for member in part.members]
        now = sum(int(torch.count_nonzero(e.candidate.w.abs() > e.transform.alpha)) for e in entries)
        found = affordable(part.bill, [e.candidate for e in entries], floors, allowed, about=now)
        allowed, guess = found.units, EVERYTHING
        for entry, price in zip(entries, found.prices, strict=True):
            entry.marginal = price
    room = allowed
    while True:
        choice = choose([e.candidate for e in free], room, guess=guess)
        if choice is None:
            break
        # Without the tensors at their floor the border lies close by: most often what has been seen shows it, too.
        guess = choice.bracket
        for entry, kept in zip(free, choice.kept, strict=True):
            entry.floor = _floor(entry, kept)
        free = [e for e in entries if e.floor is None]
        if len(free) == len(choice.kept):
            break
        room = allowed - sum(e.member.price.of(e.floor) for e in entries if e.floor is not None)
    for entry, selected in zip(free, part_([e.candidate for e in free], choice), strict=True):
        entry.take_(selected)
    border = 0.0 if choice is None else choice.border
    for entry in entries:
        if entry.floor is not None:
            _hold(entry, entry.floor, border, guess)
    _refuse_flushed(part, border)
    part.trail.note(border, 0.0 if choice is None else choice.crowd)


def transform_of(member: Member) -> Solved:
    transform = member.target.transform
    assert isinstance(transform, Solved)
    return transform


def _refuse_flushed(part: Part, border: float) -> None:
    """Differences of numbers this small are denormal: where the processor takes these for 0, more weights go."""
    tiny = torch.finfo(torch.float32).tiny
    if 0.0 < border < 1e-30 and bool(torch.full((1,), tiny) * 0.5 == 0.0):
        raise ValueError(
            f"{part.goal} cuts at |w| = {border:.3g}, and torch.set_flush_denormal(True) takes differences of such "
            "small weights for 0, so that the total would be missed: turn it off, or scale the weights"
        )


def _refuse_scattered(part: Part) -> None:
    devices = {m.target.raw.device for m in part.members}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(
            f"{part.goal} is for tensors on several devices ({names}), whose weights cannot be compared: give each "
            "device a goal of its own with Rule(..., goal=...)"
        )


def _floor(entry: _Entry, kept: int) -> int | None:
    """The number of weights to hold a tensor at that would keep this many; None if they are enough."""
    if kept >= entry.member.floor:
        return None
    # A weight that is 0 by itself cannot be kept.
    floor = count_nonzero(entry.candidate.rows, enough=entry.member.floor)
    return floor if kept < floor else None


def _entry(member: Member) -> _Entry:
    transform = transform_of(member)
    scores = transform.scores(member.target.raw.detach())
    # All values of s are NaN until there is a first one.
    if math.isnan(transform.s.view(-1)[0]):
        transform.s.fill_(_start(member, transform))
    return _Entry(member, transform, Candidate(scores, torch.exp(transform.s), member.price))


def _start(member: Member, transform: Solved) -> float:
    """The first value of s, from the weights as they are when the first of them goes."""
    start = member.settings.start
    if start == "equal":
        return 0.0
    if start == "dimensions":
        return -0.5 * math.log(sum(member.target.shape))
    mean = float(member.target.raw.detach().abs().to(transform.s.dtype).mean())
    return math.log(mean) if 0.0 < mean < math.inf else 0.0


def _hold(entry: _Entry, floor: int, border: float, guess: Bracket | None) -> None:
    candidate, transform = entry.candidate, entry.transform
    candidate.price = Price()  # a floor is a number of weights
    choice = choose([candidate], floor, guess=guess)
    entry.take_(part_([candidate], choice)[0])
    # A tensor at its floor has no say in where the border lies.
    transform.crossing.zero_()
    transform.pull.zero_()
    # Where s is not learnt it is the method's own measure of the weights, and stays what it is.
    learnt = entry.member.settings.pace > 0.0
    if learnt and choice is not None and choice.border > 0.0 and border > 0.0:
        transform.s.add_(math.log(choice.border / border))
