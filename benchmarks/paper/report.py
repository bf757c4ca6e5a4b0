"""All that can be made again of the paper, in one value, as a page and as files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.paper.claims import check_claims, check_consistency
from benchmarks.paper.figures import (
    accuracy_against_macs,
    accuracy_against_sparsity,
    layer_macs,
    layer_sparsity,
    thresholds,
)
from benchmarks.paper.ours import Ours, read_ours
from benchmarks.paper.printed import Check, Verdict
from benchmarks.paper.recount import BUDGETS, RESULTS, check_budgets, check_results
from benchmarks.paper.tables import (
    budget_tables,
    check_table,
    difference_table,
    hyperparameter_tables,
    low_rank_table,
    result_tables,
    save_tables,
    text_table,
)

from softprune.records import write_text
from softprune.reporting.charts import Chart
from softprune.reporting.figures import save_figures
from softprune.reporting.page import render
from softprune.reporting.tables import Table

PAPER = "Soft Threshold Weight Reparameterization for Learnable Sparsity (Kusupati et al., ICML 2020)"
VERDICTS: tuple[Verdict, ...] = ("agrees", "other count", "differs", "not computable")
# Figures that need what the authors did not publish.
MISSING = (
    (1, "Threshold of layer 10 of ResNet50 over training"),
    (2, "Sparsity of ResNet50 over training"),
    (3, "Final thresholds of all layers of ResNet50"),
)
WHY_MISSING = "needs the authors' training logs, which are not published"
_PLURAL = {"agrees": "agree", "other count": "other count", "differs": "differ", "not computable": "not computable"}
# A section each: anchor, name in the navigation.
SECTIONS = [("summary", "Summary"), ("differs", "What differs"), ("figures", "Figures"), ("tables", "Tables")]


@dataclass(frozen=True)
class PaperReport:
    """Figures and tables made again.

    Args:
        charts: figures 4 to 10.
        tables: tables 1 to 12.
        checks: every printed value that was looked at.
        ours: measured runs to set beside them; None without.
    """

    charts: tuple[Chart, ...]
    tables: tuple[Table, ...]
    checks: tuple[Check, ...]
    ours: Ours | None = None

    def counts(self) -> dict[str, int]:
        """How many values have each verdict."""
        found = Counter(check.verdict for check in self.checks)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def all_charts(self) -> tuple[Chart, ...]:
        """Those of the paper, then ours."""
        return self.charts + (self.ours.charts if self.ours else ())

    def all_tables(self) -> tuple[Table, ...]:
        """The tables, what differs, all checks, and our runs."""
        lists = (difference_table(self.checks), check_table(self.checks))
        return self.tables + lists + ((self.ours.table,) if self.ours else ())


def paper_report(runs: Iterable[Path] = ()) -> PaperReport:
    """Make everything again.

    Args:
        runs: run folders, or folders of them, to set beside the paper.

    Raises:
        ValueError: naming a path that holds no run.

    Example:
        >>> report = paper_report()
        >>> len(report.charts), len(report.tables)
        (7, 12)
    """
    ours = read_ours(runs)
    tables = [*result_tables(), low_rank_table(), *budget_tables(), *hyperparameter_tables()]
    kinds = {**dict.fromkeys(RESULTS, check_results), **dict.fromkeys(BUDGETS, check_budgets)}
    checks = [check for number in sorted(kinds) for check in kinds[number](number)]
    checks += [*check_consistency(), *check_claims()]
    return PaperReport(_charts(ours), tuple(sorted(tables, key=lambda table: table.name)), tuple(checks), ours)


def _charts(ours: Ours | None) -> tuple[Chart, ...]:
    layers = [
        figure(network, ours.budgets.get(network, {}) if ours else {})
        for network in ("resnet50", "mobilenetv1")
        for figure in (layer_sparsity, layer_macs)
    ]
    return (accuracy_against_sparsity(), accuracy_against_macs(), *layers, thresholds())


# What there is of every figure and table of the paper, a line each.

# How ours was made, in a few words; the figures and tables themselves say it at length.
MADE = {
    "figure 4": "as printed in table 1",
    "figure 5": "accuracy as printed, FLOPs recomputed",
    "figure 6": "as printed in table 7",
    "figure 7": "recomputed from the budgets of table 7",
    "figure 8": "as printed in table 8",
    "figure 9": "recomputed from the budgets of table 8",
    "figure 10": "computed",
    "table 3": "as printed, sizes computed",
    **dict.fromkeys(("table 1", "table 2", "table 4", "table 5", "table 9"), "recomputed from layer-wise budgets"),
    **dict.fromkeys(("table 6", "table 7", "table 8"), "as printed, totals added up"),
    **dict.fromkeys(("table 10", "table 11", "table 12"), "as printed"),
}


def contents(report: PaperReport) -> list[tuple[str, str, str, str]]:
    """One line for each figure and table: its number, what it shows, how ours was made, and the result."""
    lines = [(f"figure {number}", title, WHY_MISSING, _figure_of(report.ours, number)) for number, title in MISSING]
    for chart in report.charts:
        number, title = _split(chart.title)
        lines.append((number, title, MADE[number], f"{len(chart.series)} series"))
    for table in report.tables:
        number, title = _split(table.caption)
        lines.append((number, title, MADE[number], _result([c for c in report.checks if c.place == number])))
    two = [c for c in report.checks if c.place.startswith("tables ")]
    text = [c for c in report.checks if not c.place.startswith("table")]
    lines.append(("", "Values that two tables share", "compared as printed", _result(two)))
    lines.append(("", "Numbers in the text", "computed from the tables as printed", _result(text)))
    return lines


def _split(title: str) -> tuple[str, str]:
    number, _, rest = title.partition(". ")
    return number.lower(), rest


def _result(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    found = Counter(check.verdict for check in checks)
    return ", ".join(f"{found[v]} {_PLURAL[v]}" for v in VERDICTS if found[v])


def _figure_of(ours: Ours | None, number: int) -> str:
    like = [chart for chart in ours.charts if f"figure_{number:02}" in chart.name] if ours else []
    return f"{len(like)} of our runs' own" if like else "not made"


TEMPLATE = Path(__file__).with_name("paper.html")


def paper_page(report: PaperReport) -> str:
    """The page as HTML, complete in itself.

    Example:
        >>> "Figure 7" in paper_page(paper_report())
        True
    """
    lines = ("", "shows", "made how", "result")
    return render(
        TEMPLATE,
        title="The paper, made again",
        subtitle=PAPER,
        sections=[*SECTIONS, *([("ours", "Our runs")] if report.ours else []), ("checks-all", "All checks")],
        counts=report.counts(),
        verdicts=VERDICTS,
        contents=text_table("contents", "Figures and tables of the paper", "", lines, contents(report)),
        charts=report.charts,
        tables=report.tables,
        differing=difference_table(report.checks),
        checks=check_table(report.checks),
        ours=report.ours,
    )


def write_paper_report(
    report: PaperReport, *, out: Path | None = None, figures: Path | None = None, tables: Path | None = None
) -> list[Path]:
    """Write what is asked for.

    Args:
        report: figures, tables and checks.
        out: a file for the page.
        figures: a folder for SVG, made if it is missing.
        tables: a folder for CSV and Markdown, made if it is missing.

    Returns:
        The page, and the two folders, as far as they were asked for.

    Raises:
        ValueError: before anything is written, if a place cannot be written to.
        ImportError: without jinja2 for the page.
    """
    _require(out, figures, tables)
    # A package that is missing is noticed before the first file is written.
    page = "" if out is None else paper_page(report)
    if figures is not None:
        save_figures(report.all_charts(), figures)
    if out is not None:
        write_text(out, page)
    if tables is not None:
        save_tables(report.all_tables(), tables)
    return [path for path in (out, figures, tables) if path is not None]


def _require(out: Path | None, figures: Path | None, tables: Path | None) -> None:
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        what = "is a folder" if out.is_dir() else f"lies in {out.parent}, which is no folder"
        raise ValueError(f"{out} {what}: name a file such as paper.html in a folder that exists")
    for folder in (figures, tables):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file: name a folder, which is made if it is missing")
