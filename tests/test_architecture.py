"""What CONTRIBUTING and docs/architecture.md say about the rooms is what the source has."""

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Folders of a few lines that serve others: the kernels' compilation, and what the package itself is.
UNNAMED = {"_native", "__init__.py", "__main__.py"}


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return import_module("pictures")


def rows():
    """The rooms of the table, with what each may import."""
    found = {}
    for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            found |= dict.fromkeys(re.findall(r"`([^`]+)`", cells[0]), cells[2])
    return found


def test_the_table_of_rooms_names_the_folders_that_there_are():
    source = ROOT / "src" / "softprune"
    there = {path.name for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    parts = {path.name for path in (source / "deploy").iterdir() if path.suffix == ".py" or path.is_dir()}
    there |= {f"deploy/{name}" for name in parts - {"__init__.py", "__pycache__"}}
    assert set(rows()) == there - UNNAMED - {"deploy"}


def test_the_picture_of_the_rooms_is_that_of_the_source(pictures):
    text = pictures.PAGE.read_text()
    assert pictures.page(text, {}) == text, "run python tools/pictures.py --write"


def test_the_pictures_show_files_that_there_are(pictures):
    text = pictures.PAGE.read_text()
    files = set(re.findall(r'\["([\w/]+)<br>', text))
    assert len(files) > 40
    assert [name for name in sorted(files) if not (ROOT / "src" / "softprune" / f"{name}.py").is_file()] == []
    for name in pictures.WALKS:
        assert re.search(rf"<!-- {name} -->\n```mermaid\nflowchart LR\n", text), name


def test_a_picture_without_its_place_is_an_error(pictures):
    with pytest.raises(SystemExit, match="has no place for 'rooms'"):
        pictures.placed("nothing", "rooms", "picture")


def test_what_follows_from_other_arrows_is_not_drawn(pictures):
    graph = {"a": {"b", "c"}, "b": {"c", "a"}, "c": set(), "d": {"a", "c"}}
    drawn = pictures.drawn_rooms(graph).splitlines()
    assert [line.strip() for line in drawn if "-->" in line] == ["together0 --> c", "d --> together0"]
    assert doctest.testmod(pictures).failed == 0
