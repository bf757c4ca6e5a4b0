"""The help of every command stays as it is, word for word, at a fixed width and without colours.

The frame around it is drawn by typer and rich, whose versions `constraints.txt` pins.
"""

import pytest
import typer.main
from frozen_text import assert_frozen, sections
from typer.testing import CliRunner

from softprune.cli import app

PLAIN = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb", "FORCE_COLOR": None}


def commands(command, path=()):
    """The words that lead to every command, from the outermost on."""
    yield path
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from commands(below, (*path, name))


@pytest.fixture
def wide(monkeypatch):
    # Read once, when typer is imported.
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", None)


def help_of(path):
    done = CliRunner().invoke(app, [*path, "--help"], env=PLAIN, prog_name="softprune")
    assert done.exit_code == 0, done.output
    return [line.rstrip() for line in done.output.strip("\n").splitlines()]


def test_the_help_of_every_command_is_the_frozen_one(wide):
    paths = list(commands(typer.main.get_command(app)))
    assert len(paths) > 15
    assert_frozen("command_line.txt", sections({" ".join(["softprune", *p]): help_of(p) for p in paths}))
