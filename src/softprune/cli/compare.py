"""The command that compares runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softprune.cli.terminal import console


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders of them, such as a sweep.", metavar="RUN...")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("compare.html"),
    figures: Annotated[Path | None, typer.Option(help="Also write every chart as SVG and PNG to this folder.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="Method that differences are taken to, as the page names it.")
    ] = None,
) -> None:
    """Compare runs of several methods, seeds and sparsities: one HTML file that needs nothing else.

    softprune compare runs/target -o compare.html

    softprune compare runs/str-* runs/gmp-* --figures figures
    """
    from softprune.reporting.comparison import write_comparison

    for path in write_comparison(runs, out, figures=figures, reference=reference):
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
