"""Output of the commands: lines, tables, and the live view of a run; and the options that several of them have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from softprune.budget.units import noun, unit_words
from softprune.train.observer import Progress as TrainingProgress
from softprune.train.observer import Silent

if TYPE_CHECKING:
    from softprune.budget.budget import Budget

console = Console()
errors = Console(stderr=True)

Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Import and run the Python code that the file or folder names (package.module:factory)."
    ),
]
Best = Annotated[bool, typer.Option("--best", help="The checkpoint of the best epoch, not the last one.")]
ModelName = Annotated[
    str, typer.Argument(help="A network such as resnet50 or mobilenetv1, or package.module:factory of your own.")
]
InputShape = Annotated[str | None, typer.Option("--input", help="Input shape with batch 1, such as 1,3,224,224.")]
LEFT_ALIGNED = ("note", "method", "what it is", "what it does", "cost", "shape", "role", "takes", "paper")


def say(text: object) -> None:
    """Print a line as it is: without markup, colours for numbers, or added line breaks."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def table(first: str, *columns: str) -> Table:
    """An empty table; columns of numbers are aligned to the right."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    made.add_column(first, no_wrap=True)
    for column in columns:
        made.add_column(column, justify="left" if column in LEFT_ALIGNED else "right")
    return made


def number(value: float | int | None) -> str:
    """A count with separators, or a dash."""
    return "-" if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def print_budget(budget: Budget, *, thresholds: dict[str, float] | None = None) -> None:
    """The budget as a table; with a column of thresholds where they are known."""
    middle = [] if thresholds is None else ["threshold"]
    rows = table("tensor", noun(budget.units), "MACs", *middle, "sparsity")
    profile = budget.profile
    for name in budget:
        cost = profile[name] if profile else None
        macs = cost.macs if cost and profile and profile.counted else None
        alpha = [] if thresholds is None else [f"{thresholds[name]:.5f}"]
        rows.add_row(name, number(cost.params if cost else None), number(macs), *alpha, f"{budget.sparsity(name):.2%}")
    if profile is not None:
        gap = [""] * len(middle)
        total, left = (profile.total_macs(), budget.macs()) if profile.counted else (None, None)
        rows.add_section()
        rows.add_row("overall", number(profile.params), number(total), *gap, f"{budget.overall:.2%}")
        if len(budget) > 1 and not unit_words(budget.units).importances:  # outputs of the network have no importances
            rows.add_row("without the classifier", "", "", *gap, f"{budget.backbone:.2%}")
        rows.add_row("left", number(budget.params), number(left), *gap, "")
        if budget.stored is not None:
            rows.add_row("parameters stored", number(budget.stored), "", *gap, "")
    console.print(rows)


def left_words(budget: Budget) -> str:
    """How much of a measured network is left, in one line."""
    macs = f", {budget.macs():,} MACs" if budget.profile is not None and budget.profile.counted else ""
    stored = "" if budget.stored is None else f"; {budget.stored:,} parameters to store"
    return f"{budget.params:,} {noun(budget.units, budget.params)}{macs} left{stored}"


class LiveView(Silent):
    """An observer of training: on a terminal a progress bar, elsewhere one line per epoch; quiet, notes only."""

    def __init__(self, *, quiet: bool = False) -> None:
        bar = BarColumn(bar_width=24)
        self._bar = Progress(TextColumn("{task.description}"), bar, TimeRemainingColumn(), console=console)
        self._live = console.is_terminal and not quiet
        self._quiet = quiet
        self._task: TaskID | None = None

    def __enter__(self) -> LiveView:
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._bar.stop()

    def on_step(self, progress: object) -> None:
        if not self._live or not isinstance(progress, TrainingProgress):
            return
        if self._task is None:
            self._task = self._bar.add_task("", total=progress.total_steps)
        words = f"epoch {progress.epoch}/{progress.epochs}  loss {progress.loss:.3f}"
        if progress.accuracy is not None:
            words += f"  accuracy {progress.accuracy:.2%}"
        if progress.sparsity is not None:
            words += f"  sparsity {progress.sparsity:.2%}"
        self._bar.update(self._task, completed=progress.step, description=words)

    def on_metrics(self, metrics: Mapping[str, float | int | str]) -> None:
        if self._live or self._quiet or metrics["kind"] != "epoch":
            return
        words = f"epoch {int(metrics['epoch']) + 1}  step {metrics['step']}  accuracy {float(metrics['accuracy']):.2%}"
        if "sparsity" in metrics:
            words += f"  sparsity {float(metrics['sparsity']):.2%}"
        say(f"{words}  {float(metrics['seconds']):.0f} s")

    def on_note(self, text: str) -> None:
        say(text)
