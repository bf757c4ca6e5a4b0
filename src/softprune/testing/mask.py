"""Masks: what they prune is zero, and they change when they are said to."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

from softprune.methods.transforms import Masked, SolvedMask
from softprune.testing.case import Case, require
from softprune.testing.trial import EVERY, STEPS


def pruned_weights_stay_zero(case: Case) -> None:
    """A weight outside the mask is 0 after every step."""
    for frame in case.frames:
        for name, living in frame.living.items():
            count = int((frame.effective[name][~living] != 0).sum())
            require(count == 0, f"0 at every pruned weight of {name} after step {frame.step}", f"{count} that are not")


def masks_change_on_time(case: Case) -> None:
    """Between the steps at which masks are renewed they are fixed.

    These are the steps of the goal's solutions; for methods that move masks every `every`-th (and the one after it,
    where the gradient of the next batch decides), and for those without `every` the first.
    """
    masked = {t.name for t in case.finished.sparsifier.targets if isinstance(t.transform, Masked | SolvedMask)}
    for before, after in pairwise(case.frames):
        if _may_change(case, after.step):
            continue
        changed = [name for name in sorted(masked) if not before.living[name].equal(after.living[name])]
        require(not changed, f"the masks of step {before.step} still in step {after.step}", f"others of {changed}")


def _may_change(case: Case, step: int) -> bool:
    if case.timetable is not None:
        return case.timetable(step, STEPS)
    if not case.method.moves_masks:
        return any(part.due(step, STEPS) for part in case.finished.sparsifier.goals)
    if any(field.name == "every" for field in fields(case.method)):  # type: ignore[arg-type]
        return step % EVERY in (0, 1)
    return step == 1
