"""How large a model is: dense, as its checkpoint, and packed without its zeros."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from softprune.budget.counted import WEIGHT
from softprune.reporting.run import Run

FLOAT = 4  # bytes of a weight
POSITION = 2  # bytes of a position, counted from the weight before


def dense_bytes(run: Run) -> int | None:
    """Bytes of all parameters in float32; None if the network is not known, as where its profile counts units."""
    profile = run.budget.profile if run.budget else None
    return None if profile is None or run.units != WEIGHT else FLOAT * (profile.params + profile.other_params)


def packed_bytes(run: Run) -> int | None:
    """An estimate without zeros: float32 values, and per tensor a bit for every weight or a position for every value.

    Of these the smaller one counts, and a tensor that is smaller dense stays dense.
    """
    budget = run.budget
    if budget is None or budget.profile is None or run.units != WEIGHT:
        return None
    total = FLOAT * budget.profile.other_params
    for cost in budget.profile:
        kept = round(budget[cost.name] * cost.params)
        total += min(FLOAT * cost.params, FLOAT * kept + min(-(-cost.params // 8), POSITION * kept))
    return total


def checkpoint(run: Run) -> Path | None:
    """The last checkpoint; None if there is none."""
    last = run.result.get("last")
    named = last.get("checkpoint") if isinstance(last, Mapping) else None
    folder = run.path / "checkpoints"
    if isinstance(named, str):
        # Only a file of this folder: a result of unknown origin shall not name another.
        found = folder / Path(named).name
        return found if found.is_file() else None
    return max(folder.glob("step-*.safetensors"), default=None)


def size_text(count: int) -> str:
    """Bytes in words.

    Example:
        >>> size_text(1_045_568), size_text(999)
        ('1.05 MB', '999 bytes')
    """
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count} bytes"
