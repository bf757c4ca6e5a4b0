"""The paper's tables as printed. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from softprune.budget.files import parse_json, require_format

FORMAT = "softprune-paper"
VERSION = 1


@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper, every cell as it is printed.

    Args:
        number: of the table in the paper.
        name: short, for file names.
        title: what it shows.
        columns: their names.
        rows: cells as text, since the printed digits say how exact a value is.
        network: of a table of layer-wise budgets, whose layers are ``softprune.budget.published``; else empty.
    """

    number: int
    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    network: str = ""

    def records(self) -> list[dict[str, str]]:
        """The rows by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def find(self, **cells: str) -> dict[str, str]:
        """The one row with these cells.

        Raises:
            KeyError: if none or several rows have them.
        """
        found = [r for r in self.records() if all(r[key] == value for key, value in cells.items())]
        if len(found) != 1:
            raise KeyError(f"{len(found)} rows of table {self.number} have {cells}; name cells that only one has")
        return found[0]


def published_table(number: int) -> PublishedTable:
    """Table ``number`` of the paper.

    Args:
        number: 1 to 12.

    Raises:
        ValueError: if there is no such table.

    Example:
        >>> published_table(1).find(method="STR", sparsity="90.23")["flops"]
        '343M'
    """
    tables = _tables()
    if number not in tables:
        raise ValueError(f"the paper has tables {min(tables)} to {max(tables)}, there is no table {number}")
    return tables[number]


@cache
def _tables() -> dict[int, PublishedTable]:
    file = resources.files("softprune.reporting.paper") / "data" / "tables.json"
    data = parse_json(file.read_text(encoding="utf-8"), file.name)
    require_format(data, FORMAT, version=VERSION, origin=file.name)
    return {
        int(number): PublishedTable(
            int(number),
            table["name"],
            table["title"],
            tuple(table["columns"]),
            tuple(tuple(row) for row in table["rows"]),
            table.get("network", ""),
        )
        for number, table in data["tables"].items()
    }
