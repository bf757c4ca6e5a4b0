"""Output of the commands: lines, tables, and the live view of a run; and the options that several of them have."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from softprune.train.observer import Progress as TrainingProgress
from softprune.train.observer import Silent

console = Console()
errors = Console(stderr=True)

Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Import and run the Python code that the file or folder names (package.module:factory)."
    ),
]
ModelName = Annotated[
    str, typer.Argument(help="A network such as resnet50 or mobilenetv1, or package.module:factory of your own.")
]
InputShape = Annotated[str | None, typer.Option("--input", help="Input shape with batch 1, such as 1,3,224,224.")]
LEFT_ALIGNED = ("note", "method", "what it is", "what it does", "cost", "shape", "role", "takes", "paper")


def say(text: object) -> None:
    """Print a line as it is: without markup, colours for numbers, or line breaks of our own."""
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


class LiveView(Silent):
    """An observer of training: on a terminal a progress bar, elsewhere one line per epoch; quiet, notes only."""

    def __init__(self, *, quiet: bool = False) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console)
        self._live = console.is_terminal and not quiet
        self._quiet = quiet
        self._task: TaskID | None = None

    def __enter__(self) -> LiveView:
        if self._live:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
