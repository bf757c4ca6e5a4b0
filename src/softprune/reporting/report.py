"""The report of one or several runs: a page that is one file, figures for papers, and budgets to set beside them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from softprune.budget.allocate import erk, uniform
from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.units import shared_noun
from softprune.goals.goal import Sparsity
from softprune.records import BUDGET, CONFIG, write_text
from softprune.reporting.charts import CHARTS, Chart, layer_macs, layer_sparsity, named, tells_something
from softprune.reporting.figures import save_figures
from softprune.reporting.page import refuse_place, render
from softprune.reporting.run import Run, find_runs, read_run
from softprune.reporting.summary import cards, headline
from softprune.reporting.tables import layer_table, run_table, times_table

_RULES = {"uniform": uniform, "erk": erk}
TRAINING = ("accuracy", "sparsity", "training_loss")
THRESHOLDS = ("thresholds", "final_thresholds")


def reference_budgets(names: Iterable[str], runs: Sequence[Run]) -> list[Budget]:
    """The budgets that runs are set against, with the names of the runs' tensors; ``source`` is the name.

    Args:
        names: "uniform" or "erk" for the total that the first run reached; or a budget file, a run folder, or a
            published budget such as "resnet50/str-90.23".
        runs: the first that has a budget says which network it is.

    Raises:
        ValueError: naming a budget that is of another network.
    """
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return []
    own = next((run.budget for run in runs if run.profile is not None), None)
    if own is None or own.profile is None:
        raise ValueError(f"no {BUDGET} tells the layers of these runs yet, so {wanted[0]} cannot be set beside them")
    return [_reference(name, own, own.profile) for name in wanted]


def _reference(name: str, own: Budget, profile: Profile) -> Budget:
    if name in _RULES:
        if not 0 < own.overall < 1:
            raise ValueError(f"{name} shares out the sparsity of a run, and this one has {own.overall:.2%}")
        made = _RULES[name](profile, Sparsity(own.overall))
        return Budget(made.densities, profile, f"{name} ({own.overall * 100:.2f} %)")
    other = Budget.load(name)
    label = Path(name).resolve().name if Path(name).exists() else name
    if set(other) == set(profile.names):
        return Budget({tensor: other[tensor] for tensor in profile.names}, profile, label)
    # The same network under other names: as many tensors, of the same sizes, in the same order.
    sizes = [math.prod(t.shape) for t in other.profile] if other.profile else []
    if other.profile and sizes == [t.params for t in profile]:
        pairs = zip(profile.names, other.profile.names, strict=True)
        return Budget({mine: other[theirs] for mine, theirs in pairs}, profile, label)
    missing = next((tensor for tensor in profile.names if tensor not in other), "")
    raise ValueError(
        f"the budget {name} is of another network: it has {len(other)} tensors, the run {len(profile)}"
        f"{f', and none called {missing}' if missing else ''}; choose one of the same network"
    )


def report_page(runs: Sequence[Run], *, against: Sequence[Budget] = (), follow: int = 0) -> str:
    """The page as HTML; ``follow`` is after how many seconds a served page asks for news, 0 for a file."""
    alone = runs[0] if len(runs) == 1 else None
    charts = {chart.name: chart for chart in report_charts(runs, against=against)}
    table = layer_table(runs, against)
    return render(
        "report.html",
        title=alone.name if alone else f"{len(runs)} runs",
        subtitle=_subtitle(runs),
        runs=[_facts(run, name) for run, name in named(runs, runs[0].name)],
        overview=None if alone else run_table(runs),
        training=[charts[name] for name in TRAINING if name in charts],
        thresholds=[charts[name] for name in THRESHOLDS if name in charts],
        layers=[chart for name, chart in charts.items() if name.startswith("layer_")],
        latency=times_table(runs),
        table=table if table.rows else None,
        counted=shared_noun(run.units for run in runs),
        single=not any(run.words.importances for run in runs),
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
    """Read runs and write their report; returns the files that were written.

    Args:
        paths: run folders, or folders of them.
        out: the HTML file; an existing one is replaced.
        against: budgets by name, see `reference_budgets`.
        figures: a folder for the charts as SVG.
    """
    refuse_place(out, example="report.html")
    runs, others = load(paths, against)
    page = report_page(runs, against=others)
    written = save_figures(report_charts(runs, against=others), figures) if figures is not None else []
    return [write_text(out, page), *written]


def load(paths: Sequence[Path], against: Sequence[str] = ()) -> tuple[list[Run], list[Budget]]:
    """The runs at some paths, and the budgets to set them against."""
    runs = [read_run(path) for path in find_runs(paths)]
    return runs, reference_budgets(against, runs)


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
        "environment": [
            (key, " ".join(map(str, value)) if isinstance(value, list) else str(value))
            for key, value in run.environment.items()
            if key != "version"
        ],
        "started": shlex.join(words),
        "again": shlex.join(["softprune", "train", str(run.path / CONFIG), "--out", f"runs/{run.name}-again"]),
        "problems": run.problems,
    }
