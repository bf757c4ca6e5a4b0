"""The tool that counts the figures of the source, on a package made up for it."""

import ast
import doctest
import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

FILES = {
    "__init__.py": "",
    "one.py": "from made.two import Two\n\n\nclass One(Two):\n    pass\n",
    # A cycle that only a function closes.
    "two.py": "from made.deep.base import Base\n\n\nclass Two(Base):\n"
    "    def late(self):\n        from made import one\n",
    # What a type checker alone reads closes none.
    "deep/__init__.py": "from .base import Base\n",
    "deep/base.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made.one import One\n"
    "class Base(dict):\n    pass\n",
    "deep/two.py": "from ..goals.goal import Rank\n\n\nclass Two:\n    pass\n\n\ndef f(g, units):\n"
    "    return isinstance(g, (Rank, int)) or units.kind in ('filter', 'rank') or f.kind == 'step'\n",
    "goals/__init__.py": "",
    "goals/goal.py": "class Rank:\n    pass\n\n\ndef f(g):\n    return isinstance(g, Rank)\n",
    "method.py": "class Method:\n    role: str\n    _hidden = 1\n    best = 2\n\n    def check(self):\n        pass\n\n"
    "    def _inside(self):\n        pass\n" + "\n" * 400,
}  # fmt: skip


@pytest.fixture(scope="module")
def house():
    spec = spec_from_file_location("house", Path(__file__).resolve().parents[1] / "tools" / "house.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made(tmp_path):
    for place, text in FILES.items():
        path = tmp_path / "made" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "made"


def test_names_of_parallel_places_are_not_repeated(house, made, monkeypatch):
    places = ("two", "deep.two", "two.Two", "deep.two.Two")
    monkeypatch.setitem(house.PARALLEL, "a reason", places)
    _, details = house.figures(made)
    assert details["module names used twice or more"] == details["class names used twice or more"] == []
    # A third one of the name is.
    (made / "goals" / "two.py").write_text("class Two:\n    pass\n")
    numbers, details = house.figures(made)
    assert details["module names used twice or more"] == ["two x3"]
    assert numbers["class names used twice or more"] == 1


def test_the_figures_of_a_package_are_those_counted_by_hand(house, made):
    numbers, details = house.figures(made)
    assert numbers["files"] == len(FILES)
    assert numbers["lines"] == sum(len(text.splitlines()) for text in FILES.values())
    assert (numbers["files of 50 lines or fewer"], numbers["files over 400 lines"]) == (len(FILES) - 1, 1)
    # base is imported by two and by its package, goal by deep.two, one and two by each other.
    assert numbers["imported by exactly one module"] == 3
    assert details["import cycles"] == ["made.one, made.two"]
    assert (numbers["import cycles"], numbers["modules in import cycles"]) == (1, 2)
    assert numbers["imports of ours inside functions"] == 1
    assert details["module names used twice or more"] == ["two x2"]
    assert details["class names used twice or more"] == ["Two x2"]
    # Not the one in the room of goals, and not the kind of something that is no unit.
    assert details["tests of the class of a goal"] == ["deep/two.py:9"]
    assert numbers["tests of the class of a goal, everywhere"] == 2
    assert details["tests of the kind of unit"] == ["deep/two.py:9"]
    assert details["deepest inheritance"] == ["Base > Two > One"]
    assert numbers["public members of Method"] == 3


def test_cycles_are_groups_in_which_each_leads_to_each(house):
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"f", "a"}, "g": set()}
    assert house.cycles(graph) == [["a", "b", "c"], ["d", "e"]]


@pytest.mark.parametrize(
    ("text", "tells"),
    [
        ("units.kind == 'weight'", True),
        ("'rank' != self.units.kind", True),
        ("kind in ('weight', 'filter')", True),
        ("given.units == WEIGHT", True),
        ("units is Units.filter", True),
        ("units.text == Units.filter.text", True),
        ("units.kind == other", True),
        ("op.kind == 'conv2d'", False),
        ("name == 'weight'", False),
        ("units > 3", False),
    ],
)
def test_comparisons_that_tell_kinds_of_units_apart_are_known_from_others(house, text, tells):
    assert house.asks_for_a_unit(ast.parse(text, mode="eval").body) == tells


def test_a_walk_counts_own_functions_and_changes_of_file(house, tmp_path):
    (tmp_path / "first.py").write_text("def go(step):\n    for _ in range(3):\n        step([1])\n    (lambda: 0)()\n")
    (tmp_path / "second.py").write_text("def step(x):\n    inner()\n    sorted(x)\n\n\ndef inner():\n    pass\n")
    spaces = {}
    for name in ("first", "second"):
        path = tmp_path / f"{name}.py"
        spaces[name] = {}
        exec(compile(path.read_text(), str(path), "exec"), spaces[name])
    walk = house.Walk(tmp_path)
    with walk.taken():
        spaces["first"]["go"](spaces["second"]["step"])
    # go, then three times step and inner; nothing leads back into the first file.
    assert walk.counted() == {"files": 2, "functions": 3, "calls": 7, "changes of file": 1}


def test_a_figure_above_its_limit_is_named_and_ends_in_failure(house, made, tmp_path, capsys):
    limits = tmp_path / "limits.json"
    arguments = ["--source", str(made), "--no-walks", "--json", str(tmp_path / "out.json"), "--check", str(limits)]
    limits.write_text(json.dumps({"files": len(FILES), "import cycles": 1, "bake: calls": 5}))
    assert house.main(arguments) == 0
    assert json.loads((tmp_path / "out.json").read_text())["figures"]["files"] == len(FILES)
    limits.write_text(json.dumps({"files": len(FILES), "import cycles": 0, "unheard of": 1}))
    assert house.main(arguments) == 1
    shown = capsys.readouterr().out
    assert "import cycles: 1, at most 0" in shown and "unheard of: not counted, at most 1" in shown
    assert "above its limit: files" not in shown


def test_the_limits_are_of_figures_that_are_counted_and_the_examples_hold(house, made):
    numbers, _ = house.figures(made)
    assert {name for name in house.LIMITS if ": " not in name} <= set(numbers)
    assert doctest.testmod(house).failed == 0
