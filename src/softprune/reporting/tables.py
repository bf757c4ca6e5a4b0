"""A table as plain values and as HTML, and the tables of a report: layers, runs and measured times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import compress
from typing import Literal

from softprune.budget.budget import Budget
from softprune.budget.units import shared_noun
from softprune.reporting.charts import last_densities, named, tensor_costs
from softprune.reporting.reading import known
from softprune.reporting.run import Run

Kind = Literal["text", "number", "count", "percent"]
# Columns that are left out where no row has a value: multiply-adds, for one, are not known of filters and directions.
_OPTIONAL = ("run", "parameters stored", "microseconds", "MACs", "MACs left", "share of MACs left")


@dataclass(frozen=True)
class TableCell:
    """A value with a text of its own."""

    text: str
    more: str = ""  # words below it in small
    value: float | None = None  # what it is sorted by and saved as
    best: bool = False  # whether it stands out as the best of its column


Value = str | float | int | TableCell | None


@dataclass(frozen=True)
class Column:
    """One column, of text, of numbers with five digits, of whole counts, or of fractions written as percent."""

    name: str
    kind: Kind = "text"
    help: str = ""  # what it is, shown when the header is pointed at


@dataclass(frozen=True)
class Table:
    name: str  # its anchor, and the name of its CSV file; unique on a page
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]  # one value for each column; None and NaN are empty
    groups: tuple[str, ...] = ()  # what each row is filtered with on a page, such as a method; empty for none
    note: str = ""  # a sentence or two above it


def shown(value: Value, kind: Kind) -> str:
    """A value as text for readers.

    Example:
        >>> shown(0.98123, "percent"), shown(25502912, "count"), shown(0.0123456789, "number"), shown(None, "count")
        ('98.12 %', '25,502,912', '0.012346', '')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, TableCell):
        return value.text
    if kind == "text" or isinstance(value, str):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if kind == "percent":
        return f"{value * 100:.2f} %"
    return f"{value:,.0f}" if kind == "count" else f"{value:.5g}"


def table_html(table: Table) -> str:
    """The table as HTML that the page's script sorts, filters, pages and saves as CSV; names in it are escaped.

    A cell whose text is not its exact value carries that as ``data-v``, for sorting and for the CSV file.
    """
    name = escape(table.name)
    heads = rows = ""
    for column in table.columns:
        title = f' title="{escape(column.help)}"' if column.help else ""
        kind = "" if column.kind == "text" else ' class="n"'
        button = f'<button type="button"{title}>{escape(column.name)}</button>'
        heads += f'<th scope="col" aria-sort="none"{kind}>{button}</th>'
    for row, group in zip(table.rows, table.groups or ("",) * len(table.rows), strict=True):
        mark = f' data-group="{escape(group)}"' if group else ""
        cells = "".join(_cell(v, c, first=i == 0) for i, (v, c) in enumerate(zip(row, table.columns, strict=True)))
        rows += f"<tr{mark}>{cells}</tr>\n"
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'{note}<div class="table" id="{name}"><div class="tools"><label>Filter <input type="search" '
        f'placeholder="part of a name" aria-controls="{name}-t"></label>'
        f'<span class="count" role="status">{len(table.rows):,} rows</span>'
        f'<button type="button" class="quiet csv" data-name="{name}.csv">Download CSV</button></div>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.caption)}">'
        f'<table id="{name}-t"><caption>{escape(table.caption)}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        '<div class="pager" hidden><button type="button" class="quiet back">Previous</button>'
        '<span role="status"></span><button type="button" class="quiet next">Next</button></div></div>'
    )


def _cell(value: Value, column: Column, *, first: bool) -> str:
    text, more, exact, best = shown(value, column.kind), "", value, False
    if isinstance(value, TableCell):
        exact, best = value.value, value.best
        more = '<span class="visually-hidden"> best</span>' if best else ""
        more += f'<span class="beside">{escape(value.more)}</span>' if value.more else ""
    classes = " ".join([*(["n"] if column.kind != "text" else []), *(["best"] if best else [])])
    same = exact is None or isinstance(exact, str) or text in ("", str(exact))
    marks = (f' class="{classes}"' if classes else "") + ("" if same else f' data-v="{exact!r}"')
    tag, scope = ("th", ' scope="row"') if first else ("td", "")
    return f"<{tag}{scope}{marks}>{escape(text)}{more}</{tag}>"


def layer_table(runs: Sequence[Run], against: Sequence[Budget] = ()) -> Table:
    """Every layer after the last logged epoch; of several runs one after the other."""
    what, single = shared_noun(run.units for run in runs), not any(run.words.importances for run in runs)
    sized = what if single else f"importances of {what}"
    columns = (
        Column("run"),
        Column("layer", help="name of the weight tensor" if single else "name of the tensor"),
        Column("shape", help="" if single else f"of the importances, one for each of the {what}"),
        Column(what, "count", f"all {what} of the tensor"),
        Column(f"{what} left", "count", f"{what} that are not zero"),
        Column("sparsity", "percent", f"share of the {what} that are zero"),
        Column("threshold", "number", f"{sized} smaller than this are zero"),
        Column("s", "number", "the learnt parameter behind the threshold"),
        Column("MACs", "count", "multiply-adds of one forward pass, dense"),
        Column("MACs left", "count", "multiply-adds that are left"),
        Column("share of MACs left", "percent", "how much of what is left in all layers is in this one"),
        Column("L1 norm", "number", f"sum of the sizes of the {sized} that are left"),
        Column("microseconds", "number", "measured time of the layer, one sample"),
        *(Column(f"sparsity, {budget.source}", "percent") for budget in against),
    )
    rows = [(name, *row) for run, name in named(runs, "") for row in _rows(run, against)]
    caption = "Every layer after the last logged epoch, in the order of the network."
    return _filled("layer-table", caption, columns, rows)


def _filled(name: str, caption: str, columns: Sequence[Column], rows: Sequence[tuple[Value, ...]]) -> Table:
    """A table without the optional columns that are empty in every row; rows are grouped by their first value."""
    seen = [c.name not in _OPTIONAL or any(shown(row[i], c.kind) for row in rows) for i, c in enumerate(columns)]
    kept = tuple(tuple(compress(row, seen)) for row in rows)
    return Table(name, caption, tuple(compress(columns, seen)), kept, groups=tuple(str(row[0]) for row in rows))


def _rows(run: Run, against: Sequence[Budget]) -> Iterator[tuple[Value, ...]]:
    costs = tensor_costs([run])
    densities = last_densities(run)
    last = {name: rows[-1] for name, rows in run.layers.items()}
    counted = run.words.costed
    macs = {n: last[n].macs if n in last else d * costs[n].macs if n in costs else None for n, d in densities.items()}
    total = sum(value for value in map(known, macs.values()) if value is not None)
    for name, density in densities.items():
        cost, row, left = costs.get(name), last.get(name), macs[name] if counted else None
        yield (
            name,
            " x ".join(map(str, cost.shape)) if cost else None,
            cost.params if cost else None,
            _whole(density * cost.params) if cost else None,
            1 - density,
            row.alpha if row else None,
            row.s if row else None,
            cost.macs if cost and counted else None,
            _whole(left),
            left / total if left is not None and total else None,
            row.l1_active if row else None,
            run.latency.layer(name) if run.latency else None,
            *(1 - budget[name] if name in budget else None for budget in against),
        )


def _whole(value: float | None) -> int | None:
    found = known(value)
    return None if found is None else round(found)


def run_table(runs: Sequence[Run]) -> Table:
    what = shared_noun(run.units for run in runs)
    columns = (
        Column("run", help="name of the folder"),
        Column("method"),
        Column("goal"),
        Column("seed", "count"),
        Column("accuracy", "percent", "on the test samples, after the last evaluated epoch"),
        Column("sparsity", "percent", f"share of all managed {what} that are zero"),
        Column(f"{what} left", "count"),
        Column("parameters stored", "count", "of the whole network, without what is zero"),
        Column("MACs left", "count", "multiply-adds of one forward pass"),
        Column("state"),
    )
    rows: list[tuple[Value, ...]] = []
    for run, name in named(runs, "this run"):
        reached = (run.accuracy, run.sparsity, run.params, run.stored, run.macs)
        rows.append((name, run.label, run.goal, run.seed, *reached, "finished" if run.finished else "not finished"))
    return _filled("runs", "The runs of this report.", columns, rows)


def times_table(runs: Sequence[Run]) -> Table | None:
    """The engines of all runs that were measured; None if none was."""
    columns = (
        Column("run"),
        Column("engine"),
        Column("best ms", "number", "the fastest call"),
        Column("median ms", "number"),
        Column("ratio", "number", "best time of this engine over that of softprune"),
        Column("low", "number", "lower quartile of the ratio of bursts side by side"),
        Column("high", "number", "upper quartile"),
        Column("bursts", "count", "bursts that count"),
        Column("dropped", "count", "bursts in which the process did not get its processor"),
        Column("where"),
    )
    rows = [
        (name, s.engine, s.best, s.median, s.ratio, s.low, s.high, s.bursts, s.dropped, run.latency.conditions)
        for run, name in named(runs, runs[0].name)
        if run.latency is not None
        for s in run.latency.engines
    ]
    caption = "Measured times of one call; the other engines compute the zeros too."
    return _filled("latency", caption, columns, rows) if rows else None
