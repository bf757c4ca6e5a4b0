"""Reading files that may be cut off, damaged or of another release: what can be read, and a sentence for the rest."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from softprune.records import read_bytes

MOST_BYTES = 512 << 20


def read_lines(path: Path, problems: list[str]) -> list[str]:
    """The lines of a text file with their line ends, which a last line that was cut off lacks; none without a file."""
    try:
        content = read_bytes(path, most=MOST_BYTES)
    except FileNotFoundError:
        problems.append(f"{path.name} is missing.")
        return []
    except (OSError, ValueError) as error:  # a ValueError for a device, a pipe, or a file far too large
        problems.append(f"{path.name} cannot be read: {error.strerror if isinstance(error, OSError) else error}.")
        return []
    text = content.decode("utf-8", errors="replace")
    if "\ufffd" in text:
        problems.append(f"{path.name} holds bytes that are no UTF-8 text; they are shown as \ufffd.")
    # Not splitlines: it also splits at characters that a layer's name may have.
    return [line + "\n" for line in text.split("\n")[:-1]] + [line for line in text.split("\n")[-1:] if line]


def read_object(path: Path, problems: list[str], *, optional: bool = False) -> Mapping[str, Any]:
    """The mapping in a .json or .yaml file; empty if there is none."""
    if optional and not path.exists():
        return {}
    before = len(problems)
    text = "".join(read_lines(path, problems))
    if not text and len(problems) > before:
        return {}
    try:
        data = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (ValueError, yaml.YAMLError, RecursionError, AttributeError):  # the last is PyYAML's, for "!!timestamp x"
        problems.append(f"{path.name} cannot be understood; perhaps it was cut off.")
        return {}
    if not isinstance(data, Mapping):
        problems.append(f"{path.name} holds a {type(data).__name__} where a mapping is needed.")
        return {}
    return {str(key): value for key, value in data.items()}


def read_rows(path: Path, problems: list[str]) -> list[Mapping[str, Any]]:
    """The objects of a .jsonl file, one per line; other lines are left out."""
    rows: list[Mapping[str, Any]] = []
    bad: list[int] = []
    lines = read_lines(path, problems)
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif number == len(lines) and not line.endswith("\n"):
            problems.append(f"{path.name} ends in the middle of a line, which is left out.")
        elif line.strip():
            bad.append(number)
    if bad:
        problems.append(f"{path.name}: {_lines(bad)} no JSON object and left out.")
    return rows


def read_table(path: Path, problems: list[str], *, needed: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of a .csv file by column; rows of another length are left out, and so is one that is cut off."""
    lines = read_lines(path, problems)
    if lines and not lines[-1].endswith("\n"):
        problems.append(f"{path.name} ends in the middle of a line, which is left out.")
        lines.pop()
    if not lines:
        return
    # A NUL is refused by the csv module of older Pythons, and in no name.
    rows = csv.reader(line.replace("\0", "\ufffd") for line in lines)
    bad: list[int] = []
    header: list[str] = []
    try:
        header = next(rows)
        if missing := [name for name in needed if name not in header]:
            problems.append(f"{path.name} has no column {', '.join(missing)}.")
            return
        for row in rows:
            if len(row) == len(header):
                yield dict(zip(header, row, strict=True))
            elif row:
                bad.append(rows.line_num)
    except csv.Error as error:
        problems.append(f"{path.name} cannot be read beyond line {rows.line_num}: {error}.")
    if bad:
        problems.append(f"{path.name}: {_lines(bad)} not of {len(header)} cells and left out.")


def number(value: object) -> float:
    """The value as a float; NaN for anything that is not a number.

    Example:
        >>> number("0.5"), number(True), number(None)
        (0.5, nan, nan)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def known(value: object) -> float | None:
    """The value as a finite float; None for anything else.

    Example:
        >>> known(3), known("nan")
        (3.0, None)
    """
    found = number(value)
    return found if math.isfinite(found) else None


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _lines(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]} is"
    shown = ", ".join(map(str, numbers[:5]))
    return f"lines {shown}{' and others' if len(numbers) > 5 else ''} ({len(numbers)}) are"
