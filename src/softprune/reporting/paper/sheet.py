"""A table of text, and its form as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from softprune.budget.files import write_text


@dataclass(frozen=True)
class Sheet:
    """A table ready to be shown.

    Args:
        name: its file name and anchor, such as "table_01_resnet50_results".
        title: one line that names the table of the paper.
        how: where the numbers come from, in a sentence or two.
        columns: their headings.
        rows: cells as text, as many as columns.
        marked: numbers of the rows in which something differs.
    """

    name: str
    title: str
    how: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()


def to_csv(sheet: Sheet) -> str:
    """The rows under their headings.

    Example:
        >>> to_csv(Sheet("a", "A", "", ("x", "y"), (("1", "2"),)))
        'x,y\\n1,2\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(sheet.columns)
    writer.writerows(sheet.rows)
    return text.getvalue()


def to_markdown(sheet: Sheet) -> str:
    """Title, table and explanation; signs that Markdown would read are escaped.

    Example:
        >>> print(to_markdown(Sheet("a", "A", "By hand.", ("x|y",), (("1",),))), end="")
        # A
        <BLANKLINE>
        By hand.
        <BLANKLINE>
        | x\\|y |
        | --- |
        | 1 |
    """
    lines = [_line(sheet.columns), _line(["---"] * len(sheet.columns)), *map(_line, sheet.rows)]
    return f"# {sheet.title}\n\n{sheet.how}\n\n" + "\n".join(lines) + "\n"


def save_sheets(sheets: Sequence[Sheet], folder: Path) -> list[Path]:
    """Write NAME.csv and NAME.md for every sheet; the folder is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for sheet in sheets:
        written.append(write_text(folder / f"{sheet.name}.csv", to_csv(sheet)))
        written.append(write_text(folder / f"{sheet.name}.md", to_markdown(sheet)))
    return written


def _line(cells: Sequence[str]) -> str:
    safe = (cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*") for cell in cells)
    return "| " + " | ".join(" ".join(cell.split()) for cell in safe) + " |"
