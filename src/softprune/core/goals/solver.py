"""The solver: thresholds at which a part of the model keeps exactly its total."""

from __future__ import annotations

import math

import torch

from softprune.core.goals.part import Member, Part
from softprune.core.goals.selection import Candidate, Selected, select
from softprune.methods.transforms import SolvedThreshold


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
    for member in part.members:
        _start(member)
    free: list[Member] = list(part.members)
    held: list[tuple[Member, int]] = []
    while True:
        room = allowed - sum(kept * m.cost for m, kept in held)
        found, border = select([_candidate(m) for m in free], room)
        low = [(m, _floor(m)) for m, f in zip(free, found, strict=True) if f.kept < m.floor and f.kept < _floor(m)]
        if not low:
            break
        held += low
        free = [m for m in free if all(m is not other for other, _ in low)]
    for member, selected in zip(free, found, strict=True):
        _take(member, selected)
    for member, kept in held:
        _hold(member, kept, border)


def transform_of(member: Member) -> SolvedThreshold:
    transform = member.target.transform
    assert isinstance(transform, SolvedThreshold)
    return transform


def _refuse_scattered(part: Part) -> None:
    devices = {str(m.target.raw.device) for m in part.members}
    if len(devices) > 1:
        raise ValueError(
            f"{part.goal} is for tensors on several devices ({', '.join(sorted(devices))}), whose weights cannot be "
            "compared: give each device a goal of its own with Rule(..., goal=...)"
        )


def _floor(member: Member) -> int:
    """A weight that is 0 by itself cannot be kept."""
    return min(member.floor, int(torch.count_nonzero(member.target.raw)))


def _start(member: Member) -> None:
    """Give s its first value, from the weights as they are when the first of them goes."""
    transform = transform_of(member)
    if bool(transform.s.isnan().any()):
        mean = float(member.target.raw.detach().abs().to(transform.s.dtype).mean())
        at_mean = member.method.pursuit.start == "mean" and 0.0 < mean < math.inf
        transform.s.fill_(math.log(mean) if at_mean else 0.0)


def _candidate(member: Member, cost: float | None = None) -> Candidate:
    transform = transform_of(member)
    scale = torch.exp(transform.s)
    return Candidate(member.target.raw.detach(), scale, member.cost if cost is None else cost)


def _take(member: Member, selected: Selected) -> None:
    transform_of(member).take_(selected.alpha, selected.crossing, member.target.raw)


def _hold(member: Member, kept: int, border: float) -> None:
    (selected,), own = select([_candidate(member, cost=1.0)], kept)
    _take(member, selected)
    transform = transform_of(member)
    # A tensor at its floor has no say in where the border lies.
    transform.crossing.zero_()
    transform.pull.zero_()
    if own > 0.0 and border > 0.0:
        transform.s.add_(math.log(own / border))
