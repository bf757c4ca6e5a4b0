"""Commands that write pages about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softprune.cli.terminal import say

NEWS_EVERY = 5  # seconds


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.", metavar="RUN...")],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML file to write; report.html if not given.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="A budget to set the layers beside: uniform, erk, a file, a run folder or a published budget; "
            "may be repeated.",
        ),
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write every chart as SVG to this folder.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Serve the page to this machine while the run goes on; Ctrl-C ends it.")
    ] = False,
    port: Annotated[int, typer.Option(help="With --follow: the port; 0 takes a free one.")] = 0,
) -> None:
    """Write a page about one or several runs: one HTML file that needs nothing else."""
    from softprune.reporting.report import load, report_page, write_report

    names = against or []
    if not follow:
        if port:
            raise ValueError(f"--port {port} is for --follow; add --follow or leave it out")
        for path in write_report(runs, out or Path("report.html"), against=names, figures=figures):
            say(f"wrote {path}")
        return
    if out is not None or figures is not None:
        raise ValueError("--follow writes no files: leave out --out and --figures, or leave out --follow")
    from softprune.reporting.page import FollowServer

    def page() -> str:
        found, others = load(runs, names)
        return report_page(found, against=others, follow=NEWS_EVERY)

    page()  # what is wrong with the arguments is said here, not in the browser
    with FollowServer(page, port=port) as server:
        say(f"{server.url} shows the run as it goes on; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("stopped")


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders of them, such as a sweep.", metavar="RUN...")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("compare.html"),
    figures: Annotated[Path | None, typer.Option(help="Also write every chart as SVG to this folder.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="Method that differences are taken to, as the page names it.")
    ] = None,
) -> None:
    """Compare runs of several methods, seeds and sparsities: one HTML file that needs nothing else.

    softprune compare runs/target -o compare.html

    softprune compare runs/str-* runs/gmp-* --figures figures
    """
    from softprune.reporting.compare import write_comparison

    for path in write_comparison(runs, out, figures=figures, reference=reference):
        say(f"wrote {path}")
