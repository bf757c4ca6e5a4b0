"""The paper's tables and numbers as printed, and what a printed value is checked against."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from softprune.records import parse_json, require_format

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
_NUMBER = re.compile(r"~?(-?\d+)(?:\.(\d+))?([KMG]?)")
FORMAT = "softprune-paper"
VERSION = 1


@dataclass(frozen=True)
class Printed:
    """A printed number such as "4.47M", "~600M" or "95.03".

    Args:
        text: as printed.

    Example:
        >>> Printed("4.47M").fits(4.4712e6), Printed("4.47M").like(4.7759e6)
        (True, '4.776M')
    """

    text: str

    @property
    def value(self) -> float:
        """The number; NaN for a dash."""
        if self.text in ("", "-"):
            return math.nan
        whole, decimals, unit = self._parts()
        return float(f"{whole}.{decimals or 0}") * _UNITS[unit]

    @property
    def step(self) -> float:
        """What one unit of the last printed digit is worth."""
        _, decimals, unit = self._parts()
        return _UNITS[unit] / 10 ** len(decimals)

    def fits(self, value: float, *, slack: float = 0.0) -> bool:
        """Whether ``value``, known to within ``slack``, rounds to what is printed."""
        # A value on the edge, such as 0.535 printed as 0.54, may lie below it in binary by one bit.
        edge = 1e-9 * self.step
        return abs(value - self.value) <= self.step / 2 + slack + edge

    def cut(self, value: float) -> bool:
        """Whether ``value`` with its further digits cut off is what is printed."""
        return 0 <= value - self.value < self.step

    def like(self, value: float) -> str:
        """``value`` in the printed unit, with one digit more."""
        _, decimals, unit = self._parts()
        return f"{value / _UNITS[unit]:.{len(decimals) + 1}f}{unit}"

    def _parts(self) -> tuple[str, str, str]:
        found = _NUMBER.fullmatch(self.text)
        if found is None:
            raise ValueError(f"{self.text!r} is no printed number; one looks like 4.47M, ~600M or 95.03")
        return found[1], found[2] or "", found[3]


@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper, every cell as it is printed.

    Args:
        number: of the table in the paper.
        name: short, for file names.
        title: what it shows.
        columns: their names.
        rows: cells as text, since the printed digits say how exact a value is.
        network: of a table of layer-wise budgets, whose layers are ``softprune.budget.budget``; else empty.
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
    file = Path(__file__).with_name("tables.json")
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


Verdict = Literal["agrees", "other count", "differs", "not computable"]


@dataclass(frozen=True)
class Check:
    """A printed value and the recomputed one.

    Args:
        place: the table or the section of the paper.
        row: which row of it.
        quantity: what is printed there.
        printed: the value as printed.
        ours: the recomputed value with one digit more; empty if it cannot be computed.
        verdict: "agrees" within the printed digits; "other count" if it agrees when counted in another way, which
            the reason names; "differs"; or "not computable" from what is published.
        reason: how ours was made, and why it differs where we know.
    """

    place: str
    row: str
    quantity: str
    printed: str
    ours: str
    verdict: Verdict
    reason: str


def disagreements(checks: Iterable[Check]) -> list[Check]:
    """Those that differ, in the same order."""
    return [check for check in checks if check.verdict == "differs"]
