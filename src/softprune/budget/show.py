"""Budgets and profiles as tables for people: in a terminal, in a notebook, side by side. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from softprune.budget.units import USUAL, noun

if TYPE_CHECKING:
    from rich.table import Table

    from softprune.budget.budget import Budget
    from softprune.budget.costs import Profile


MOST_ROWS = 120  # a notebook shows all it is given; of a longer table the middle is left out
Row = tuple[str, ...]


@dataclass(frozen=True)
class TextTable:
    """A table of text: the first column holds names, the others numbers."""

    caption: str
    columns: Row
    rows: tuple[Row, ...]
    totals: tuple[Row, ...] = ()  # below a line

    def html(self) -> str:
        """The table with everything escaped."""
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        head, body = _html_row(self.columns, "th"), "".join(_html_row(row, "td") for row in self.rows)
        foot = f"<tfoot>{''.join(_html_row(row, 'th') for row in self.totals)}</tfoot>" if self.totals else ""
        return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody>{foot}</table>"

    def rich(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False, title_justify="left", title_style="bold")
        table.title = Text(self.caption) if self.caption else None
        for index, column in enumerate(self.columns):
            table.add_column(Text(column), justify="right" if index else "left", no_wrap=not index)
        for row in self.rows:
            table.add_row(*map(Text, row))
        if self.totals:
            table.add_section()
        for row in self.totals:
            table.add_row(*map(Text, row), style="bold")
        return table


def budget_table(budget: Budget, *, caption: str | None = None) -> TextTable:
    """What a budget keeps of each tensor and of all of them; the caption is its source if none is given.

    Example:
        >>> from softprune.budget.budget import Budget
        >>> budget_table(Budget.load("resnet50/str-90.23")).totals[0]
        ('all tensors', '', '2,491,778 of 25,502,912', '90.23%', '342,766,182 of 4,089,284,608')
    """
    title = budget.source if caption is None else caption
    profile = budget.profile
    if profile is None:
        rows = [(name, f"{density:.4f}", f"{1 - density:.2%}") for name, density in budget.items()]
        return TextTable(title, ("tensor", "density", "sparsity"), _cut(rows))
    costs = {cost.name: cost for cost in profile}
    rows_with_costs: list[Row] = []
    for name, density in budget.items():
        shape = kept = macs = "-"
        if cost := costs.get(name):
            shape, kept = shape_text(cost.shape), f"{round(density * cost.params):,} of {cost.params:,}"
            macs = f"{round(density * cost.macs):,} of {cost.macs:,}" if profile.counted else "-"
        rows_with_costs.append((name, shape, kept, f"{1 - density:.2%}", macs))
    totals: tuple[Row, ...] = ()
    # A budget that was never validated may lack tensors; to show it must not fail.
    if all(name in budget for name in profile.names):
        macs = f"{budget.macs():,} of {profile.total_macs():,}" if profile.counted else "-"
        kept = f"{budget.params:,} of {profile.params:,}"
        totals = (("all tensors", "", kept, f"{budget.overall:.2%}", macs),)
    columns = ("tensor", "shape", f"{noun(budget.units)} kept", "sparsity", "MACs left")
    return TextTable(title, columns, _cut(rows_with_costs), totals)


def profile_table(profile: Profile, *, caption: str = "", units: str = USUAL) -> TextTable:
    """What each tensor costs, and all of them; `units` as of a Budget.

    Example:
        >>> from softprune.budget.costs import Profile, TensorCost
        >>> profile_table(Profile((TensorCost("fc.weight", (10, 8), 80),))).rows
        (('fc.weight', '10x8', '80', '80'),)
    """
    counted = profile.counted
    rows = [(t.name, shape_text(t.shape), f"{t.params:,}", f"{t.macs:,}" if counted else "-") for t in profile]
    totals: list[Row] = []
    if profile.other_params or profile.other_macs or profile.pool_macs:
        other = f"{profile.other_macs + profile.pool_macs:,}" if counted else "-"
        totals.append(("everything else", "", f"{profile.other_params:,}", other))
    macs = f"{profile.macs - profile.other_macs:,}" if counted else "-"
    totals.append(("all tensors", "", f"{profile.params:,}", macs))
    return TextTable(caption, ("tensor", "shape", noun(units), "MACs"), _cut(rows), tuple(totals))


def _cut(rows: Sequence[Row]) -> tuple[Row, ...]:
    if len(rows) <= MOST_ROWS:
        return tuple(rows)
    half = MOST_ROWS // 2
    gap = (f"... {len(rows) - 2 * half:,} more ...", *[""] * (len(rows[0]) - 1))
    return (*rows[:half], gap, *rows[-half:])


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _html_row(cells: Row, tag: str) -> str:
    left, right = 'style="text-align: left"', 'style="text-align: right"'
    return "<tr>" + "".join(f"<{tag} {right if n else left}>{escape(c)}</{tag}>" for n, c in enumerate(cells)) + "</tr>"


# Two budgets side by side.


@dataclass(frozen=True)
class ComparisonRow:
    """One tensor in two budgets; its costs are None when neither budget has a profile."""

    name: str
    params: int | None
    macs: int | None
    density_a: float
    density_b: float


@dataclass(frozen=True)
class Totals:
    """The sums of one budget: sparsity, weights kept, multiply-adds left (pools included, None if not counted)."""

    overall: float
    params: int
    macs: int | None


@dataclass(frozen=True)
class Comparison:
    """Rows in the order of the first budget, and the totals when there is a profile."""

    rows: tuple[ComparisonRow, ...]
    total_a: Totals | None
    total_b: Totals | None


def compare(a: Budget, b: Budget) -> Comparison:
    """Set ``a`` beside ``b``; a budget without a profile is costed by the other's."""
    if set(a) != set(b):
        alone_a, alone_b = sorted(set(a) - set(b)), sorted(set(b) - set(a))
        raise ValueError(
            "budgets of different networks cannot be compared: "
            f"only the first has {', '.join(alone_a) or 'nothing'}; "
            f"only the second has {', '.join(alone_b) or 'nothing'}"
        )
    profile = a.profile or b.profile
    if profile is None:
        return Comparison(tuple(ComparisonRow(name, None, None, a[name], b[name]) for name in a), None, None)
    costs = {t.name: (t.params, t.macs if profile.counted else None) for t in profile}
    total_a, total_b = _sums(a, profile), _sums(b, profile)
    return Comparison(tuple(ComparisonRow(name, *costs[name], a[name], b[name]) for name in a), total_a, total_b)


def _sums(budget: Budget, profile: Profile) -> Totals:
    budget.validate(profile)
    own = budget.profile or profile
    costed = replace(budget, profile=own)
    return Totals(costed.overall, costed.params, costed.macs() if own.counted else None)
