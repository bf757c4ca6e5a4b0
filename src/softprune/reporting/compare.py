"""The comparison of runs: its tables, its page, and figures for papers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from softprune.budget.units import shared_noun
from softprune.records import RESULT, write_text
from softprune.reporting.charts import Chart
from softprune.reporting.cohorts import DENSE, Cohort, Estimate, SeedGroup, at_level, cohorts, levels, paired, variants
from softprune.reporting.figures import save_figures
from softprune.reporting.frontier import COMPARISONS, front_groups, layer_budgets, shared_level
from softprune.reporting.page import refuse_place, render
from softprune.reporting.reading import known
from softprune.reporting.run import Run, find_runs, read_outcome
from softprune.reporting.tables import Column, Table, TableCell, Value


def compare_table(cohort: Cohort, *, name: str = "matched") -> Table:
    """Accuracy of every method at every level, with the best of each level marked, and with multiply-adds."""

    def cell(label: str, level: float, there: Mapping[str, SeedGroup]) -> Value:
        if label not in there:
            return None
        group, number = there[label], len(variants(cohort, label, level))
        macs = f"{group.macs.mean:,.0f} MACs" if group.macs.n else ""
        chosen = f"best of {number} settings" if number > 1 else ""
        best = group.accuracy.mean == max(other.accuracy.mean for other in there.values())
        return TableCell(_written(group.accuracy), ", ".join(filter(None, (macs, chosen))), group.accuracy.mean, best)

    words = "" if cohort.dense is None else f" The dense network has {_written(cohort.dense.accuracy)}."
    caption = "Accuracy at the same sparsity: mean \u00b1 standard deviation over n runs; the best of a column is bold."
    return _by_level(name, caption + words, cohort, cell)


def reference(cohort: Cohort) -> str:
    """The label that others are compared with: with most runs at levels, STR before others."""
    totals = {label: sum(len(g.runs) for g in cohort.of(label) if g.level is not None) for label in cohort.labels}
    return max(cohort.labels, key=lambda label: (label.startswith("str"), totals[label]), default="")


def differences(cohort: Cohort, *, name: str = "differences", to: str | None = None) -> Table | None:
    """Accuracy of each method minus that of ``to``, by default `reference`, paired by seed; None without pairs."""
    base = reference(cohort) if to is None else to

    def cell(label: str, level: float, there: Mapping[str, SeedGroup]) -> Value:
        if label == base or label not in there or base not in there:
            return None
        gap = paired(there[label].by_seed, there[base].by_seed)
        if not gap.pairs:
            return None
        text = f"{100 * gap.mean:+.2f}" + (f" \u00b1 {100 * gap.half:.2f}" if gap.pairs > 1 else "")
        return TableCell(text, _number(gap.pairs, "pair"), gap.mean)

    caption = (
        f"Accuracy minus that of {base} in percentage points: mean of the differences between runs of one seed, with "
        "its 95 % interval (Student's t). An interval that holds 0 says that the two may be equal."
    )
    table = _by_level(name, caption, cohort, cell)
    return table if table.rows else None


def _by_level(
    name: str, caption: str, cohort: Cohort, cell: Callable[[str, float, Mapping[str, SeedGroup]], Value]
) -> Table:
    """Methods against levels; ``cell`` gets a label, a level and its groups. A method without any value has no row."""
    found = {level: at_level(cohort, level) for level in levels(cohort)}
    columns = (Column("method"), *(Column(f"{round(100 * level, 4):g} %", "number") for level in found))
    cells = {label: [cell(label, *item) for item in found.items()] for label in cohort.labels}
    rows = {label: (label, *row) for label, row in cells.items() if any(value is not None for value in row)}
    return Table(name, caption, columns, tuple(rows.values()), groups=tuple(map(cohort.family, rows)))


def group_table(cohort: Cohort, *, name: str = "groups") -> Table:
    kept = shared_noun(run.units for group in cohort.groups for run in group.runs)
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
    groups, best = [*cohort.groups, *([cohort.dense] if cohort.dense else [])], front_groups(cohort)
    rows = []
    for g in groups:
        means = (g.sparsity.mean, g.accuracy.mean, g.accuracy.deviation, g.macs.mean, g.params.mean)
        rows.append((g.label, g.goal, len(g.runs), *map(known, means), "yes" if g in best else ""))
    caption = "Every group of runs that differ in their seed alone."
    return Table(name, caption, columns, tuple(rows), groups=tuple(group.family for group in groups))


def unfinished_table(runs: Sequence[Run]) -> Table:
    columns = (Column("run"), Column("method"), Column("model"), Column("data"), Column("why"))

    def why(run: Run) -> str:
        if run.finished:
            return "its result has no accuracy"
        return next((text for text in run.problems if RESULT in text), f"it is not finished: no {RESULT}")

    rows = tuple((run.name, run.label, run.model, run.data, why(run)) for run in runs)
    return Table("unfinished", "Runs that are left out of all means.", columns, rows)


def _written(found: Estimate) -> str:
    spread = f" \u00b1 {100 * found.deviation:.2f}" if found.n > 1 else ""
    return f"{100 * found.mean:.2f}{spread} % (n={found.n})"


def write_comparison(
    paths: Sequence[Path], out: Path, *, figures: Path | None = None, reference: str | None = None
) -> list[Path]:
    """Read runs and write their comparison; returns the files that were written.

    Args:
        paths: run folders, or folders of them, such as a sweep.
        out: the HTML file; an existing one is replaced.
        figures: a folder for the charts as SVG.
        reference: the label that differences are taken to; None chooses one.
    """
    refuse_place(out, example="compare.html")
    runs = [read_outcome(path) for path in find_runs(paths)]
    page = comparison_page(runs, reference=reference)
    written = save_figures(comparison_charts(runs), figures) if figures is not None else []
    return [write_text(out, page), *written]


def comparison_page(runs: Sequence[Run], *, reference: str | None = None) -> str:
    """The page as HTML; a ValueError if no run is finished, or none has the label ``reference``."""
    found = cohorts(runs)
    if not found:
        raise ValueError(f"none of the {len(runs)} runs is finished, so there is nothing to compare")
    labels = sorted({label for cohort in found for label in cohort.labels})
    if reference is not None and reference not in labels:
        raise ValueError(f"no run has the label {reference!r}; the labels are {', '.join(labels)}")
    left_out = [run for run in runs if not run.finished or run.accuracy is None]
    counted = len(runs) - len(left_out)
    families = list(dict.fromkeys(group.family for cohort in found for group in cohort.groups))
    if any(cohort.dense for cohort in found):
        families.append(DENSE)
    return render(
        "compare.html",
        title=f"Comparison of {counted} runs" if counted > 1 else "One run",
        subtitle="; ".join(cohort.title for cohort in found),
        families=families,
        parts=[_part(cohort, number, reference) for number, cohort in enumerate(found, start=1)],
        unfinished=unfinished_table(left_out) if left_out else None,
        problems=[f"{run.name}: {text}" for run in runs if run.finished for text in run.problems],
    )


def comparison_charts(runs: Sequence[Run]) -> list[Chart]:
    """All charts of a comparison; those of a second cohort have names that end in -2, and so on."""
    return [chart for number, cohort in enumerate(cohorts(runs), start=1) for chart in _charts(cohort, number)]


def _charts(cohort: Cohort, number: int) -> list[Chart]:
    charts = [make(cohort) for make in COMPARISONS.values()]
    return [replace(chart, name=_numbered(chart.name, number)) for chart in charts if _tells(chart)]


def _tells(chart: Chart) -> bool:
    return any(series.x for series in chart.series if not series.faint)


def _part(cohort: Cohort, number: int, reference: str | None) -> dict[str, Any]:
    """What the template shows of one cohort."""
    first = shared_level(cohort)
    more = [
        layer_budgets(cohort, level, name=_numbered(f"layer_budgets-{round(100 * level, 4):g}", number))
        for level in levels(cohort)
        if level != first and len(at_level(cohort, level)) > 1
    ]
    table = compare_table(cohort, name=_numbered("matched", number))
    to = reference if reference in cohort.labels else None
    return {
        "anchor": f"section-{number}",
        "title": cohort.title,
        "summary": _summary(cohort),
        "notes": cohort.notes,
        "charts": _charts(cohort, number),
        "matched": table if table.rows else None,
        "differences": differences(cohort, name=_numbered("differences", number), to=to),
        "budgets": [chart for chart in more if _tells(chart)],
        "groups": group_table(cohort, name=_numbered("groups", number)),
    }


def _summary(cohort: Cohort) -> str:
    runs = sum(len(group.runs) for group in cohort.groups)
    words = f"{_number(runs, 'run')} of {_number(len(cohort.labels), 'method')}"
    words += f" in {_number(len(cohort.groups), 'group')}"
    dense = cohort.dense
    words += "; no dense run to compare with." if dense is None else f", and {_number(len(dense.runs), 'dense run')}."
    level = shared_level(cohort)
    there = {} if level is None else at_level(cohort, level)
    if level is None or len(there) < 2:
        return words
    best, second = sorted(there.values(), key=lambda group: group.accuracy.mean, reverse=True)[:2]
    words += f" At {round(100 * level, 4):g} % sparsity {best.label} has the highest mean of {len(there)} methods"
    words += f", {best.accuracy.mean:.2%}; {second.label} follows with {second.accuracy.mean:.2%}"
    return f"{words}." if dense is None else f"{words}, and the dense network has {dense.accuracy.mean:.2%}."


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"
