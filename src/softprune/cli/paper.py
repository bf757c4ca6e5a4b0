"""The command that makes the paper's figures and tables again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from softprune.cli.terminal import console, table

if TYPE_CHECKING:
    from softprune.reporting.paper.edition import Edition


def paper(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a page with all figures and tables to this .html file.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Write the figures as SVG and PNG to this folder.")] = None,
    tables: Annotated[Path | None, typer.Option(help="Write the tables as CSV and Markdown to this folder.")] = None,
    ours: Annotated[
        list[Path] | None,
        typer.Option(help="Run folder, or folder of runs, to set beside the paper; may be repeated."),
    ] = None,
) -> None:
    """Make the figures and tables of the STR paper again from its published numbers, and say what differs."""
    from softprune.reporting.paper.edition import paper_edition
    from softprune.reporting.paper.output import write_edition

    edition = paper_edition(ours or ())
    written = write_edition(edition, out=out, figures=figures, tables=tables)
    _print(edition)
    for path in written:
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


def _print(edition: Edition) -> None:
    from softprune.reporting.paper.check import disagreements
    from softprune.reporting.paper.contents import contents

    console.print(_left_aligned(("", "shows", "made how", "result"), contents(edition)))
    console.print()
    differing = [(c.place, c.row, c.quantity, c.printed, c.ours, c.reason) for c in disagreements(edition.checks)]
    console.print(_left_aligned(("where", "which", "what", "printed", "ours", "reason"), differing))
    counts = ", ".join(f"{number} {verdict}" for verdict, number in edition.counts().items())
    console.print(f"\n{sum(edition.counts().values())} values checked: {counts}.", highlight=False)


def _left_aligned(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    made = table(*columns)
    for column in made.columns:
        column.justify = "left"
    for row in rows:
        made.add_row(*map(escape, row))
    return made
