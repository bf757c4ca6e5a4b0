"""All that can be made again of the paper, in one value. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from softprune.reporting.chart import Chart
from softprune.reporting.paper.budget_checks import BUDGETS, check_budgets
from softprune.reporting.paper.budget_sheets import budget_sheets
from softprune.reporting.paper.check import Check, Verdict
from softprune.reporting.paper.claims import check_claims
from softprune.reporting.paper.consistency import check_consistency
from softprune.reporting.paper.frontier_figures import accuracy_against_macs, accuracy_against_sparsity
from softprune.reporting.paper.layer_figures import layer_macs, layer_sparsity
from softprune.reporting.paper.other_sheets import check_sheet, difference_sheet, hyperparameter_sheets, low_rank_sheet
from softprune.reporting.paper.ours import Ours, read_ours
from softprune.reporting.paper.recount import RESULTS
from softprune.reporting.paper.result_checks import check_results
from softprune.reporting.paper.result_sheets import result_sheets
from softprune.reporting.paper.sheet import Sheet
from softprune.reporting.paper.threshold_figure import thresholds

PAPER = "Soft Threshold Weight Reparameterization for Learnable Sparsity (Kusupati et al., ICML 2020)"
VERDICTS: tuple[Verdict, ...] = ("agrees", "other count", "differs", "not computable")


@dataclass(frozen=True)
class Edition:
    """Figures and tables made again.

    Args:
        charts: figures 4 to 10.
        sheets: tables 1 to 12.
        checks: every printed value that was looked at.
        ours: measured runs to set beside them; None without.
    """

    charts: tuple[Chart, ...]
    sheets: tuple[Sheet, ...]
    checks: tuple[Check, ...]
    ours: Ours | None = None

    def counts(self) -> dict[str, int]:
        """How many values have each verdict."""
        found = Counter(check.verdict for check in self.checks)
        return {verdict: found[verdict] for verdict in VERDICTS}

    def all_charts(self) -> tuple[Chart, ...]:
        """Those of the paper, then ours."""
        return self.charts + (self.ours.charts if self.ours else ())

    def all_sheets(self) -> tuple[Sheet, ...]:
        """The tables, what differs, all checks, and our runs."""
        lists = (difference_sheet(self.checks), check_sheet(self.checks))
        return self.sheets + lists + (self.ours.sheets if self.ours else ())


def paper_edition(runs: Iterable[Path] = ()) -> Edition:
    """Make everything again.

    Args:
        runs: run folders, or folders of them, to set beside the paper.

    Raises:
        ValueError: naming a path that holds no run.

    Example:
        >>> edition = paper_edition()
        >>> len(edition.charts), len(edition.sheets)
        (7, 12)
    """
    ours = read_ours(runs)
    sheets = [*result_sheets(), low_rank_sheet(), *budget_sheets(), *hyperparameter_sheets()]
    kinds = {**dict.fromkeys(RESULTS, check_results), **dict.fromkeys(BUDGETS, check_budgets)}
    checks = [check for number in sorted(kinds) for check in kinds[number](number)]
    checks += [*check_consistency(), *check_claims()]
    return Edition(_charts(ours), tuple(sorted(sheets, key=lambda sheet: sheet.name)), tuple(checks), ours)


def _charts(ours: Ours | None) -> tuple[Chart, ...]:
    layers = [
        figure(network, ours.budgets.get(network, {}) if ours else {})
        for network in ("resnet50", "mobilenetv1")
        for figure in (layer_sparsity, layer_macs)
    ]
    return (accuracy_against_sparsity(), accuracy_against_macs(), *layers, thresholds())
