"""One printed value beside ours, and what we think of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["agrees", "other count", "differs", "not computable"]


@dataclass(frozen=True)
class Check:
    """A printed value and the recomputed one.

    Args:
        place: the table or the section of the paper.
        row: which row of it.
        quantity: what is printed there.
        printed: the value as printed.
        ours: the recomputed value with one digit more; empty if it cannot be computed.
        verdict: "agrees" within the printed digits; "other count" if it agrees when counted in another way, which
            the reason names; "differs"; or "not computable" from what is published.
        reason: how ours was made, and why it differs where we know.
    """

    place: str
    row: str
    quantity: str
    printed: str
    ours: str
    verdict: Verdict
    reason: str


def disagreements(checks: Iterable[Check]) -> list[Check]:
    """Those that differ, in the same order."""
    return [check for check in checks if check.verdict == "differs"]
