"""The command that searches over configurations."""

# ruff: noqa: FBT002 - typer makes options of them

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from softprune.cli.terminal import Trust, console, percent, say, table

if TYPE_CHECKING:
    from softprune.train.sweep.folder import Results, TrialResult


def sweep(
    file: Annotated[Path, typer.Argument(help="YAML file of the sweep: base, search, sampler, trials, objectives.")],
    out: Annotated[Path | None, typer.Option(help="Sweep folder; runs/NAME by default. Joined if it is there.")] = None,
    storage: Annotated[
        str | None, typer.Option(envvar="SOFTPRUNE_STORAGE", help="Database URL that machines share.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes on this machine; above 1 with one thread each.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be searched; run nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print notes and the result only.")] = False,
    trust: Trust = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Search over configurations: many runs of one base. The same command again joins in, or goes on after a stop.

    softprune sweep sweep.yaml --out runs/lr

    softprune sweep sweep.yaml --out runs/lr --workers 4

    softprune sweep sweep.yaml --storage postgresql://host/studies
    """
    from softprune.train.sweep.run import describe, prepare_sweep, read_results, run_sweep
    from softprune.train.sweep.sweep import Sweep

    plan = Sweep.load(file, storage=storage, trust=trust)
    if dry_run:
        say(describe(plan))
        return
    folder = out or Path("runs") / plan.config.name
    if workers == 1:
        results = run_sweep(plan, folder, observer=SweepView(quiet=quiet), threads=1 if parent else None, parent=parent)
    else:
        prepare_sweep(plan, folder)
        _run_workers(folder, workers, storage=plan.config.storage, quiet=quiet, trust=trust)
        results = read_results(plan, folder)
    if parent is None:
        _report(results, folder)


class SweepView:
    """An observer of a sweep: one line per trial; quiet, notes only."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet

    def on_trial(self, trial: TrialResult, results: Results) -> None:
        from softprune.train.sweep.sweep import written

        if self._quiet:
            return
        words = [f"trial {trial.number:04d}", trial.state, written(trial.params), _objectives(trial), trial.reason]
        if results.best and len(results.sweep.config.objectives) > 1:
            words.append(f"({len(results.best)} in the Pareto set)")
        elif results.best:
            words.append(f"(best {_objectives(results.best[0])} of {results.best[0].number:04d})")
        words.append(f"{results.ended}/{len(results.trials)}")
        self.on_note("  ".join(word for word in words if word))

    on_note = staticmethod(say)


def _objectives(trial: TrialResult) -> str:
    return "  ".join(f"{name} {_shown(name, value)}" for name, value in trial.objectives.items())


def _shown(name: str, value: float) -> str:
    return percent(value) if name in ("accuracy", "sparsity") else f"{value:,.0f}"


def _run_workers(folder: Path, count: int, *, storage: str | None, quiet: bool, trust: bool) -> None:
    from softprune.train.sweep.folder import SWEEP
    from softprune.train.sweep.run import run_fleet

    command = [sys.executable, "-m", "softprune", "sweep", str(folder / SWEEP), "--out", str(folder)]
    command += ["--parent", str(os.getpid()), *(["--quiet"] if quiet else []), *(["--trust"] if trust else [])]
    # In the environment, where other users of the machine cannot read a password.
    environment = {**os.environ, **({} if storage is None else {"SOFTPRUNE_STORAGE": storage})}
    run_fleet(command, count, environment=environment, on_note=say)


def _report(results: Results, folder: Path) -> None:
    from softprune.train.sweep.sweep import written

    config, counts, total = results.sweep.config, results.counts, len(results.trials)
    if counts["failed"] == total:
        raise ValueError(f"all {total} trials failed; the first one: {results.trials[0].reason}")
    if results.best:
        rows = table("best trials" if len(config.objectives) > 1 else "best trial", *config.search, *config.objectives)
        for trial in results.best:
            params = [escape(written({key: trial.params[key]}).partition("=")[2]) for key in config.search]
            rows.add_row(f"{trial.number:04d}", *params, *(_shown(n, v) for n, v in trial.objectives.items()))
        console.print(rows)
    failed = next((trial for trial in results.trials if trial.state == "failed"), None)
    if failed is not None:
        say(f"trial {failed.number:04d} failed: {failed.reason}")
    say(f"{', '.join(f'{n} {state}' for state, n in counts.items())}; all in {folder / 'trials.csv'}")
    if results.ended < total:
        left = total - results.ended
        say(f"{left} trial{'s are' if left > 1 else ' is'} left; the same command goes on")
        raise typer.Exit(1)
