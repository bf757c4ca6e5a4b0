"""Tables 3, 10, 11 and 12, and the lists of what was checked."""

from __future__ import annotations

from collections.abc import Sequence

from softprune.reporting.paper.check import Check, disagreements
from softprune.reporting.paper.low_rank import matrix_params, size_reduction
from softprune.reporting.paper.published_table import published_table
from softprune.reporting.paper.sheet import Sheet

_DATA = {"google12": "Google-12", "har2": "HAR-2"}
_DECAYS = (
    "As printed. softprune's recipes of the same names have these values. All decays but two are 2^-15 plus a whole "
    "number of millionths; those of 79.55 % and 97.78 % are not. 0.00005251757813 would be one, so that a digit may be "
    "missing in the latter: a guess."
)


def low_rank_sheet() -> Sheet:
    """Table 3.

    Example:
        >>> low_rank_sheet().rows[1][5:]
        ('+1.66', '9584', '27.4 %')
    """
    rows = []
    for record in published_table(3).records():
        size = matrix_params(record["data"], int(record["r_w"]), r_u=int(record["r_u"]))
        gain = f"{float(record['str']) - float(record['vanilla']):+.2f}" if record["str"] else ""
        smaller = f"{100 * size_reduction(record):.1f} %"
        data, *cells = record.values()
        rows.append((_DATA[data], *cells, gain, str(size), smaller))
    return Sheet(
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
        rows=tuple(rows),
    )


def hyperparameter_sheets() -> list[Sheet]:
    """Tables 10, 11 and 12."""
    sheets = []
    for number, network, results in ((10, "resnet50", 1), (11, "mobilenetv1", 2)):
        table, models = published_table(number), published_table(results)
        rows = [
            (*record.values(), models.find(method="STR", sparsity=record["sparsity"])["top1"], f"{network}/str-{s}")
            for record in table.records()
            for s in [record["sparsity"]]
        ]
        how = _DECAYS if number == 10 else "As printed. softprune's recipes of the same names have these values."
        columns = ("sparsity %", "weight decay", "s_init", f"top-1 %, table {results}", "recipe")
        sheets.append(
            Sheet(f"table_{number}_{table.name}", f"Table {number}. {table.title}", how, columns, tuple(rows))
        )
    table = published_table(12)
    rows12 = tuple((_DATA[data], *cells) for data, *cells in table.rows)
    names = ("data", "rank of W", "rank of U", "weight decay")
    sheets.append(Sheet(f"table_12_{table.name}", f"Table 12. {table.title}", "As printed.", names, rows12))
    return sheets


def difference_sheet(checks: Sequence[Check]) -> Sheet:
    """The checks that differ."""
    return Sheet(
        name="disagreements",
        title="What differs",
        how="Printed values that do not follow from the paper's own layers, from the rule it names, or from its other "
        "tables. Where two tables are compared, the second value is the second table's.",
        columns=("where", "which", "what", "printed", "ours", "reason"),
        rows=tuple((c.place, c.row, c.quantity, c.printed, c.ours, c.reason) for c in disagreements(checks)),
    )


def check_sheet(checks: Sequence[Check]) -> Sheet:
    """All checks with their verdicts."""
    return Sheet(
        name="checks",
        title="All values that were checked",
        how="agrees: ours rounds to the printed digits. other count: it does when counted in the way that the reason "
        "names. differs: it does not. not computable: from what is published.",
        columns=("where", "which", "what", "printed", "ours", "verdict", "reason"),
        rows=tuple((c.place, c.row, c.quantity, c.printed, c.ours, c.verdict, c.reason) for c in checks),
        marked=frozenset(i for i, c in enumerate(checks) if c.verdict == "differs"),
    )
