"""The comparison of runs: a page that is one file, and figures for papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from softprune.budget.files import write_text
from softprune.reporting.chart import Chart
from softprune.reporting.frontier import cost_frontier, level_budgets, shared_level, sparsity_frontier
from softprune.reporting.group import DENSE, Section
from softprune.reporting.grouping import sections
from softprune.reporting.level import at_level, levels
from softprune.reporting.matched import differences, group_table, matched, unfinished_table
from softprune.reporting.outcome import read_outcome
from softprune.reporting.page import refuse_place, render
from softprune.reporting.pareto import pareto_chart
from softprune.reporting.run import Run, find_runs


def write_comparison(
    paths: Sequence[Path], out: Path, *, figures: Path | None = None, reference: str | None = None
) -> list[Path]:
    """Read runs and write their comparison.

    Args:
        paths: run folders, or folders of them, such as a sweep.
        out: the HTML file; an existing one is replaced.
        figures: a folder for the charts as SVG and PNG; None for none.
        reference: the label that differences are taken to; None chooses one.

    Returns:
        The files that were written.

    Raises:
        ValueError: if there are no runs, none is finished, or no run has the reference's label.

    Example:
        write_comparison([Path("runs/target")], Path("compare.html"))
    """
    refuse_place(out, example="compare.html")
    runs = [read_outcome(path) for path in find_runs(paths)]
    page = comparison_page(runs, reference=reference)
    written: list[Path] = []
    if figures is not None:
        from softprune.reporting.plot import save_figures

        written += save_figures(comparison_charts(runs), figures)
    return [write_text(out, page), *written]


def comparison_page(runs: Sequence[Run], *, reference: str | None = None) -> str:
    """The page as text."""
    found = _checked(runs, reference)
    left_out = [run for run in runs if not run.finished or run.accuracy is None]
    counted = len(runs) - len(left_out)
    families = list(dict.fromkeys(group.family for section in found for group in section.groups))
    if any(section.dense for section in found):
        families.append(DENSE)
    return render(
        "compare.html",
        title=f"Comparison of {counted} runs" if counted > 1 else "One run",
        subtitle="; ".join(section.title for section in found),
        families=families,
        parts=[_part(section, place, reference) for place, section in enumerate(found, start=1)],
        unfinished=unfinished_table(left_out) if left_out else None,
        problems=[f"{run.name}: {text}" for run in runs if run.finished for text in run.problems],
    )


def comparison_charts(runs: Sequence[Run]) -> list[Chart]:
    """All charts of a comparison; those of a second section have names that end in -2, and so on."""
    found = sections(runs)
    return [chart for place, section in enumerate(found, start=1) for chart in _charts(section, place)]


def _checked(runs: Sequence[Run], reference: str | None) -> list[Section]:
    found = sections(runs)
    if not found:
        raise ValueError(f"none of the {len(runs)} runs is finished, so there is nothing to compare")
    labels = sorted({label for section in found for label in section.labels})
    if reference is not None and reference not in labels:
        raise ValueError(f"no run has the label {reference!r}; the labels are {', '.join(labels)}")
    return found


def _charts(section: Section, place: int) -> list[Chart]:
    charts = [sparsity_frontier(section), cost_frontier(section), pareto_chart(section)]
    charts.append(level_budgets(section, shared_level(section)))
    return [replace(chart, name=_numbered(chart.name, place)) for chart in charts if _tells(chart)]


def _tells(chart: Chart) -> bool:
    return any(series.x for series in chart.series if not series.faint)


def _part(section: Section, place: int, reference: str | None) -> dict[str, Any]:
    """What the template says about one section."""
    charts = _charts(section, place)
    first = shared_level(section)
    more = [
        level_budgets(section, level, name=_numbered(f"layer_budgets-{round(100 * level, 4):g}", place))
        for level in levels(section)
        if level != first and len(at_level(section, level)) > 1
    ]
    table = matched(section, name=_numbered("matched", place))
    to = reference if reference in section.labels else None
    return {
        "anchor": f"section-{place}",
        "title": section.title,
        "summary": _summary(section),
        "notes": section.notes,
        "charts": charts,
        "matched": table if table.rows else None,
        "differences": differences(section, name=_numbered("differences", place), to=to),
        "budgets": [chart for chart in more if _tells(chart)],
        "groups": group_table(section, name=_numbered("groups", place)),
    }


def _summary(section: Section) -> str:
    runs = sum(len(group.runs) for group in section.groups)
    words = (
        f"{_number(runs, 'run')} of {_number(len(section.labels), 'method')} in {_number(len(section.groups), 'group')}"
    )
    dense = section.dense
    words += "; no dense run to compare with." if dense is None else f", and {_number(len(dense.runs), 'dense run')}."
    level = shared_level(section)
    there = {} if level is None else at_level(section, level)
    if level is None or len(there) < 2:
        return words
    best, second = sorted(there.values(), key=lambda group: group.accuracy.mean, reverse=True)[:2]
    words += f" At {round(100 * level, 4):g} % sparsity {best.label} has the highest mean of {len(there)} methods"
    words += f", {best.accuracy.mean:.2%}; {second.label} follows with {second.accuracy.mean:.2%}"
    return f"{words}." if dense is None else f"{words}, and the dense network has {dense.accuracy.mean:.2%}."


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _numbered(name: str, place: int) -> str:
    return name if place == 1 else f"{name}-{place}"
