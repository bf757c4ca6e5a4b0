"""The totals above the paper's tables of layer-wise budgets, added up again."""

from __future__ import annotations

from softprune.budget.published import published
from softprune.reporting.paper.check import Check, Verdict
from softprune.reporting.paper.printed import Printed
from softprune.reporting.paper.published_table import PublishedTable, published_table
from softprune.reporting.paper.recount import network_profile

BUDGETS = (6, 7, 8)


def check_budgets(number: int) -> list[Check]:
    """Overall and backbone sparsity of every column, and the costs of the whole network.

    Args:
        number: 6, 7 or 8.

    Example:
        >>> [(c.row, c.printed, c.ours) for c in check_budgets(6) if c.verdict == "differs"]
        [('str-95.03', '95.03', '95.024')]
    """
    table = published_table(number)
    overall, backbone = table.records()
    checks = _costs(table)
    for column in table.columns[3:]:
        budget = published(f"{table.network}/{column}")
        for quantity, cell, value in (
            ("overall sparsity", overall[column], budget.overall),
            ("backbone sparsity", backbone[column], budget.backbone),
        ):
            printed = Printed(cell)
            verdict: Verdict = "agrees" if printed.fits(100 * value) else "differs"
            reason = "sum over the printed layers"
            if verdict == "differs":
                reason += ", which are rounded themselves: to 0.01"
            checks.append(Check(f"table {number}", column, quantity, cell, printed.like(100 * value), verdict, reason))
    return checks


def _costs(table: PublishedTable) -> list[Check]:
    profile = network_profile(table.network)
    head = profile[profile.head]
    overall, backbone = table.records()
    place, row = f"table {table.number}", "dense network"
    pairs = (
        ("parameters", overall["params"], profile.params),
        ("parameters of the backbone", backbone["params"], profile.params - head.params),
        ("FLOPs", overall["flops"], profile.total_macs()),
        ("FLOPs of the backbone", backbone["flops"], profile.macs - head.macs),
    )
    checks = []
    for quantity, cell, value in pairs:
        verdict: Verdict = "agrees" if int(cell) == value else "differs"
        reason = "counted layer by layer"
        if quantity == "FLOPs" and int(cell) == profile.total_macs(pool=False):
            verdict, reason = "other count", "the average pool left out, which table 6 includes for ResNet50"
        checks.append(Check(place, row, quantity, cell, str(value), verdict, reason))
    return checks
