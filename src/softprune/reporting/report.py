"""The report of one or several runs: a page that is one file, and figures for papers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from softprune.budget.budget import Budget
from softprune.budget.counted import WEIGHT
from softprune.budget.files import write_text
from softprune.reporting.chart import Chart
from softprune.reporting.charts import CHARTS, tells_something
from softprune.reporting.counting import shared_noun
from softprune.reporting.curves import named
from softprune.reporting.latency import latency_table
from softprune.reporting.layer_table import layer_table, run_table
from softprune.reporting.layerwise import layer_macs, layer_sparsity
from softprune.reporting.page import refuse_place, render
from softprune.reporting.rivals import rivals
from softprune.reporting.run import Run, find_runs, read_run
from softprune.reporting.summary import cards, headline

TRAINING = ("accuracy", "sparsity", "training_loss")
THRESHOLDS = ("thresholds", "final_thresholds")


def report_page(runs: Sequence[Run], *, against: Sequence[Budget] = (), follow: int = 0) -> str:
    """The page as text.

    Args:
        runs: in the order of the page.
        against: other budgets to set the layers beside, as :func:`softprune.reporting.rivals.rivals` finds them.
        follow: seconds after which a served page asks for news; 0 for a file.
    """
    alone = runs[0] if len(runs) == 1 else None
    charts = {chart.name: chart for chart in report_charts(runs, against=against)}
    layers = [chart for name, chart in charts.items() if name.startswith("layer_")]
    table = layer_table(runs, against)
    return render(
        "report.html",
        title=alone.name if alone else f"{len(runs)} runs",
        subtitle=_subtitle(runs),
        runs=[_facts(run, name) for run, name in named(runs, runs[0].name)],
        overview=None if alone else run_table(runs),
        training=[charts[name] for name in TRAINING if name in charts],
        thresholds=[charts[name] for name in THRESHOLDS if name in charts],
        layers=layers,
        latency=latency_table([(run.latency, name) for run, name in named(runs, runs[0].name) if run.latency]),
        table=table if table.rows else None,
        counted=shared_noun(run.units for run in runs),
        single=all(run.units == WEIGHT for run in runs),
        follow=follow if not all(run.finished for run in runs) else 0,
    )


def report_charts(runs: Sequence[Run], *, against: Sequence[Budget] = ()) -> list[Chart]:
    """All charts of a report that tell something, in its order."""
    made = {name: make(runs) for name, make in CHARTS.items()}
    if against:
        made["layer_sparsity"] = layer_sparsity(runs, against=against)
        made["layer_macs"] = layer_macs(runs, against=against)
    return [chart for chart in made.values() if tells_something(chart)]


def write_report(
    paths: Sequence[Path], out: Path, *, against: Sequence[str] = (), figures: Path | None = None
) -> list[Path]:
    """Read runs and write their report.

    Args:
        paths: run folders, or folders of them.
        out: the HTML file; an existing one is replaced.
        against: budgets by name, see :func:`softprune.reporting.rivals.rivals`.
        figures: a folder for the charts as SVG and PNG; None for none.

    Returns:
        the files that were written.

    Example:
        write_report([Path("runs/demo")], Path("report.html"), against=["uniform", "erk"])
    """
    refuse_place(out, example="report.html")
    runs, others = load(paths, against)
    page = report_page(runs, against=others)
    written: list[Path] = []
    if figures is not None:
        from softprune.reporting.plot import save_figures

        written += save_figures(report_charts(runs, against=others), figures)
    return [write_text(out, page), *written]


def load(paths: Sequence[Path], against: Sequence[str] = ()) -> tuple[list[Run], list[Budget]]:
    """The runs at some paths, and the budgets to set them against."""
    runs = [read_run(path) for path in find_runs(paths)]
    return runs, rivals(against, runs)


def _subtitle(runs: Sequence[Run]) -> str:
    models = ", ".join(dict.fromkeys(run.model for run in runs if run.model))
    data = ", ".join(dict.fromkeys(run.data for run in runs if run.data))
    methods = ", ".join(dict.fromkeys(run.label for run in runs))
    return f"{models} on {data}, {methods}" if models and data else methods


def _facts(run: Run, name: str) -> dict[str, Any]:
    """What the template says about one run beside charts and tables."""
    command = run.environment.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    if words:
        words[0] = Path(words[0]).name
    return {
        "name": name,
        "headline": headline(run),
        "cards": cards(run),
        "config": yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True),
        "environment": [(key, _plain(value)) for key, value in run.environment.items() if key != "version"],
        "started": shlex.join(words),
        "again": shlex.join(["softprune", "train", str(run.path / "config.yaml"), "--out", f"runs/{run.name}-again"]),
        "problems": run.problems,
    }


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
