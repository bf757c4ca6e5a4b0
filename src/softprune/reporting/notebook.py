"""Figures of runs by name, for notebooks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from softprune.reporting.chart import Chart
from softprune.reporting.charts import CHARTS
from softprune.reporting.frontier import frontier, layer_budgets, macs_frontier
from softprune.reporting.outcome import read_outcome
from softprune.reporting.pareto import pareto
from softprune.reporting.plot import draw
from softprune.reporting.run import Run, find_runs, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARISONS: dict[str, Callable[[Sequence[Run]], Chart]] = {
    "frontier": frontier,
    "macs_frontier": macs_frontier,
    "pareto": pareto,
    "layer_budgets": layer_budgets,
}

Where = str | os.PathLike[str] | Run


def figure(name: str, runs: Where | Iterable[Where]) -> Figure:
    """Draw one of the charts of reports and comparisons.

    Args:
        name: such as "layer_sparsity" (of runs) or "frontier" (of many runs, grouped by method and sparsity).
        runs: a run or several: folders, folders of runs, or what `read_run` gives.

    Returns:
        A matplotlib figure, which a notebook shows and `savefig` writes.

    Raises:
        ValueError: for a name that is none, listing all; and for a path that holds no run.
        ImportError: without matplotlib.

    Example:
        softprune.reporting.figure("frontier", "runs/target").savefig("frontier.pdf")
    """
    known = {**CHARTS, **COMPARISONS}
    if name not in known:
        raise ValueError(f"there is no figure {name!r}; the figures are {', '.join(known)}")
    many = [runs] if isinstance(runs, str | os.PathLike | Run) else list(runs)
    if not many:
        raise ValueError("a figure needs at least one run")
    read = read_outcome if name in COMPARISONS else read_run
    found = [run for where in many for run in ([where] if isinstance(where, Run) else _read(Path(where), read))]
    return draw(known[name](found))


def _read(path: Path, read: Callable[[Path], Run]) -> list[Run]:
    return [read(folder) for folder in find_runs([path])]
