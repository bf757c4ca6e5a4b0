"""The command that watches a run."""

# ruff: noqa: FBT002 - typer makes options of them

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softprune.cli.terminal import console

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 1.0  # seconds between two looks


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
    """Show a run until it is finished.

    Args:
        path: its folder.
        screen: where to.
        once: one picture only.
        wait: what happens between two looks.
    """
    from rich.live import Live

    from softprune.cli.run_view import frame
    from softprune.reporting.watched import WatchedRun

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
    """Raise for a folder that is no run and will not become one."""
    from softprune.reporting.run import CONFIG, find_runs

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
