"""Tables of a comparison: methods at the same sparsity, their differences seed by seed, and all groups of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from softprune.reporting.counting import shared_noun
from softprune.reporting.estimate import Estimate, paired
from softprune.reporting.group import Group, Section
from softprune.reporting.level import at_level, levels, variants
from softprune.reporting.pareto import front_groups
from softprune.reporting.run import Run
from softprune.reporting.tabular import Column, Table


@dataclass(frozen=True)
class Cell:
    """One cell: what is read, what is below it in small, the value that it is sorted by, and whether it is the best."""

    text: str = ""
    more: str = ""
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Matrix:
    """Methods against levels.

    Args:
        name: its anchor, and the name of its CSV file.
        caption: what it lists, in a sentence or two.
        columns: the levels in words.
        rows: label, family and a cell for each column.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[Cell, ...]], ...]


def matched(section: Section, *, name: str = "matched") -> Matrix:
    """Accuracy of every method at every level, with the best of each level marked and multiply-adds beside."""
    found = levels(section)
    by_level = [at_level(section, level) for level in found]
    tops = [max((group.accuracy.mean for group in row.values()), default=math.nan) for row in by_level]
    rows = []
    for label in section.labels:
        cells = [
            _accuracy(row[label], len(variants(section, label, level)), best=row[label].accuracy.mean == top)
            if label in row
            else Cell()
            for level, row, top in zip(found, by_level, tops, strict=True)
        ]
        if any(cell.text for cell in cells):
            rows.append((label, section.of(label)[0].family, tuple(cells)))
    dense = section.dense
    words = "" if dense is None else f" The dense network has {_written(dense.accuracy)}."
    caption = "Accuracy at the same sparsity: mean \u00b1 standard deviation over n runs; the best of a column is bold."
    return Matrix(name, caption + words, tuple(_level(level) for level in found), tuple(rows))


def reference(section: Section) -> str:
    """The label that others are compared with: with most runs at levels, STR before others."""
    totals = {label: sum(len(g.runs) for g in section.of(label) if g.level is not None) for label in section.labels}
    return max(section.labels, key=lambda label: (label.startswith("str"), totals[label]), default="")


def differences(section: Section, *, name: str = "differences", to: str | None = None) -> Matrix | None:
    """Accuracy of each method minus that of one of them, paired by seed; None if there are no pairs.

    Args:
        section: with its groups.
        name: of the table.
        to: the label to compare with; by default `reference`.
    """
    base = reference(section) if to is None else to
    found = levels(section)
    rows = []
    for label in section.labels:
        cells = []
        for level in found:
            row = at_level(section, level)
            pair = label != base and label in row and base in row
            cells.append(_difference(row[label], row[base]) if pair else Cell())
        if any(cell.text for cell in cells):
            rows.append((label, section.of(label)[0].family, tuple(cells)))
    if not rows:
        return None
    caption = (
        f"Accuracy minus that of {base} in percentage points: mean of the differences between runs of one seed, with "
        "its 95 % interval (Student's t). An interval that holds 0 says that the two may be equal."
    )
    return Matrix(name, caption, tuple(_level(level) for level in found), tuple(rows))


def group_table(section: Section, *, name: str = "groups") -> Table:
    """Every group of runs with exact values."""
    best = front_groups(section)
    kept = shared_noun(run.units for group in section.groups for run in group.runs)
    columns = (
        Column("method"),
        Column("goal"),
        Column("n", "count", "number of runs, which differ in their seed alone"),
        Column("sparsity", "percent"),
        Column("accuracy", "percent", "mean over seeds"),
        Column("deviation", "percent", "standard deviation of the accuracy of single runs"),
        Column("MACs", "count", "multiply-adds left in one forward pass, mean over seeds"),
        Column(kept, "count", f"managed {kept} left, mean over seeds"),
        Column("front", "text", "whether no other group has both a higher accuracy and fewer multiply-adds"),
    )
    rows = [(*_values(group), "yes" if group in best else "") for group in section.groups]
    groups = [group.family for group in section.groups]
    if section.dense is not None:
        rows.append((*_values(section.dense), ""))
        groups.append(section.dense.family)
    caption = "Every group of runs that differ in their seed alone."
    return Table(name, caption, columns, tuple(rows), groups=tuple(groups))


def unfinished_table(runs: Sequence[Run]) -> Table:
    """Runs that are not averaged."""
    columns = (Column("run"), Column("method"), Column("model"), Column("data"), Column("why"))
    rows = tuple((run.name, run.label, run.model, run.data, _why(run)) for run in runs)
    return Table("unfinished", "Runs that are in no mean.", columns, rows)


def _why(run: Run) -> str:
    if run.finished:
        return "its result has no accuracy"
    return next((text for text in run.problems if "result.json" in text), "it is not finished: no result.json")


def _values(group: Group) -> tuple[str | float | None, ...]:
    accuracy = group.accuracy
    weights = [run.params for run in group.runs if run.params is not None]
    return (
        group.label,
        group.goal,
        len(group.runs),
        group.sparsity.mean if group.sparsity.n else None,
        accuracy.mean,
        accuracy.deviation if accuracy.n > 1 else None,
        group.macs.mean if group.macs.n else None,
        sum(weights) / len(weights) if weights else None,
    )


def _accuracy(group: Group, number: int, *, best: bool) -> Cell:
    macs = f"{group.macs.mean:,.0f} MACs" if group.macs.n else ""
    chosen = f"best of {number} settings" if number > 1 else ""
    more = ", ".join(word for word in (macs, chosen) if word)
    return Cell(_written(group.accuracy), more, group.accuracy.mean, best)


def _difference(group: Group, base: Group) -> Cell:
    gap = paired(group.by_seed, base.by_seed)
    if not gap.pairs:
        return Cell()
    text = f"{100 * gap.mean:+.2f}" + (f" \u00b1 {100 * gap.half:.2f}" if gap.pairs > 1 else "")
    return Cell(text, "1 pair" if gap.pairs == 1 else f"{gap.pairs} pairs", gap.mean)


def _written(found: Estimate) -> str:
    spread = f" \u00b1 {100 * found.deviation:.2f}" if found.n > 1 else ""
    return f"{100 * found.mean:.2f}{spread} % (n={found.n})"


def _level(level: float) -> str:
    return f"{round(100 * level, 4):g} %"
