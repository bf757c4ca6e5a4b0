"""The Pareto front: groups of runs that no other beats in both accuracy and multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence

from softprune.reporting.chart import Axis, Chart, Series
from softprune.reporting.frontier import MACS, accuracy_axis, only_section
from softprune.reporting.group import Group, Section
from softprune.reporting.run import Run

FRONT = "not dominated"


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which of some (cost, gain) points no other dominates, by cost.

    A point dominates another if it costs no more and gains no less, and one of the two is strictly better.

    Example:
        >>> front([(1, 0.8), (2, 0.7), (3, 0.9), (3, 0.85)])
        [0, 2]
    """
    kept: list[int] = []
    best = float("-inf")
    cheapest_first = sorted(range(len(points)), key=lambda at: (points[at][0], -points[at][1]))
    for at in cheapest_first:
        cost, gain = points[at]
        equal = bool(kept) and points[kept[-1]] == (cost, gain)
        if gain > best or equal:
            kept.append(at)
            best = gain
    return kept


def front_groups(section: Section) -> list[Group]:
    """The groups of a section that are not dominated, by multiply-adds."""
    counted = [group for group in section.groups if group.macs.n and group.accuracy.n]
    return [counted[at] for at in front([(group.macs.mean, group.accuracy.mean) for group in counted])]


def pareto(runs: Sequence[Run]) -> Chart:
    """Accuracy against multiply-adds, with the points that no other dominates."""
    return pareto_chart(only_section(runs))


def pareto_chart(section: Section) -> Chart:
    """The chart of one section."""
    best = front_groups(section)
    accuracies, hidden = accuracy_axis(section)
    series = []
    for label in section.labels:
        own = [group for group in section.of(label) if group.macs.n]
        series.append(
            Series(
                label,
                tuple(group.macs.mean for group in own),
                tuple(group.accuracy.mean for group in own),
                mark="points",
                spread=tuple(group.accuracy.deviation for group in own),
                notes=tuple(f"{group.words}{'; ' + FRONT if group in best else ''}" for group in own),
                group=section.of(label)[0].family,
            )
        )
    line = Series(
        FRONT,
        tuple(group.macs.mean for group in best),
        tuple(group.accuracy.mean for group in best),
        mark="step",
        notes=tuple(f"{group.label}, {group.words}" for group in best),
        faint=True,
    )
    return Chart(
        name="pareto",
        title="Pareto front",
        caption="The line leads along the means that no other beats in both accuracy and multiply-adds. It is drawn "
        "from all methods, hidden ones too; neighbours within a standard deviation are not really apart."
        f"{hidden}",
        x=Axis(MACS.label, scale="log"),
        y=accuracies,
        series=(*series, line),
    )
