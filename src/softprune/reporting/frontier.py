"""Charts of a comparison: accuracy against sparsity and multiply-adds, the Pareto front, budgets layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from softprune.budget.units import shared_noun
from softprune.reporting.charts import Axis, Chart, Mark, Series
from softprune.reporting.cohorts import DENSE, Cohort, Estimate, SeedGroup, at_level, cohorts, estimate, levels
from softprune.reporting.run import Run

# The axis of accuracies ends below the best mean by this many times the distance to the lower quartile of the means.
REACH = 3
MACS = Axis("multiply-adds", scale="log")
FRONT = "not dominated"


def only_cohort(runs: Sequence[Run]) -> Cohort:
    """The one cohort of runs of one network and data; a ValueError if there are several, or no run is finished."""
    found = cohorts(runs)
    if not found:
        raise ValueError("no run is finished, so there is nothing to compare")
    if len(found) > 1:
        titles = "; ".join(cohort.title for cohort in found)
        raise ValueError(f"the runs are of {len(found)} kinds, which one chart cannot compare: {titles}")
    return found[0]


def frontier(cohort: Cohort) -> Chart:
    """Accuracy against sparsity; the paper's figures 4 and 5."""
    accuracies, hidden = accuracy_axis(cohort)
    caption = f"Mean over seeds; bars show one standard deviation.{_dense_words(cohort)}{hidden}"
    series = _curves(cohort, lambda group: group.sparsity, dense_end=None)
    return Chart("frontier", "Accuracy against sparsity", caption, Axis("sparsity", percent=True), accuracies, series)


def macs_frontier(cohort: Cohort) -> Chart:
    accuracies, hidden = accuracy_axis(cohort)
    caption = "Multiply-adds left in one forward pass. Mean over seeds; bars show one standard deviation."
    caption += f"{_dense_words(cohort)}{hidden}"
    series = _curves(cohort, lambda group: group.macs, dense_end=cohort.dense_macs)
    return Chart("macs_frontier", "Accuracy against multiply-adds", caption, MACS, accuracies, series)


def pareto(cohort: Cohort) -> Chart:
    """Accuracy against multiply-adds, with the line of points that no other dominates."""
    best = front_groups(cohort)
    accuracies, hidden = accuracy_axis(cohort)

    def note(group: SeedGroup) -> str:
        return f"{group.words}{'; ' + FRONT if group in best else ''}"

    points = [
        _series(cohort, label, [group for group in cohort.of(label) if group.macs.n], lambda g: g.macs, "points", note)
        for label in cohort.labels
    ]
    xs, ys = tuple(group.macs.mean for group in best), tuple(group.accuracy.mean for group in best)
    notes = tuple(f"{group.label}, {group.words}" for group in best)
    caption = (
        "The line leads along the means that no other beats in both accuracy and multiply-adds. It is drawn from all "
        f"methods, hidden ones too; neighbours within a standard deviation are not really apart.{hidden}"
    )
    line = Series(FRONT, xs, ys, "step", notes=notes, faint=True)
    return Chart("pareto", "Pareto front", caption, MACS, accuracies, (*points, line))


def layer_budgets(cohort: Cohort, level: float | None = None, *, name: str = "layer_budgets") -> Chart:
    """The budgets of all methods at one level, by default the one that most methods have; of all groups without any."""
    level = shared_level(cohort) if level is None else level
    chosen = list(cohort.groups) if level is None else list(at_level(cohort, level).values())
    tensors = list(dict.fromkeys(t for g in chosen for run in g.runs if run.budget is not None for t in run.budget))
    several = len({group.label for group in chosen}) < len(chosen)
    series = []
    for label in cohort.labels:
        groups = [group for group in chosen if group.label == label]
        series += [_budget(f"{label}, {g.goal}" if several else label, g, tensors) for g in groups]
        if not groups:  # a label without a budget here keeps its colour
            series.append(Series(label, (), (), group=cohort.family(label)))
    counted = shared_noun(run.units for group in chosen for run in group.runs)
    at = "" if level is None else f" at {100 * level:.4g} % sparsity"
    caption = f"Share of the {counted} of each layer that are zero at the end, from the first layer to the last; "
    caption += "mean over seeds."
    x, y = Axis("layer", categories=tuple(tensors)), Axis("sparsity", percent=True, low=0.0, high=1.0)
    return Chart(name, f"Budgets layer by layer{at}", caption, x, y, tuple(series))


COMPARISONS: dict[str, Callable[[Cohort], Chart]] = {
    "frontier": frontier,
    "macs_frontier": macs_frontier,
    "pareto": pareto,
    "layer_budgets": layer_budgets,
}


def accuracy_axis(cohort: Cohort) -> tuple[Axis, str]:
    """An axis on which good methods can be told apart even if one failed, and a sentence about what is below it."""
    means = sorted(group.accuracy.mean for group in cohort.groups)
    if len(means) < 4:
        return Axis("accuracy", percent=True), ""
    best, lower = means[-1], means[len(means) // 4]
    low = math.floor(200 * (best - REACH * (best - lower))) / 200
    below = [group for group in cohort.groups if group.accuracy.mean < low]
    if not below:
        return Axis("accuracy", percent=True), ""
    words = "; ".join(f"{group.label}, {group.goal}: {group.accuracy.mean:.2%}" for group in below[:4])
    more = f"; and {len(below) - 4} more" if len(below) > 4 else ""
    drawn = [group.accuracy for group in (*cohort.groups, cohort.dense) if group]
    tops = [one.mean + (one.deviation if one.n > 1 else 0.0) for one in drawn]
    high = min(1.0, max(tops) + 0.04 * (max(tops) - low))
    return Axis("accuracy", percent=True, low=low, high=high), f" Below the axis: {words}{more}."


def _curves(cohort: Cohort, x: Callable[[SeedGroup], Estimate], *, dense_end: float | None) -> tuple[Series, ...]:
    """A line for each label, and a faint one for the dense network over the whole width."""
    series = []
    for label in cohort.labels:
        own = sorted((group for group in cohort.of(label) if x(group).n), key=lambda group: x(group).mean)
        # Several variants at one level do not make a curve.
        asked = [group.goal for group in own if group.level is not None]
        mark: Mark = "points" if len(set(asked)) < len(asked) else "line"
        series.append(_series(cohort, label, own, x, mark, _note))
    if cohort.dense is not None:
        ends = [value for one in series for value in one.x] + ([dense_end] if dense_end else [])
        xs = tuple(sorted({min(ends), max(ends)})) if ends else (0.0, 1.0)
        level, notes = cohort.dense.accuracy, (cohort.dense.words,) * len(xs)
        ys, spread = (level.mean,) * len(xs), (level.deviation,) * len(xs)
        series.append(Series(DENSE, xs, ys, spread=spread, notes=notes, faint=True))
    return tuple(series)


def _series(
    cohort: Cohort,
    label: str,
    groups: Sequence[SeedGroup],
    x: Callable[[SeedGroup], Estimate],
    mark: Mark,
    note: Callable[[SeedGroup], str],
) -> Series:
    return Series(
        label,
        tuple(x(group).mean for group in groups),
        tuple(group.accuracy.mean for group in groups),
        mark,
        spread=tuple(group.accuracy.deviation for group in groups),
        notes=tuple(map(note, groups)),
        group=cohort.family(label),
    )


def _note(group: SeedGroup) -> str:
    macs = f"{group.macs.mean:,.0f} multiply-adds" if group.macs.n else ""
    sparsity = f"{group.sparsity.mean:.2%} sparsity" if group.sparsity.n else ""
    return "; ".join(word for word in (group.words, sparsity, macs) if word)


def _dense_words(cohort: Cohort) -> str:
    return "" if cohort.dense is None else " The dashed line is the dense network."


def shared_level(cohort: Cohort) -> float | None:
    """The level at which most methods have a group, of several the highest; None without any."""
    found = levels(cohort)
    return max(found, key=lambda level: (len(at_level(cohort, level)), level), default=None)


def _budget(text: str, group: SeedGroup, tensors: Sequence[str]) -> Series:
    budgets = [run.budget for run in group.runs if run.budget is not None]
    if not budgets:
        return Series(text, (), (), group=group.family)
    found = [estimate(1 - b[t] if t in b else math.nan for b in budgets) for t in tensors]
    spread = tuple(one.deviation for one in found)
    xs, ys = tuple(map(float, range(len(tensors)))), tuple(one.mean for one in found)
    return Series(text, xs, ys, spread=spread if any(map(math.isfinite, spread)) else (), group=group.family)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which of some (cost, gain) points no other dominates, by cost.

    A point dominates another if it costs no more and gains no less, and one of the two is strictly better.

    Example:
        >>> front([(1, 0.8), (2, 0.7), (3, 0.9), (3, 0.85)])
        [0, 2]
    """
    kept: list[int] = []
    best = float("-inf")
    for at in sorted(range(len(points)), key=lambda at: (points[at][0], -points[at][1])):
        if points[at][1] > best or (kept and points[at] == points[kept[-1]]):
            kept.append(at)
            best = points[at][1]
    return kept


def front_groups(cohort: Cohort) -> list[SeedGroup]:
    """The groups of a cohort that no other dominates, by rising multiply-adds."""
    counted = [group for group in cohort.groups if group.macs.n and group.accuracy.n]
    return [counted[at] for at in front([(group.macs.mean, group.accuracy.mean) for group in counted])]
