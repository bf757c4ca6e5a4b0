"""Make the figures and tables of the STR paper again, from the root of the repository: `python -m benchmarks.paper`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from benchmarks.paper.printed import disagreements
from benchmarks.paper.report import PaperReport, contents, paper_report, write_paper_report
from rich.console import Console
from rich.markup import escape
from rich.table import Table

console = Console()
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def paper(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a page with all figures and tables to this .html file.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Write the figures as SVG to this folder.")] = None,
    tables: Annotated[Path | None, typer.Option(help="Write the tables as CSV and Markdown to this folder.")] = None,
    ours: Annotated[
        list[Path] | None,
        typer.Option(help="Run folder, or folder of runs, to set beside the paper; may be repeated."),
    ] = None,
) -> None:
    """Make the figures and tables of the STR paper again from its published numbers, and say what differs."""
    report = paper_report(ours or ())
    written = write_paper_report(report, out=out, figures=figures, tables=tables)
    _print(report)
    for path in written:
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


def _print(report: PaperReport) -> None:
    console.print(_table(("", "shows", "made how", "result"), contents(report)))
    console.print()
    differing = [(c.place, c.row, c.quantity, c.printed, c.ours, c.reason) for c in disagreements(report.checks)]
    console.print(_table(("where", "which", "what", "printed", "ours", "reason"), differing))
    counts = ", ".join(f"{number} {verdict}" for verdict, number in report.counts().items())
    console.print(f"\n{sum(report.counts().values())} values checked: {counts}.", highlight=False)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    made = Table(box=None, header_style="bold", pad_edge=False)
    for place, column in enumerate(columns):
        made.add_column(column, no_wrap=not place)
    for row in rows:
        made.add_row(*map(escape, row))
    return made


if __name__ == "__main__":
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
