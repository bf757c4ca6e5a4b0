"""The command line: parse, call one function, print. No logic, and nothing heavy is imported until a command runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from softprune.cli import budget, deploy, report, training
from softprune.cli.terminal import console, errors

app = typer.Typer(
    help="Learn sparse networks with trainable thresholds, compare and reuse the budgets they find, and run them fast.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(budget.app, name="budget")
app.add_typer(training.config_app, name="config")
for command in (
    training.demo,
    training.train,
    training.sweep,
    report.watch,
    report.report,
    report.compare,
    training.recipes,
    training.evaluate,
    training.bake,
    deploy.export,
    deploy.bench,
    training.methods,
    budget.profile,
):
    app.command()(command)
app.command("import-str")(budget.import_str)


@app.callback(invoke_without_command=True)
def _root(*, version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        from softprune import __version__

        console.print(__version__, highlight=False)
        raise typer.Exit


def main() -> None:
    """Run the command line, alone or as one of the processes that torchrun started."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        _run()
        return
    from softprune.train.assembly import run_and_leave

    run_and_leave(_run)


def _run() -> None:
    """Input that cannot work ends in one clear sentence, not in a traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError, FloatingPointError) as error:
        errors.print(f"[bold red]error:[/] {str(error).replace('[', chr(92) + '[')}", highlight=False, soft_wrap=True)
        sys.exit(1)
