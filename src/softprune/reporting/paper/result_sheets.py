"""Tables 1, 2, 4, 5 and 9: printed values with ours beside them."""

from __future__ import annotations

from softprune.reporting.paper.check import Check
from softprune.reporting.paper.published_table import published_table
from softprune.reporting.paper.recount import RESULTS
from softprune.reporting.paper.result_checks import check_results
from softprune.reporting.paper.sheet import Sheet

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


def result_sheet(number: int) -> Sheet:
    """One results table.

    Args:
        number: 1, 2, 4, 5 or 9.

    Example:
        >>> result_sheet(5).rows[1][:4]
        ('Budget from STR', '74.13', '2.49M', '2.492M')
    """
    table = published_table(number)
    checks: dict[str, list[Check]] = {}
    for check in check_results(number):
        checks.setdefault(check.row, []).append(check)
    rows = [_row(record, checks[f"{record['method']} {record['sparsity']} %"]) for record in table.records()]
    return Sheet(
        name=f"table_{number:02}_{table.name}",
        title=f"Table {number}. {table.title}",
        how=_HOW + (_RESNET50 if RESULTS[number] == "resnet50" else "") + (_MARKS if number == 1 else ""),
        columns=COLUMNS,
        rows=tuple(rows),
        marked=frozenset(i for i, row in enumerate(rows) if row[-2] == "differs"),
    )


def result_sheets() -> list[Sheet]:
    """All results tables."""
    return [result_sheet(number) for number in RESULTS]


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
