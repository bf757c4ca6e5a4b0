"""Texts that must stay as they are: each is a file in `data`, and a test compares it with what the code gives today.

A change that is wanted is written down with `SOFTPRUNE_GOLDEN=write pytest tests/golden`, and read as a diff before it
is committed.
"""

import difflib
import os
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
WRITE = os.environ.get("SOFTPRUNE_GOLDEN") == "write"


def assert_frozen(name: str, text: str) -> None:
    """The text is that of the file of this name, or else the difference is shown."""
    path = DATA / name
    text = text.rstrip("\n") + "\n"
    if WRITE:
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8") if path.is_file() else ""
    lines = difflib.unified_diff(
        expected.splitlines(), text.splitlines(), f"frozen in {name}", "as it is now", lineterm="", n=1
    )
    difference = "\n".join(lines)
    assert not difference, (
        f"the outside has changed:\n{difference}\n"
        "where this is wanted: SOFTPRUNE_GOLDEN=write pytest tests/golden, then read the diff"
    )


def structure(value: Any, path: str = "") -> list[str]:
    """Nested data as one line for every leaf: its place, and its type, since values may depend on the machine."""
    if isinstance(value, dict) and value:
        return [line for key in sorted(value) for line in structure(value[key], f"{path}.{key}".lstrip("."))]
    if isinstance(value, list | tuple) and value:
        kinds = {line for one in value for line in structure(one, f"{path}[]")}
        return sorted(kinds)
    return [f"{path}: {type(value).__name__}"]


def sections(parts: dict[str, list[str]]) -> str:
    """Lines under headings."""
    return "\n\n".join("\n".join([f"== {name}", *lines]) for name, lines in parts.items())
