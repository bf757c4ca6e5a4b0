"""Commands that train, and what belongs to it: configurations, recipes, evaluation, baking, sweeps."""

# ruff: noqa: FBT002 - typer makes options of them

from __future__ import annotations

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.padding import Padding

from softprune.budget.units import noun
from softprune.cli.terminal import Best, LiveView, Trust, console, left_words, percent, print_budget, say, table

if TYPE_CHECKING:
    from softprune.train.run import Outcome
    from softprune.train.sweep.folder import Results, TrialResult


config_app = typer.Typer(help="Configurations of a run: show, check, and the schema.", no_args_is_help=True)
Where = Annotated[str | None, typer.Argument(help="A YAML file, or a recipe: digits/str, recipe:digits-str.")]
Changes = Annotated[list[str] | None, typer.Argument(help="Changes such as optimizer.lr=0.1 or method.s_init=-100.")]
Run = Annotated[Path, typer.Argument(help="A run folder.")]
_WIDE = 120  # characters in which the five columns of methods can be read side by side


def demo(
    out: Annotated[Path | None, typer.Option(help="Run folder to write; a new one under runs/ by default.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and data order.")] = 0,
    bench: Annotated[
        bool, typer.Option(help="At the end, time its network, and ResNet50 dense against sparse, on this machine.")
    ] = True,
) -> None:
    """Train a small sparse CNN with STR on handwritten digits (about a minute, no download), time it, report on it."""
    folder = out or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    train("digits/str", [f"seed={seed}", "name=demo"], out=folder)
    if bench:
        from softprune.cli.deploy import show_speed

        show_speed(folder)
    if find_spec("jinja2") is None:
        say("a page about the run needs: pip install 'softprune[report]'")
        return
    from softprune.reporting.report import write_report

    (page,) = write_report([folder], folder / "report.html", against=["uniform"])
    say(f"open {page.resolve().as_uri()} to see what happened")


def train(
    config: Where = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; a new one under runs/ by default.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue this run folder from its last checkpoint.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan; needs no data and little memory.")
    ] = False,
    time_steps: Annotated[int | None, typer.Option("--time", help="Measure this many steps, estimate the run.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print notes and the result only.")] = False,
    trust: Trust = False,
) -> None:
    """Train a network from a configuration or a recipe, alone or under torchrun.

    softprune train digits/str

    softprune train my.yaml optimizer.lr=0.1 seed=1 --out runs/mine

    softprune train --resume runs/mine

    torchrun --nproc-per-node 4 -m softprune train resnet50/str-90.23 data.root=/data/imagenet
    """
    from softprune.train.config import RunConfig

    if resume is not None:
        if config is not None or changes or dry_run or time_steps:
            raise ValueError("--resume takes the run folder alone: the configuration is in it")
        from softprune.train.run import resume as go_on

        with LiveView(quiet=quiet) as view:
            _report(go_on(resume, observer=view, trust=trust))
        return
    if config is None:
        raise ValueError("name a YAML file or a recipe (softprune recipes lists them), or --resume a run folder")
    settings = RunConfig.load(config, changes or (), trust=trust)
    if dry_run:
        from softprune.train.dry_run import plan_text

        say(plan_text(settings))
        return
    if time_steps is not None:
        from softprune.train.dry_run import time_steps as measure

        say(measure(settings, time_steps))
        return
    from softprune.train.run import train as begin

    folder = out or Path("runs") / f"{settings.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    with LiveView(quiet=quiet) as view:
        _report(begin(settings, folder, observer=view))


def recipes() -> None:
    """List the recipes with what they should give and what they cost."""
    from softprune.train.config.run import recipes as listed

    rows = table("recipe", "accuracy", "sparsity", "cost", "what it is")
    for info in listed():
        shares = (percent(info.expected.get(key)) for key in ("accuracy", "sparsity"))
        rows.add_row(info.name, *shares, info.cost, info.summary)
    console.print(rows)


def evaluate(run: Run, best: Best = False, trust: Trust = False) -> None:
    """Evaluate a run's last checkpoint on its test data."""
    from softprune.train.load_run import evaluate_run

    score, budget = evaluate_run(run, best=best, trust=trust)
    say(f"accuracy {score.accuracy:.2%}, loss {score.loss:.4f} on {score.samples:,} samples")
    if budget is not None:
        say(f"sparsity {budget.overall:.2%}, {left_words(budget)}")


def bake(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, such as model.safetensors.")],
    best: Best = False,
    trust: Trust = False,
) -> None:
    """Write the plain sparse weights of a run, with the keys of the untouched network; learnt ranks are folded."""
    from softprune.train.load_run import bake_run

    budget = bake_run(run, out, best=best, trust=trust)
    zeros = f", {budget.overall:.2%} of the managed {noun(budget.units)} are zero" if budget is not None else ""
    say(f"wrote {out}{zeros}")


@config_app.command()
def show(config: Where, changes: Changes = None) -> None:
    """Print a configuration with every default written out."""
    from softprune.train.config import RunConfig

    # To look at a file is safe: code that it names is not imported.
    typer.echo(RunConfig.load(config or "", changes or (), trust=True).dump(), nl=False)


@config_app.command()
def validate(config: Where, changes: Changes = None) -> None:
    """Check a configuration; every problem is listed with its key and the nearest valid one."""
    from softprune.train.config import RunConfig

    say(f"{config} is valid: {RunConfig.load(config or '', changes or (), trust=True).name}")


@config_app.command()
def schema() -> None:
    """Print the JSON schema of a configuration, for editors."""
    from softprune.train.config import config_schema

    typer.echo(json.dumps(config_schema(), indent=2))


def _report(outcome: Outcome) -> None:
    from softprune.train.run_folder import RunFolder

    if not outcome.finished or not outcome.first:
        return
    if outcome.budget is not None:
        print_budget(outcome.budget, thresholds=RunFolder(outcome.folder).thresholds())
    last, best = outcome.result["last"], outcome.result["best"]
    say(f"test accuracy {last['accuracy']:.2%} (best {best['accuracy']:.2%} after epoch {best['epoch'] + 1})")
    say(f"run folder: {outcome.folder}")


def methods() -> None:
    """List the methods: what each does with a budget, what it takes, where it was published, and one line about it."""
    from softprune.methods.base import method_class, method_names

    rows = table("method", "role", "takes", "paper", "what it does")
    for name in method_names():
        cls = method_class(name)
        takes = ", ".join("nothing" if total == "none" else total for total in cls.accepts)
        says = escape((cls.__doc__ or "").partition("\n")[0].replace("``", ""))
        rows.add_row(name, cls.role, takes, cls.paper, says)
        if console.width < _WIDE:
            origin = f"; {cls.paper}" if cls.paper else ""
            console.print(f"[bold]{name}[/]  {cls.role}, takes {takes}{origin}", highlight=False)
            console.print(Padding(says, (0, 0, 0, 4)))
    if console.width >= _WIDE:
        console.print(rows)
    console.print(
        "role: keeps the budget it is given, moves it between tensors, or learns it. "
        "Use one as in: softprune train fashion-mnist/dense method=rigl goal.sparsity=0.9 goal.budget=erk",
        highlight=False,
    )


# Sweeps.


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
        _print_trials(results, folder)


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
    from softprune.train.sweep.run import run_workers

    command = [sys.executable, "-m", "softprune", "sweep", str(folder / SWEEP), "--out", str(folder)]
    command += ["--parent", str(os.getpid()), *(["--quiet"] if quiet else []), *(["--trust"] if trust else [])]
    # In the environment, where other users of the machine cannot read a password.
    environment = {**os.environ, **({} if storage is None else {"SOFTPRUNE_STORAGE": storage})}
    run_workers(command, count, environment=environment, on_note=say)


def _print_trials(results: Results, folder: Path) -> None:
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
