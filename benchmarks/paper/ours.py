"""Our measured runs, set beside the paper's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.paper.recount import network_profile
from benchmarks.paper.tables import text_table

from softprune.budget.budget import Budget
from softprune.reporting.charts import CHARTS, Axis, Chart, Series, tells_something
from softprune.reporting.run import Run, find_runs, read_run
from softprune.reporting.tables import Table

# Figures of the paper that a run has its own of: number -> name of the chart in softprune.reporting.charts.
LIKE = {1: "thresholds", 2: "sparsity", 3: "final_thresholds", 6: "layer_sparsity", 7: "layer_macs"}

EXAMPLES = 7  # runs in one chart of curves or layers: as many as there are colours


@dataclass(frozen=True)
class Ours:
    """Measured runs.

    Args:
        runs: as read.
        charts: like the paper's, for each network and data set.
        table: one line for each run.
        budgets: those of runs on the paper's networks, which are drawn into its own figures: network -> name -> budget.
    """

    runs: tuple[Run, ...]
    charts: tuple[Chart, ...]
    table: Table
    budgets: Mapping[str, dict[str, Budget]]


def read_ours(paths: Iterable[Path]) -> Ours | None:
    """Read run folders, or folders of them; None without a path.

    Raises:
        ValueError: naming a path that holds no run.
    """
    wanted = list(paths)
    if not wanted:
        return None
    runs = tuple(read_run(path) for path in find_runs(wanted))
    charts = []
    for number, group in enumerate(_groups(runs).values(), 1):
        charts += _charts(group, number)
    return Ours(runs, tuple(charts), _table(runs), _budgets(runs))


def _groups(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    """Runs that can be compared: those of one network on one data set."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.model, run.data), []).append(run)
    return groups


def _charts(runs: Sequence[Run], number: int) -> list[Chart]:
    what = f"{runs[0].model} on {runs[0].data}"
    shown = _examples(runs)
    made = [(figure, _told(CHARTS[name](shown), shown, runs)) for figure, name in LIKE.items()] if shown else []
    made = [(figure, chart) for figure, chart in made if tells_something(chart)]
    frontiers = (
        (4, _frontier(runs, lambda run: run.sparsity, Axis("sparsity", percent=True))),
        (5, _frontier(runs, _million_macs, Axis("million multiply-adds", scale="log"))),
    )
    made += [(figure, chart) for figure, chart in frontiers if chart.series]
    return [
        replace(
            chart,
            name=f"ours_{number}_figure_{figure:02}_{chart.name}",
            title=f"Ours, like figure {figure}: {chart.title}, {what}",
        )
        for figure, chart in sorted(made, key=lambda pair: pair[0])
    ]


def _examples(runs: Sequence[Run]) -> list[Run]:
    """One run for each method, so that curves and layers of many runs do not hide each other."""
    found: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: not run.finished):
        if run.method != "dense" and run.layers:
            found.setdefault(run.label, run)
    return list(found.values())[:EXAMPLES]


def _told(chart: Chart, shown: Sequence[Run], runs: Sequence[Run]) -> Chart:
    if len(shown) == len(runs):
        return chart
    names = ", ".join(run.name for run in shown)
    return replace(chart, caption=f"{chart.caption} {len(shown)} of {len(runs)} runs, one for each method: {names}.")


def _million_macs(run: Run) -> float | None:
    return None if run.macs is None else run.macs / 1e6


def _frontier(runs: Sequence[Run], place: Callable[[Run], float | None], axis: Axis) -> Chart:
    points: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for run in runs:
        x = place(run)
        if x is not None and run.accuracy is not None and run.finished and run.method != "dense":
            points.setdefault((run.method, run.label), []).append((x, run.accuracy, run.name))
    series = []
    for (method, label), found in points.items():
        places, accuracies, names = zip(*sorted(found), strict=True)
        series.append(Series(label, places, accuracies, mark="points", notes=names, group=method))
    return Chart(
        name="accuracy",
        title=f"Accuracy against {axis.label.removeprefix('million ')}",
        caption="Measured by our runs, one point for each that has finished.",
        x=axis,
        y=Axis("accuracy", percent=True),
        series=tuple(series),
    )


def _budgets(runs: Sequence[Run]) -> dict[str, dict[str, Budget]]:
    found: dict[str, dict[str, Budget]] = {}
    for network in ("resnet50", "mobilenetv1"):
        names = network_profile(network).names
        for run in runs:
            if run.budget is not None and run.budget.profile is not None and run.budget.profile.names == names:
                found.setdefault(network, {})[f"ours: {run.name}"] = run.budget
    return found


def _table(runs: Sequence[Run]) -> Table:
    rows = tuple(
        (
            run.name,
            run.model,
            run.data,
            run.label,
            run.goal,
            "" if run.seed is None else str(run.seed),
            _percent(run.accuracy),
            _percent(run.sparsity),
            "" if run.params is None else str(run.params),
            "" if run.macs is None else str(run.macs),
            "finished" if run.finished else "not finished",
        )
        for run in runs
    )
    columns = ("run", "network", "data", "method", "goal", "seed", "top-1 %", "sparsity %", "weights", "FLOPs", "state")
    how = "Measured by softprune, after the last epoch; read from the run folders. Nothing here is the paper's."
    return text_table("ours_runs", "Our runs", how, columns, rows)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"
