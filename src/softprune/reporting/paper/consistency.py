"""What the paper prints in two places, compared."""

from __future__ import annotations

from collections.abc import Iterable

from softprune.reporting.paper.check import Check
from softprune.reporting.paper.published_table import PublishedTable, published_table

# What stands for what in table 1: (table, method there) -> method in table 1, and the columns that must be the same.
_SAME = {
    (4, "Uniform"): ("DNW", ("top1", "params", "flops")),
    (4, "ERK"): ("RigL + ERK", ("params", "flops")),
    (4, "Budget from STR"): ("STR", ("params", "flops")),
    (5, "Uniform"): ("GMP", ("top1", "params", "flops")),
    (5, "Budget from STR"): ("STR", ("params", "flops")),
}
_QUANTITIES = {"top1": "accuracy", "params": "parameters", "flops": "FLOPs", "sparsity": "sparsity"}
# Sparsities of one model in a table of budgets and in a table of results: (table, column, table, method, sparsity).
_TOTALS = (
    (7, "str-90.23", 1, "STR", "90.23", ""),
    (7, "uniform-90", 1, "GMP", "90.00", ""),
    (7, "erk-90", 1, "RigL + ERK", "90.00", "the column of table 7 is in whole percent"),
    (7, "snfs-90", 1, "SNFS", "90.00", "table 7 has what the layers add up to, table 1 the goal"),
    (7, "gs-89.54", 9, "STR-GS", "89.54", ""),
    (8, "str-89.01", 2, "STR", "89.01", ""),
    (8, "gmp-89.03", 2, "GMP", "89.03", ""),
)


def check_consistency() -> list[Check]:
    """Every value that two tables share; ``ours`` is the second table's.

    Example:
        >>> [c.row for c in check_consistency() if c.verdict == "differs"]
        ['RigL + ERK 90.00 %', 'SNFS 90.00 %']
    """
    return [*_transfers(), *_totals(), *_lists()]


def _transfers() -> list[Check]:
    first, checks = published_table(1), []
    for (number, method), (other, columns) in _SAME.items():
        for record in published_table(number).records():
            if record["method"] != method:
                continue
            twin = first.find(method=other, sparsity=record["sparsity"])
            row = f"{method} {record['sparsity']} %, in table 1 {other}"
            checks += [
                _same(f"tables {number} and 1", row, _QUANTITIES[c], record[c], twin[c], reason="") for c in columns
            ]
    return checks


def _totals() -> list[Check]:
    checks = []
    for number, column, other, method, sparsity, reason in _TOTALS:
        above = published_table(number).records()[0][column]
        below = published_table(other).find(method=method, sparsity=sparsity)["sparsity"]
        place = f"tables {number} and {other}"
        checks.append(_same(place, f"{method} {sparsity} %", "sparsity", above, below, reason=reason))
    above6, above7 = (published_table(n).records()[1]["str-90.23"] for n in (6, 7))
    checks.append(_same("tables 6 and 7", "STR 90.23 %", "backbone sparsity", above6, above7, reason=""))
    return checks


def _lists() -> list[Check]:
    first, second = published_table(1), published_table(2)
    ranks = [r for r in published_table(3).records() if r["str"]]
    return [
        _listed("tables 6 and 1", "sparsities of STR", published_table(6).columns[3:], _str(first, prefix="str-")),
        _listed("tables 10 and 1", "sparsities of STR", _column(published_table(10), "sparsity"), _str(first)),
        _listed("tables 11 and 2", "sparsities of STR", _column(published_table(11), "sparsity"), _str(second)),
        _listed("tables 12 and 3", "ranks of FastGRNN", map(_ranks, published_table(12).records()), map(_ranks, ranks)),
    ]


def _str(table: PublishedTable, *, prefix: str = "") -> list[str]:
    return [prefix + r["sparsity"] for r in table.records() if r["method"] == "STR"]


def _column(table: PublishedTable, name: str) -> list[str]:
    return [r[name] for r in table.records()]


def _ranks(record: dict[str, str]) -> str:
    return f"{record['data']} {record['r_w']}, {record['r_u']}"


def _listed(place: str, quantity: str, one: Iterable[str], two: Iterable[str]) -> Check:
    # Tables 2 and 11 list the same models in the same order, but nothing depends on it.
    left, right = sorted(one), sorted(two)
    text, other = f"{len(left)} values", f"{len(right)} values"
    if left != right:
        text, other = ", ".join(sorted(set(left) - set(right))), ", ".join(sorted(set(right) - set(left)))
    return Check(place, "all rows", quantity, text, other, "agrees" if left == right else "differs", "the same models")


def _same(place: str, row: str, quantity: str, one: str, two: str, *, reason: str) -> Check:
    agrees = one == two
    return Check(place, row, quantity, one, two, "agrees" if agrees else "differs", "" if agrees else reason)
