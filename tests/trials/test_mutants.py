"""Mutants of a package that is made up, and that the real sources can be mutated."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("children are forked, and their memory is limited, as Linux does it", allow_module_level=True)

import mutants

SOURCE = '''"""A module."""

LIMIT = 10


def clipped(x: int, low: int = 0) -> int:
    """Not below low, and not above LIMIT."""
    if x < low:
        return low
    return min(x, LIMIT)


def forgotten(x: int) -> bool:
    return x > 3


def forever(n: int) -> int:
    while n > 0:
        n -= 1
    return n
'''

TESTS = """
from made.room.module import clipped, forever


def test_the_middle_and_both_ends():
    assert [clipped(x) for x in (-3, 4, 12)] == [0, 4, 10]


def test_it_ends():
    assert forever(3) == 0
"""


@pytest.fixture
def project(tmp_path):
    """A package with one module, and tests that do not see everything."""
    room = tmp_path / "src" / "made" / "room"
    room.mkdir(parents=True)
    for folder in (room, room.parent):
        (folder / "__init__.py").write_text("")
    (room / "module.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_made_up.py").write_text(TESTS)
    return tmp_path


def tried(project, *options):
    """What the program says about the package, run as a user does."""
    command = [
        sys.executable, mutants.__file__, "--root", project, "--package", "made", "--room", "room=room/",
        "--tests", "tests", "--out", project / "out.json", "--map", project / "map.json", "--patience", "0.5",
        "--warm", *options,
    ]  # fmt: skip
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, cwd=project)
    assert ended.returncode == 0, ended.stderr
    return json.loads((project / "out.json").read_text())


def test_what_a_test_sees_is_killed_and_the_rest_survives_and_a_second_run_goes_on(project):
    found = tried(project)
    (entry,) = found["files"].values()
    told = {text.partition("  in  ")[0].partition(": ")[2]: text for text in entry["survivors"]}
    # One that is equivalent (low where x is low), and one that no test reaches.
    assert "x < low  ->  x <= low" in told
    assert "no test reaches it" in told["x > 3  ->  x >= 3"]
    changes = [
        str(m).partition(": ")[2] for m in mutants.Project(project, "made", {"": "room/"}, ()).sources[1].mutants
    ]
    outcome = dict(zip(changes, entry["outcomes"], strict=True))
    assert outcome["min(x, LIMIT)  ->  max(x, LIMIT)"] == "k", "a function"
    assert outcome["10  ->  11"] == "k", "what is made when the module is imported"
    assert outcome["0  ->  1"] == "k"
    assert outcome["n -= 1  ->  n += 1"] == "t"
    assert entry["mutants"] == entry["tried"] == len(changes) == entry["killed"] + entry["survived"]
    assert found["rooms"]["room"]["percent of all"] == round(100 * entry["killed"] / len(changes), 1)
    # A test more: of the same mutants only the survivors are tried again.
    tests = project / "tests" / "test_made_up.py"
    tests.write_text(TESTS + "\n\ndef test_three():\n    from made.room.module import forgotten\n"
                     "    assert not forgotten(3) and forgotten(4)\n")  # fmt: skip
    again = tried(project, "--survivors")["files"]["room/module.py"]
    assert again["killed"] > entry["killed"] and not any("x > 3" in text for text in again["survivors"])
    assert any("x < low" in text for text in again["survivors"])


def test_each_change_is_one_and_messages_and_types_are_left_alone():
    source = '''
from typing import Literal

Kind = Literal["a", "b"]

def f(x: int | float, n: int = 1) -> "int | None":
    """Not 1 + 1."""
    if not isinstance(x, int | float):
        raise ValueError(f"{n + 1}")
    call(x, key=n)
    return [-v for v in x if v > 0 and n]
'''
    changes = [(site.before, site.after) for site in mutants.sites(ast.parse(source))]
    assert changes == [
        ("1", "2"),
        ("not isinstance(x, int | float)", "isinstance(x, int | float)"),
        ("call(x, key=n)", "pass"),
        ("call(x, key=n)", "call(x)"),
        ("return [-v for v in x if v > 0 and n]", "return None"),
        ("v > 0 and n", "not (v > 0 and n)"),
        ("-v", "v"),
        ("v > 0 and n", "v > 0 or n"),
        ("v > 0", "v >= 0"),
        ("0", "1"),
    ]


@pytest.mark.parametrize("room", mutants.ROOMS)
def test_the_sources_of_every_room_can_be_mutated(room):
    root = Path(mutants.__file__).parents[2]
    project = mutants.Project(root, "softprune", {room: mutants.ROOMS[room]}, ())
    found = [mutant for source in project.sources for mutant in source.mutants]
    assert len(found) > 300 and len({(m.source.name, m.number) for m in found}) == len(found)
    for mutant in found[::100]:
        assert mutant.code() != mutant.source.code, mutant


def test_what_is_listed_as_equivalent_is_there():
    project = mutants.Project(Path(mutants.__file__).parents[2], "softprune", mutants.ROOMS, ())
    listed = {mutant.listed for source in project.sources for mutant in source.mutants} - {None}
    assert listed == set(mutants.EQUIVALENT)


def test_the_help_teaches(capsys):
    with pytest.raises(SystemExit):
        mutants.parsed(["--help"])
    assert "goes on where a stopped one was" in capsys.readouterr().out
