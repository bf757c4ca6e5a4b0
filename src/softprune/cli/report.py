"""Commands that show runs: pages about them, and a run that goes on in a terminal."""

# ruff: noqa: FBT002 - typer makes options of them

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from softprune.cli.terminal import console, say
from softprune.records import CONFIG, METRICS

if TYPE_CHECKING:
    from rich.console import Console

    from softprune.reporting.live_run import WatchedRun


NEWS_EVERY = 5  # seconds between two pages that follow a run


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


# A run in a terminal.

EVERY = 1.0  # seconds between two looks
BLOCKS = "▁▂▃▄▅▆▇█"
SPARK, BAR = 32, 16  # characters
HEAD_LINES = 12  # all that is above the table of layers and below it
QUIET = 60  # seconds without news that are worth a word


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder; it may still be empty.")],
    once: Annotated[
        bool, typer.Option("--once", help="Print one picture and stop, as where there is no terminal.")
    ] = False,
) -> None:
    """Watch a run in the terminal while it goes on. Ends with the run, or with Ctrl-C, which does not stop the run.

    softprune watch runs/a

    softprune watch runs/a --once
    """
    follow(run, screen=console, once=once or not console.is_terminal)


def follow(
    path: Path, screen: Console, *, once: bool = False, wait: Callable[[], None] = lambda: time.sleep(EVERY)
) -> None:
    """Show the run in a folder until it is finished, or once; `wait` is called between two looks."""
    from rich.live import Live

    from softprune.reporting.live_run import WatchedRun

    refuse(path, once=once)
    run = WatchedRun(path)
    run.look()
    if once:
        screen.print(frame(run))
        return
    # Ctrl-C ends the view, and the last picture stays.
    with Live(frame(run, lines=screen.height), console=screen, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while not run.finished:
            wait()
            run.look()
            live.update(frame(run, lines=screen.height), refresh=True)


def refuse(path: Path, *, once: bool) -> None:
    """Raise a ValueError for a folder that is not a run and cannot become one."""
    from softprune.reporting.run import find_runs

    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; name the folder of a run, such as runs/a")
    if (path / CONFIG).is_file():
        return
    try:
        below = find_runs([path])
    except ValueError:
        if once:
            raise ValueError(f"{path} holds no run yet: it has no {CONFIG}") from None
        return
    newest = max(below, key=lambda run: (run / CONFIG).stat().st_mtime)
    raise ValueError(f"{path} holds {len(below)} runs; name one of them, such as the newest: softprune watch {newest}")


def frame(run: WatchedRun, *, lines: int | None = None) -> RenderableType:
    """One picture of a run: a table of all layers, or of as many as fit in `lines`."""
    if not run.config:
        return Text(f"{plain(run.path.name)}: waiting for {CONFIG}")
    parts: list[RenderableType] = [Text(plain(run.title), style="bold"), _progress(run), _curves(run)]
    if run.layers:
        parts += [Text(), _layers(run, lines=lines)]
    parts.append(_state(run))
    return Group(*parts)


def plain(text: str) -> str:
    """Text without control characters."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def sparkline(values: Iterable[float], width: int = SPARK) -> str:
    """Values as a line of blocks; of more than `width`, each block is a mean. Empty for fewer than two.

    Example:
        >>> sparkline([0, 1, 2, 3]), sparkline([5, 5])
        ('▁▃▆█', '▁▁')
    """
    course = list(values)
    if len(course) > width:
        edges = [round(index * len(course) / width) for index in range(width + 1)]
        course = [sum(course[a:b]) / (b - a) for a, b in pairwise(edges)]
    if len(course) < 2:
        return ""
    low, high = min(course), max(course)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in course)


def _progress(run: WatchedRun) -> RenderableType:
    grid, total = Table.grid(padding=(0, 2)), run.total_steps
    words = [f"epoch {run.epoch + 1}" + (f" of {run.epochs}" if run.epochs else "")]
    words.append(f"step {run.step:,}" + (f" of {total:,}" if total else ""))
    if run.finished:
        words.append("finished")
    elif run.seconds_left is not None:
        words.append(f"{_clock(run.seconds_left)} left")
    bar = ProgressBar(total=total or 1, completed=run.step if total else 0, width=30)
    grid.add_row(bar, *(Text(word) for word in words))
    return grid


def _curves(run: WatchedRun) -> Table:
    grid = Table.grid(padding=(0, 2))
    goal = run.goal_sparsity
    against = f"of {goal:.2%}" if goal is not None else f"goal: {run.goal}" if run.goal else ""
    if run.words.importances:
        against = f"{against}, {run.words.plural}".removeprefix(", ")
    rows: list[tuple[str, Sequence[float], str, str]] = [
        ("loss", list(run.losses), "{:.4f}", ""),
        ("accuracy", list(run.accuracies), "{:.2%}", f"best {max(run.accuracies):.2%}" if run.accuracies else ""),
        ("sparsity", list(run.sparsities), "{:.2%}", against),
    ]
    for name, values, form, more in rows:
        if values or (name == "sparsity" and more):
            last = form.format(values[-1]) if values else "-"
            grid.add_row(name, Text(last, justify="right"), Text(plain(more)), Text(sparkline(values), style="cyan"))
    if run.macs is not None and run.words.costed:
        grid.add_row("MACs", Text(f"{run.macs:,.0f}", justify="right"), "", "")
    if run.rate is not None:
        grid.add_row("learning rate", Text(f"{run.rate:.3g}", justify="right"), "", "")
    return grid


def _layers(run: WatchedRun, *, lines: int | None) -> Table:
    from softprune.reporting.charts import evenly

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("tensor", no_wrap=True, overflow="ellipsis")
    table.add_column("density", no_wrap=True)
    for number in ("", "threshold", *["MACs"] * run.words.costed):
        table.add_column(number, justify="right", no_wrap=True)
    table.add_column("over time", no_wrap=True, style="cyan")
    names = list(run.layers)
    shown = evenly(len(names), room=len(names) if lines is None else max(3, lines - HEAD_LINES))
    for index in shown:
        table.add_row(*_layer(run, names[index]))
    if len(shown) < len(names):
        table.caption = f"{len(shown)} of {len(names):,} tensors, evenly chosen"
        table.caption_justify = "left"
    return table


def _layer(run: WatchedRun, name: str) -> tuple[Text, ...]:
    from softprune.reporting.reading import known

    row = run.layers[name]
    density, alpha, macs = (known(row.get(key)) for key in ("density", "alpha", "macs"))
    filled = round(BAR * min(1.0, max(0.0, density or 0.0)))
    full = "▏" if density and not filled else "█" * filled  # the least that is kept is seen, too
    numbers = [(density, ".2%"), (alpha, ".3g"), *[(macs, ",.0f")] * run.words.costed]
    return (
        Text(plain(name)),
        Text(full + "░" * (BAR - len(full)), style="green"),
        *(Text("-" if value is None else format(value, form)) for value, form in numbers),
        Text(sparkline(run.densities.get(name, ()), 16)),
    )


def _state(run: WatchedRun) -> Text:
    from softprune.reporting.reading import known

    if run.finished:
        return Text(f"finished after {_clock(known(run.result.get('seconds')) or run.seconds)}", style="bold green")
    if (quiet := run.quiet_seconds) is None:
        return Text(f"waiting for {METRICS}", style="dim")
    if quiet > QUIET:
        return Text(f"no news for {_clock(quiet)}; a run that was stopped goes on with softprune train --resume")
    return Text(f"{_clock(run.seconds)} so far", style="dim")


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
