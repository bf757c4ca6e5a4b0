"""Parameters, sparsity and FLOPs of the results tables, counted again."""

from __future__ import annotations

from collections.abc import Iterable

from softprune.budget.budget import Budget
from softprune.reporting.paper.check import Check, Verdict
from softprune.reporting.paper.printed import Printed
from softprune.reporting.paper.published_table import published_table
from softprune.reporting.paper.recount import RESULTS, Recount, network_profile, recount

# The baselines' counts in the paper include batch normalisation and a bias for each of 1000 classes: 25.6M in all.
CLASSES = 1000
_BASELINE_PARAMS = 25.6e6

# Why a value differs, where that is known: (table, row, quantity).
_REASONS = {
    (1, "STR 81.27 %", "parameters"): "the layers and 81.27 % of 25.503M agree on 4.78M",
    (1, "SNFS + ERK 80.00 %", "FLOPs"): "ERK computed exactly; how the printed value was counted is not known",
    (1, "RigL + ERK 80.00 %", "FLOPs"): "ERK computed exactly; how the printed value was counted is not known",
    (1, "RigL* 80.00 %", "FLOPs"): "the rule that gives the rows at 90, 95 and 96.5 % gives 912M here",
    (
        1,
        "SNFS + ERK 90.00 %",
        "FLOPs",
    ): "ERK computed exactly; its column in table 7, in whole percent, adds up to 991M",
    (
        1,
        "RigL + ERK 90.00 %",
        "FLOPs",
    ): "ERK computed exactly; its column in table 7, in whole percent, adds up to 991M",
    (4, "ERK 90.00 %", "FLOPs"): "ERK computed exactly; its column in table 7, in whole percent, adds up to 991M",
    (1, "RigL + ERK 95.00 %", "FLOPs"): "printed as an approximation; ERK computed exactly",
    (1, "RigL + ERK 96.50 %", "FLOPs"): "printed as an approximation; ERK computed exactly",
    (2, "GMP 74.11 %", "sparsity"): "the same layers dense as in its 90 % budget in table 8",
    (9, "STR-GS 89.54 %", "parameters"): "2.42M would be 25.6M times the density of another model, STR 90.55 %",
}


def check_results(number: int) -> list[Check]:
    """All printed parameters, sparsities and FLOPs of one results table.

    Args:
        number: 1, 2, 4, 5 or 9.

    Example:
        >>> [c.row for c in check_results(4) if c.verdict == "differs"]
        ['ERK 90.00 %']
    """
    checks: list[Check] = []
    for record in published_table(number).records():
        found = recount(number, record["method"], record["sparsity"])
        row = _Row(number, f"{record['method']} {record['sparsity']} %", found)
        checks.append(row.parameters(record["params"], record["sparsity"]))
        if not found.given:
            checks.append(row.sparsity(record["sparsity"]))
        if record["flops"] != "-":
            checks.append(row.flops(record["flops"]))
    return checks


class _Row:
    """One row while it is checked."""

    def __init__(self, number: int, name: str, found: Recount) -> None:
        self.number, self.name, self.found = number, name, found
        self.profile = network_profile(RESULTS[number])

    def parameters(self, printed: str, sparsity: str) -> Check:
        density = 1 - float(sparsity) / 100
        others: list[tuple[float, str]] = []
        if RESULTS[self.number] == "resnet50":
            others = [(_BASELINE_PARAMS * density, "of 25.6M")]
        if self.found.budget is not None:
            value, how, slack = float(self.found.budget.params), self.found.how, 0.0
        else:
            # The printed sparsity is exact to 0.005 %.
            value, how, slack = self.profile.params * density, "weights times the density", self.profile.params * 5e-5
        return self._check("parameters", Printed(printed), value, how=how, others=others, slack=slack)

    def sparsity(self, printed: str) -> Check:
        budget = self.found.budget
        assert budget is not None  # a row without a budget is given
        everything = self.profile.params + self.profile.other_params + CLASSES
        zeros = self.profile.params - budget.params
        others = [
            (100 * zeros / everything, "with batch normalisation and a bias"),
            (100 * _of_pruned_layers(budget), "of the layers that are pruned"),
        ]
        return self._check("sparsity", Printed(printed), 100 * budget.overall, how=self.found.how, others=others)

    def flops(self, printed: str) -> Check:
        budget = self.found.budget
        if budget is None:
            return Check(f"table {self.number}", self.name, "FLOPs", printed, "", "not computable", self.found.how)
        others = [(float(budget.macs(pool=False)), "without the average pool")]
        return self._check("FLOPs", Printed(printed), float(budget.macs()), how=self.found.how, others=others)

    def _check(
        self,
        quantity: str,
        printed: Printed,
        value: float,
        *,
        how: str,
        others: Iterable[tuple[float, str]],
        slack: float = 0.0,
    ) -> Check:
        verdict: Verdict = "agrees"
        reason = how
        if not printed.fits(value, slack=slack):
            named = [(other, why) for other, why in others if printed.fits(other, slack=slack)]
            if named:
                verdict, reason = "other count", f"{printed.like(named[0][0])} {named[0][1]}"
            else:
                verdict = "differs"
                cut = "cut off, not rounded" if printed.cut(value) else "we know no reason"
                reason = _REASONS.get((self.number, self.name, quantity), cut)
        return Check(f"table {self.number}", self.name, quantity, printed.text, printed.like(value), verdict, reason)


def _of_pruned_layers(budget: Budget) -> float:
    profile = budget.profile
    assert profile is not None  # published and allocated budgets carry one
    pruned = [t for t in profile if budget[t.name] < 1.0]
    return sum(budget.sparsity(t.name) * t.params for t in pruned) / max(1, sum(t.params for t in pruned))
