"""The budget behind a row of the results tables, found or computed again. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from softprune.budget.allocators import erk, uniform
from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.goals import Sparsity
from softprune.budget.published import published

# The tables that have methods with their parameters, sparsity and FLOPs, and the network of each.
RESULTS = {1: "resnet50", 2: "mobilenetv1", 4: "resnet50", 5: "resnet50", 9: "resnet50"}
ALL_LAYERS_ALIKE = ("GMP", "DNW", "DPF", "Uniform")
# Published budgets of rows that are not STR's own: (table, method, printed sparsity).
_NAMED = {
    (1, "SNFS", "90.00"): "resnet50/snfs-90",
    (2, "GMP", "89.03"): "mobilenetv1/gmp-89.03",
    (2, "STR", "89.01"): "mobilenetv1/str-89.01",
    (9, "STR-GS", "89.54"): "resnet50/gs-89.54",
}


@dataclass(frozen=True)
class Recount:
    """Where the numbers of one row come from.

    Args:
        budget: the layer-wise densities, with costs; None where they are not published and follow from no rule.
        how: one phrase for the reader.
        given: whether the printed sparsity needs no check here: the budget was made from it, or comes from a table
            whose totals are checked there.
    """

    budget: Budget | None
    how: str
    given: bool = False


def recount(table: int, method: str, sparsity: str) -> Recount:
    """The budget of one row.

    Args:
        table: number of a results table.
        method: as printed.
        sparsity: as printed, in percent.

    Example:
        >>> round(recount(1, "RigL + ERK", "95.00").budget.macs() / 1e6)
        498
    """
    dense = network_profile(RESULTS[table])
    if sparsity == "0.00":
        return Recount(Budget(dict.fromkeys(dense.names, 1.0), dense), "the whole network", given=True)
    if name := _NAMED.get((table, method, sparsity)):
        return Recount(published(name), f"layers of {name}", given=True)
    if method in ("STR", "Budget from STR") and RESULTS[table] == "resnet50":
        name = f"resnet50/str-{sparsity}"
        return Recount(published(name), f"layers of {name}", given=True)
    return _by_rule(table, method, sparsity)


def _by_rule(table: int, method: str, sparsity: str) -> Recount:
    profile, goal = network_profile(RESULTS[table]), Sparsity(float(sparsity) / 100)
    if method == "DPF#":
        return Recount(uniform(profile, Sparsity(0.9), dense=["fc.weight"]), "90 % of every layer, the last dense")
    if table == 2 and method == "GMP":
        learnt = published("mobilenetv1/gmp-89.03")
        whole = [name for name in learnt if learnt[name] == 1.0]
        how = "75 % of every layer, the first and the depthwise convolutions dense"
        return Recount(uniform(profile, Sparsity(0.75), dense=whole), how)
    if method in ALL_LAYERS_ALIKE:
        return Recount(uniform(profile, goal), "the same sparsity in every layer", given=True)
    if method == "RigL*":
        how = "the same sparsity in every layer, the first dense"
        return Recount(uniform(profile, goal, dense=["conv1.weight"]), how)
    if method.endswith("ERK"):
        return Recount(erk(profile, goal), "ERK computed from the shapes")
    return Recount(None, "its layer-wise budget is not published", given=True)


def network_profile(network: str) -> Profile:
    """What ResNet50 or MobileNetV1 costs on an image of 224 x 224."""
    profile = published({"resnet50": "resnet50/str-90.23", "mobilenetv1": "mobilenetv1/str-89.01"}[network]).profile
    assert profile is not None  # published budgets carry one
    return profile
