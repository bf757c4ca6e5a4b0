"""A table as plain values, and as HTML that the page's script sorts, filters, pages and saves as CSV."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Literal

Value = str | float | int | None
Kind = Literal["text", "number", "count", "percent"]


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        name: its header.
        kind: "text"; "number", written with five digits; "count", whole with separators; "percent" of a fraction.
        help: what it is, shown when the header is pointed at.
    """

    name: str
    kind: Kind = "text"
    help: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of values under columns.

    Args:
        name: its anchor, and the name of its CSV file; unique on a page.
        caption: what it lists, in a sentence.
        columns: from left to right.
        rows: one value for each column; None and NaN are empty.
        groups: what each row is filtered with on a page, such as a method; empty for none.
        total: a row that stays below the others; empty for none.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    groups: tuple[str, ...] = ()
    total: tuple[Value, ...] = ()


def shown(value: Value, kind: Kind) -> str:
    """A value as people read it.

    Example:
        >>> shown(0.98123, "percent"), shown(25502912, "count"), shown(0.0123456789, "number"), shown(None, "count")
        ('98.12 %', '25,502,912', '0.012346', '')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if kind == "text" or isinstance(value, str):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if kind == "percent":
        return f"{value * 100:.2f} %"
    return f"{value:,.0f}" if kind == "count" else f"{value:.5g}"


def table_html(table: Table) -> str:
    """The table as HTML; names in it are escaped.

    A cell whose text is not its exact value carries that as ``data-v``, for sorting and for the CSV file.
    """
    name = escape(table.name)
    heads = "".join(_head(column) for column in table.columns)
    groups = table.groups or ("",) * len(table.rows)
    rows = "\n".join(_row(table, row, group) for row, group in zip(table.rows, groups, strict=True))
    foot = f"<tfoot>{_row(table, table.total, '')}</tfoot>" if table.total else ""
    return (
        f'<div class="table" id="{name}"><div class="tools"><label>Filter <input type="search" '
        f'placeholder="part of a name" aria-controls="{name}-t"></label>'
        f'<span class="count" role="status">{len(table.rows):,} rows</span>'
        f'<button type="button" class="quiet csv" data-name="{name}.csv">Download CSV</button></div>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.caption)}">'
        f'<table id="{name}-t"><caption>{escape(table.caption)}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody>{foot}</table></div>"
        '<div class="pager" hidden><button type="button" class="quiet back">Previous</button>'
        '<span role="status"></span><button type="button" class="quiet next">Next</button></div></div>'
    )


def _head(column: Column) -> str:
    title = f' title="{escape(column.help)}"' if column.help else ""
    kind = "" if column.kind == "text" else ' class="n"'
    return f'<th scope="col" aria-sort="none"{kind}><button type="button"{title}>{escape(column.name)}</button></th>'


def _row(table: Table, row: tuple[Value, ...], group: str) -> str:
    mark = f' data-group="{escape(group)}"' if group else ""
    cells = "".join(_cell(v, c, first=i == 0) for i, (v, c) in enumerate(zip(row, table.columns, strict=True)))
    return f"<tr{mark}>{cells}</tr>"


def _cell(value: Value, column: Column, *, first: bool) -> str:
    text = shown(value, column.kind)
    exact = "" if value is None or isinstance(value, str) or text in ("", str(value)) else f' data-v="{value!r}"'
    kind = "" if column.kind == "text" else ' class="n"'
    tag, scope = ("th", ' scope="row"') if first else ("td", "")
    return f"<{tag}{scope}{kind}{exact}>{escape(text)}</{tag}>"
