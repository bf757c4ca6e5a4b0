"""Tables 6, 7 and 8: layer-wise budgets, with totals added up again."""

from __future__ import annotations

from collections.abc import Callable

from softprune.budget.budget import Budget
from softprune.budget.published import published
from softprune.reporting.paper.budget_checks import BUDGETS, check_budgets
from softprune.reporting.paper.layer_figures import layer_names
from softprune.reporting.paper.printed import Printed
from softprune.reporting.paper.published_table import published_table
from softprune.reporting.paper.recount import network_profile
from softprune.reporting.paper.sheet import Sheet

_HOW = (
    "Sparsity of every layer in percent, as printed. Below: overall and backbone (without the classifier) as printed "
    "and as the layers add up, and the weights and multiply-adds that are left, which are ours."
)


def budget_sheet(number: int) -> Sheet:
    """One table of layer-wise budgets.

    Args:
        number: 6, 7 or 8.

    Example:
        >>> budget_sheet(8).rows[0]
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
    differs = {c.quantity for c in check_budgets(number) if c.verdict == "differs"}
    return Sheet(
        name=f"table_{number:02}_{table.name}",
        title=f"Table {number}. {table.title}",
        how=_HOW + (" dw: depthwise." if number == 8 else ""),
        columns=("layer", "weights", "FLOPs", *table.columns[3:]),
        rows=tuple(rows),
        marked=frozenset(i for i, row in enumerate(rows) if row[0].removesuffix(", ours") in differs),
    )


def budget_sheets() -> list[Sheet]:
    """All tables of layer-wise budgets."""
    return [budget_sheet(number) for number in BUDGETS]


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
