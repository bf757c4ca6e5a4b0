"""Experiments that are made of cells: runs of `softprune train`, one folder each, made once by one process per core.

A script lists its cells and makes one of them when it is called with `--cell NAME`. Finished cells are skipped and
stopped ones go on, so a script can be called until all are there, and a table can be made of those that are.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Protocol, TypeVar

# Half the width of a 95 % interval in standard errors, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class Cell(Protocol):
    """One result."""

    @property
    def name(self) -> str: ...

    @property
    def rests_on(self) -> Cell | None:
        """The cell that has to be there first."""


class Alone:
    """A cell that no other has to be there for."""

    rests_on = None


SomeCell = TypeVar("SomeCell", bound=Cell)


def add_options(parser: argparse.ArgumentParser, runs: str) -> None:
    """What every script of this kind can be told."""
    parser.add_argument("change", nargs="*", help="changes to every run, such as epochs=1 to try it out")
    parser.add_argument("--runs", type=Path, default=Path(runs), help="where the run folders are")
    parser.add_argument("--hours", type=float, default=math.inf, help="begin no new cell after this time")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--plan", action="store_true", help="print the cells and the estimate, train nothing")
    parser.add_argument("--report", action="store_true", help="print the table of what is there, train nothing")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    parser.add_argument("--cell", help=argparse.SUPPRESS)


def work(
    options: argparse.Namespace,
    todo: list[SomeCell],
    *,
    train: Callable[[SomeCell], object],
    minutes: Callable[[SomeCell], float],
    report: Callable[[argparse.Namespace, list[SomeCell], list[SomeCell]], None],
) -> None:
    """Do what a script was asked for: make one cell, print the plan, or make all cells and tell of those that are done.

    Args:
        options: of the script.
        todo: its cells, each a run folder.
        train: makes the folder of one cell.
        minutes: of a core that a cell takes, about.
        report: is given the options, all cells and the finished ones.
    """
    if options.cell:
        train(next(c for c in todo if c.name == options.cell))
        return

    def finished(cell: Cell) -> bool:
        return bool((options.runs / cell.name / "result.json").is_file())

    waiting = [c for c in todo if not finished(c)]
    left = sum(map(minutes, waiting)) / options.workers
    print(
        f"{len(todo) - len(waiting)} of {len(todo)} cells are done; the rest takes about {left:.0f} minutes", flush=True
    )
    if options.plan:
        print("\n".join(f"{'open' if c in waiting else 'done'}  {c.name}" for c in todo))
        return
    if not options.report:
        make(options, waiting, finished)
    report(options, todo, [c for c in todo if finished(c)])


def make(options: argparse.Namespace, waiting: Sequence[Cell], finished: Callable[[Cell], bool]) -> None:
    """Work through the cells with one process per worker, until they are done or the time is up.

    Args:
        options: of the script.
        waiting: cells that are not finished, in the order in which they are wanted.
        finished: whether a cell is there.
    """
    deadline = time.monotonic() + 3600 * options.hours
    busy: dict[str, subprocess.Popen[bytes]] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; call again to go on"))
    try:
        _work(options, list(waiting), busy, deadline, finished)
    finally:
        for process in busy.values():  # they write a checkpoint and end
            process.terminate()
            process.wait()


def _work(
    options: argparse.Namespace,
    waiting: list[Cell],
    busy: dict[str, subprocess.Popen[bytes]],
    deadline: float,
    finished: Callable[[Cell], bool],
) -> None:
    while waiting or busy:
        while waiting and len(busy) < options.workers and time.monotonic() < deadline:
            ready = [c for c in waiting if c.rests_on is None or finished(c.rests_on)]
            if not ready:
                break
            waiting.remove(ready[0])
            busy[ready[0].name] = _start(options, ready[0])
        if not busy:
            print(f"{len(waiting)} cells are left; call again to go on", flush=True)
            return
        for name in [name for name, process in busy.items() if process.poll() is not None]:
            code = busy.pop(name).returncode
            print(f"{name}: {'done' if code == 0 else f'failed with {code}'}", flush=True)
        time.sleep(0.5)


def _start(options: argparse.Namespace, cell: Cell) -> subprocess.Popen[bytes]:
    script = sys.argv[0]
    words = [sys.executable, script, "--runs", options.runs, "--cell", cell.name, *options.change]
    path = os.pathsep.join([str(Path(script).resolve().parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [str(word) for word in words], env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    )


def train_into(folder: Path, recipe: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The last numbers of a run: as it is there, continued, or begun."""
    from softprune.train.config import RunConfig
    from softprune.train.run import resume, train

    if not (folder / "result.json").is_file():
        if (folder / "config.yaml").is_file():
            outcome = resume(folder)
        else:
            outcome = train(RunConfig.load(recipe, overrides), folder)
        if not outcome.finished:
            sys.exit(f"{folder} was stopped")
    return dict(read_result(folder)["last"])


def read_result(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "result.json").read_text()))


# numbers


def spread(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": mean(values), "deviation": stdev(values) if len(values) > 1 else None}


def paired(found: list[dict[str, Any]], reference: list[dict[str, Any]], key: str) -> dict[str, Any] | None:
    """Mean difference to the reference over the seeds that both have, with its 95 % interval."""
    by_seed = {r["seed"]: r[key] for r in reference}
    gaps = [r[key] - by_seed[r["seed"]] for r in found if r["seed"] in by_seed]
    if not gaps:
        return None
    half = STUDENT[len(gaps) - 1] * stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else None
    return {"mean": mean(gaps), "half": half, "seeds": len(gaps)}


# telling


def spread_text(value: dict[str, Any], unit: float = 1.0) -> str:
    deviation = "" if value["deviation"] is None else f" ± {value['deviation'] / unit:.2f}"
    return f"{value['mean'] / unit:.2f}{deviation}"


def gap_text(value: dict[str, Any] | None) -> str:
    if value is None:
        return ""
    half = "" if value["half"] is None else f" ± {value['half']:.2f}"
    return f"{value['mean']:+.2f}{half} ({seeds_text(value['seeds'])})"


def seeds_text(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(options: argparse.Namespace, text: str, facts: dict[str, Any]) -> None:
    """Print the text, and keep it and the numbers if the script was told where."""
    print(text)
    if options.out:
        import torch

        options.out.parent.mkdir(parents=True, exist_ok=True)
        head = {"command": "python " + " ".join(sys.argv), "torch": torch.__version__, "changes": options.change}
        options.out.with_suffix(".json").write_text(json.dumps({**head, **facts}, indent=2) + "\n")
        options.out.with_suffix(".md").write_text(text)
