"""The total: that it is met at the end, and kept on the way there."""

from __future__ import annotations

import torch

from softprune.methods.transforms import RisingThreshold
from softprune.testing.case import Case, Frame, require
from softprune.testing.trial import GOAL, STEPS, densities


def total_is_reached(case: Case) -> None:
    """Exactly where thresholds are solved for or learnt, else within one weight per tensor."""
    if case.setting.total == "none":
        return
    last, sizes = case.frames[-1], {name: mask.numel() for name, mask in case.frames[-1].living.items()}
    kept = _kept(case, last)
    slack = 0 if case.method.role == "learned" else 1
    if case.setting.total == "goal":
        wanted, seen = GOAL.kept(sum(sizes.values())), sum(kept.values())
        require(abs(seen - wanted) <= slack * len(sizes), f"{wanted} weights at the end", f"{seen}: {kept}")
        return
    given = {name: round(density * sizes[name]) for name, density in densities(case.setting.network.made()).items()}
    if case.method.role == "moved":
        wanted, seen = sum(given.values()), sum(kept.values())
        require(abs(seen - wanted) <= slack * len(sizes), f"{wanted} weights at the end", f"{seen}: {kept}")
        return
    for name, wanted in given.items():
        require(abs(kept[name] - wanted) <= slack, f"{wanted} weights of {name} at the end", kept[name])


def total_is_kept(case: Case) -> None:
    """What moves masks has the same number after every step; what is solved for, what the schedule allows."""
    if case.method.moves_masks:
        # The first step may be the one that decides.
        first, *later = case.frames[1:]
        wanted: object = _held(case, first)
        for frame in later:
            seen = _held(case, frame)
            require(seen == wanted, f"{wanted} weights after step {frame.step} as after the first", seen)
        return
    for part in case.finished.sparsifier.goals:
        if any(isinstance(m.target.transform, RisingThreshold) for m in part.members):
            continue  # which lets more live until the last step
        for frame in (f for f in case.frames[1:] if part.due(f.step, STEPS)):
            allowed = part.allowed(frame.step / STEPS)
            count = sum(frame.counts[m.target.name] for m in part.members)
            require(count == allowed, f"{allowed} weights after step {frame.step}, as {part} asks", count)


def _kept(case: Case, frame: Frame) -> dict[str, int]:
    if case.method.moves_masks:
        return frame.counts
    return {name: int(torch.count_nonzero(w)) for name, w in frame.effective.items()}


def _held(case: Case, frame: Frame) -> object:
    """The numbers that must not change: one for all tensors if the method moves weights between them."""
    return sum(frame.counts.values()) if case.method.role == "moved" else frame.counts
