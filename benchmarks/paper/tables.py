"""The paper's tables with ours beside the printed values."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.paper.printed import Check, Printed, disagreements, published_table
from benchmarks.paper.recount import (
    BUDGETS,
    RESULTS,
    check_results,
    layer_names,
    matrix_params,
    network_profile,
    size_reduction,
)

from softprune.budget.budget import Budget, published
from softprune.records import write_text
from softprune.reporting.tables import Column, Table

# Columns of words; all others hold numbers and stand to the right.
_WORDS = {"", "method", "verdict", "note", "reason", "where", "which", "what", "layer", "data", "recipe", "run"}
_WORDS |= {"network", "goal", "state", "made how", "shows", "result"}
COLUMNS = ("method", "top-1 %", "parameters", "ours", "sparsity %", "ours ", "FLOPs", "ours  ", "verdict", "note")
_HOW = (
    "Printed values, and ours beside them: added up from the layer-wise budget of the row, which is printed in "
    "tables 6 to 8 or follows from the rule that the method names. FLOPs are multiply-adds on one image of 224 x 224, "
    "average pool included. Accuracies are the paper's; they cannot be recomputed."
)
_RESNET50 = (
    " Ours has 25.503M weights; the baselines' parameters are shares of 25.6M, which counts batch normalisation and a "
    "bias."
)
_MARKS = " * the first layer is dense, # the last layer is dense."
_HOW_BUDGETS = (
    "Sparsity of every layer in percent, as printed. Below: overall and backbone (without the classifier) as printed "
    "and as the layers add up, and the weights and multiply-adds that are left, which are ours."
)
_DATA = {"google12": "Google-12", "har2": "HAR-2"}
_DECAYS = (
    "As printed. softprune's recipes of the same names have these values. All decays but two are 2^-15 plus a whole "
    "number of millionths; those of 79.55 % and 97.78 % are not. 0.00005251757813 would be one, so that a digit may be "
    "missing in the latter: a guess."
)


def text_table(name: str, title: str, how: str, columns: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Table:
    """A table whose cells are text, since printed digits say how exact a value is.

    Args:
        name: its file name and anchor, such as "table_01_resnet50_results".
        title: one line that names the table of the paper.
        how: where the numbers come from, in a sentence or two.
        columns: their headings; rows are filtered by a column "verdict" if there is one.
        rows: as many cells as columns.
    """
    cells, place = tuple(rows), columns.index("verdict") if "verdict" in columns else None
    headings = tuple(Column(column, "text" if column in _WORDS else "number") for column in columns)
    groups = () if place is None else tuple(row[place] for row in cells)
    return Table(name, title, headings, cells, groups, note=how)


def to_csv(table: Table) -> str:
    """The rows under their headings.

    Example:
        >>> to_csv(text_table("a", "A", "", ("x", "y"), [("1", "2")]))
        'x,y\\n1,2\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows(table.rows)
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """Title, table and explanation; signs that Markdown would read are escaped.

    Example:
        >>> print(to_markdown(text_table("a", "A", "By hand.", ("x|y",), [("1",)])), end="")
        # A
        <BLANKLINE>
        By hand.
        <BLANKLINE>
        | x\\|y |
        | --- |
        | 1 |
    """
    heads = [column.name for column in table.columns]
    lines = [_line(heads), _line(["---"] * len(heads)), *map(_line, table.rows)]
    return f"# {table.caption}\n\n{table.note}\n\n" + "\n".join(lines) + "\n"


def save_tables(tables: Iterable[Table], folder: Path) -> list[Path]:
    """Write NAME.csv and NAME.md for every table; the folder is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        written.append(write_text(folder / f"{table.name}.csv", to_csv(table)))
        written.append(write_text(folder / f"{table.name}.md", to_markdown(table)))
    return written


def _line(cells: Iterable[object]) -> str:
    safe = (
        str(cell).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*") for cell in cells
    )
    return "| " + " | ".join(" ".join(cell.split()) for cell in safe) + " |"


# Tables 1, 2, 4, 5 and 9: printed values with ours beside them.


def result_table(number: int) -> Table:
    """One results table.

    Args:
        number: 1, 2, 4, 5 or 9.

    Example:
        >>> result_table(5).rows[1][:4]
        ('Budget from STR', '74.13', '2.49M', '2.492M')
    """
    table = published_table(number)
    checks: dict[str, list[Check]] = {}
    for check in check_results(number):
        checks.setdefault(check.row, []).append(check)
    rows = [_row(record, checks[f"{record['method']} {record['sparsity']} %"]) for record in table.records()]
    return text_table(
        name=f"table_{number:02}_{table.name}",
        title=f"Table {number}. {table.title}",
        how=_HOW + (_RESNET50 if RESULTS[number] == "resnet50" else "") + (_MARKS if number == 1 else ""),
        columns=COLUMNS,
        rows=rows,
    )


def result_tables() -> list[Table]:
    """All results tables."""
    return [result_table(number) for number in RESULTS]


def _row(record: dict[str, str], checks: list[Check]) -> tuple[str, ...]:
    ours = {check.quantity: check.ours for check in checks}
    verdicts = {check.verdict for check in checks}
    verdict = next((v for v in ("differs", "other count", "not computable") if v in verdicts), "agrees")
    notes = [f"{c.quantity}: {c.reason}" for c in checks if c.verdict != "agrees"]
    return (
        record["method"],
        record["top1"],
        record["params"],
        ours["parameters"],
        record["sparsity"],
        ours.get("sparsity", ""),
        record["flops"],
        ours.get("FLOPs", ""),
        verdict,
        "; ".join(notes),
    )


# Tables 6, 7 and 8: layer-wise budgets, with totals added up again.


def budget_table(number: int) -> Table:
    """One table of layer-wise budgets.

    Args:
        number: 6, 7 or 8.

    Example:
        >>> budget_table(8).rows[0]
        ('1', '864', '10838016', '69.10', '0.00')
    """
    table = published_table(number)
    profile = network_profile(table.network)
    budgets = [published(f"{table.network}/{column}") for column in table.columns[3:]]
    rows = [
        (name, str(t.params), str(t.macs), *(f"{100 * b.sparsity(t.name):.2f}" for b in budgets))
        for name, t in zip(layer_names(profile), profile, strict=True)
    ]
    rows += _totals(number, budgets)
    return text_table(
        name=f"table_{number:02}_{table.name}",
        title=f"Table {number}. {table.title}",
        how=_HOW_BUDGETS + (" dw: depthwise." if number == 8 else ""),
        columns=("layer", "weights", "FLOPs", *table.columns[3:]),
        rows=rows,
    )


def budget_tables() -> list[Table]:
    """All tables of layer-wise budgets."""
    return [budget_table(number) for number in BUDGETS]


def _totals(number: int, budgets: list[Budget]) -> list[tuple[str, ...]]:
    overall, backbone = published_table(number).rows

    def row(name: str, value: Callable[[Budget], str]) -> tuple[str, ...]:
        return (name, "", "", *map(value, budgets))

    def exact(cells: tuple[str, ...], values: list[float]) -> list[str]:
        return [Printed(cell).like(100 * value) for cell, value in zip(cells[3:], values, strict=True)]

    return [
        ("overall sparsity", *overall[1:]),
        ("overall sparsity, ours", "", "", *exact(overall, [b.overall for b in budgets])),
        ("backbone sparsity", *backbone[1:]),
        ("backbone sparsity, ours", "", "", *exact(backbone, [b.backbone for b in budgets])),
        row("weights left, ours", lambda b: str(b.params)),
        row("FLOPs left, ours", lambda b: str(b.macs())),
    ]


# Tables 3, 10, 11 and 12, and the lists of what was checked.


def low_rank_table() -> Table:
    """Table 3.

    Example:
        >>> low_rank_table().rows[1][5:]
        ('+1.66', '9584', '27.4 %')
    """
    rows = []
    for record in published_table(3).records():
        size = matrix_params(record["data"], int(record["r_w"]), r_u=int(record["r_u"]))
        gain = f"{float(record['str']) - float(record['vanilla']):+.2f}" if record["str"] else ""
        smaller = f"{100 * size_reduction(record):.1f} %"
        data, *cells = record.values()
        rows.append((_DATA[data], *cells, gain, str(size), smaller))
    return text_table(
        name=f"table_03_{published_table(3).name}",
        title=f"Table 3. {published_table(3).title}",
        how="Accuracies as printed, in percent. Ours: the gain, and the entries of W and U, which are stored as two "
        "factors where the rank is not full; W is 32 x 100 for Google-12 and 9 x 80 for HAR-2.",
        columns=(
            "data",
            "rank of W",
            "rank of U",
            "given ranks",
            "STR",
            "gain, ours",
            "entries, ours",
            "smaller, ours",
        ),
        rows=rows,
    )


def hyperparameter_tables() -> list[Table]:
    """Tables 10, 11 and 12."""
    tables = []
    for number, network, results in ((10, "resnet50", 1), (11, "mobilenetv1", 2)):
        table, models = published_table(number), published_table(results)
        rows = [
            (*record.values(), models.find(method="STR", sparsity=record["sparsity"])["top1"], f"{network}/str-{s}")
            for record in table.records()
            for s in [record["sparsity"]]
        ]
        how = _DECAYS if number == 10 else "As printed. softprune's recipes of the same names have these values."
        columns = ("sparsity %", "weight decay", "s_init", f"top-1 %, table {results}", "recipe")
        tables.append(text_table(f"table_{number}_{table.name}", f"Table {number}. {table.title}", how, columns, rows))
    table = published_table(12)
    rows12 = tuple((_DATA[data], *cells) for data, *cells in table.rows)
    names = ("data", "rank of W", "rank of U", "weight decay")
    tables.append(text_table(f"table_12_{table.name}", f"Table 12. {table.title}", "As printed.", names, rows12))
    return tables


def difference_table(checks: Sequence[Check]) -> Table:
    """The checks that differ."""
    return text_table(
        name="disagreements",
        title="What differs",
        how="Printed values that do not follow from the paper's own layers, from the rule it names, or from its other "
        "tables. Where two tables are compared, the second value is the second table's.",
        columns=("where", "which", "what", "printed", "ours", "reason"),
        rows=[(c.place, c.row, c.quantity, c.printed, c.ours, c.reason) for c in disagreements(checks)],
    )


def check_table(checks: Sequence[Check]) -> Table:
    """All checks with their verdicts."""
    return text_table(
        name="checks",
        title="All values that were checked",
        how="agrees: ours rounds to the printed digits. other count: it does when counted in the way that the reason "
        "names. differs: it does not. not computable: from what is published.",
        columns=("where", "which", "what", "printed", "ours", "verdict", "reason"),
        rows=[(c.place, c.row, c.quantity, c.printed, c.ours, c.verdict, c.reason) for c in checks],
    )
