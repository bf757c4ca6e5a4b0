"""Levels of sparsity at which methods are set beside each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from softprune.reporting.group import Group, Section

# Densities that differ by less than this share are the same level.
TOLERANCE = 0.05


def levels(section: Section) -> list[float]:
    """The sparsities that runs were asked for, and those that two methods happened to reach; from low to high."""
    asked = sorted({group.level for group in section.groups if group.level is not None})
    free = sorted(
        (g for g in section.groups if g.level is None and g.sparsity.n and not any(_near(g, at) for at in asked)),
        key=lambda group: group.sparsity.mean,
    )
    met: list[float] = []
    while free:
        first = round(free[0].sparsity.mean, 3)
        together = [group for group in free if group is free[0] or _near(group, first)]
        if len({group.label for group in together}) > 1:
            met.append(first)
        free = [group for group in free if group not in together]
    return sorted({*asked, *met})


def at_level(section: Section, level: float) -> dict[str, Group]:
    """The group of each label at a level: one that was asked for it, else one that came near; of several the best."""
    found: dict[str, Group] = {}
    for group in section.groups:
        if not belongs(group, level):
            continue
        other = found.get(group.label)
        if other is None or _rank(group, level) > _rank(other, level):
            found[group.label] = group
    return found


def belongs(group: Group, level: float) -> bool:
    """Whether a group is of a level: it was asked for it, or has no level of its own and came near."""
    return group.level == level if group.level is not None else _near(group, level)


def variants(section: Section, label: str, level: float) -> Sequence[Group]:
    """All groups of a label at a level; more than one if they differ in other settings."""
    return [group for group in section.groups if group.label == label and belongs(group, level)]


def _rank(group: Group, level: float) -> tuple[bool, float]:
    accuracy = group.accuracy.mean
    return group.level == level, accuracy if math.isfinite(accuracy) else -1.0


def _near(group: Group, level: float) -> bool:
    if not group.sparsity.n or level >= 1.0:
        return False
    return abs((1 - group.sparsity.mean) / (1 - level) - 1) <= TOLERANCE
