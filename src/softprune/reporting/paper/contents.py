"""What there is of every figure and table of the paper, a line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from softprune.reporting.paper.check import Check
from softprune.reporting.paper.edition import VERDICTS, Edition
from softprune.reporting.paper.ours import Ours

# Figures that need what the authors did not publish.
MISSING = (
    (1, "Threshold of layer 10 of ResNet50 over training"),
    (2, "Sparsity of ResNet50 over training"),
    (3, "Final thresholds of all layers of ResNet50"),
)
WHY_MISSING = "needs the authors' training logs, which are not published"
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
_PLURAL = {"agrees": "agree", "other count": "other count", "differs": "differ", "not computable": "not computable"}


def contents(edition: Edition) -> list[tuple[str, str, str, str]]:
    """One line for each figure and table: its number, what it shows, how ours was made, and the result."""
    lines = [(f"figure {number}", title, WHY_MISSING, _figure_of(edition.ours, number)) for number, title in MISSING]
    for chart in edition.charts:
        number, title = _split(chart.title)
        lines.append((number, title, MADE[number], f"{len(chart.series)} series"))
    for sheet in edition.sheets:
        number, title = _split(sheet.title)
        lines.append((number, title, MADE[number], _result([c for c in edition.checks if c.place == number])))
    two = [c for c in edition.checks if c.place.startswith("tables ")]
    text = [c for c in edition.checks if not c.place.startswith("table")]
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
