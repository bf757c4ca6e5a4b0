"""Two budgets side by side. Needs no torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softprune.budget.budget import Budget


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


def compare(a: "Budget", b: "Budget") -> Comparison:
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
    a.validate(profile)
    b.validate(profile)
    costs = {t.name: (t.params, t.macs if profile.counted else None) for t in profile}
    rows = tuple(ComparisonRow(n, *costs[n], a[n], b[n]) for n in a)
    return Comparison(
        rows,
        _totals(a if a.profile else a.with_profile(profile)),
        _totals(b if b.profile else b.with_profile(profile)),
    )


def _totals(budget: "Budget") -> Totals:
    counted = budget.profile is not None and budget.profile.counted
    return Totals(budget.overall, budget.params, budget.macs() if counted else None)
