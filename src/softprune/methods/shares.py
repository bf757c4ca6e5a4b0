"""Whole numbers in proportion: how many weights each tensor gets of a number that is to be shared out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def share_out(total: int, by: Mapping[str, float], room: Mapping[str, int]) -> dict[str, int]:
    """Divide `total` in proportion to `by`, none more than its room; the sum is exact while there is room for it.

    What does not fit goes to the others in the same proportion. Shares are rounded down, and what is left over goes to
    the largest remainders, equal ones in the order of the names given.

    >>> share_out(10, {"a": 3.0, "b": 1.0, "c": 1.0}, {"a": 4, "b": 9, "c": 9})
    {'a': 4, 'b': 3, 'c': 3}
    """
    got = dict.fromkeys(by, 0)
    left = min(total, sum(room.values()))
    exact = _proportional(left, by, by)
    while full := [name for name in exact if exact[name] >= room[name]]:
        for name in full:
            got[name] = room[name]
            left -= room[name]
        exact = _proportional(left, by, [name for name in exact if name not in full])
    # Every share is now less than its room, so there is one more place for what is left over.
    for name, share in exact.items():
        got[name] = int(share)
    spare = left - sum(got[name] for name in exact)
    for name in sorted(exact, key=lambda n: int(exact[n]) - exact[n])[:spare]:
        got[name] += 1
    return got


def _proportional(total: int, by: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    claims = {name: max(float(by[name]), 0.0) for name in names}
    largest = max(claims.values(), default=0.0)
    # Without a claim at all everyone has the same; dividing by the largest keeps tiny claims from underflowing.
    claims = {name: claim / largest if largest else 1.0 for name, claim in claims.items()}
    return {name: total * claim / sum(claims.values()) for name, claim in claims.items()}
