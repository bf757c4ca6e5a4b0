import pytest

from softprune import Budget, Profile
from softprune.budget.costs import TensorCost
from softprune.budget.show import Comparison, ComparisonRow, Totals

PROFILE = Profile((TensorCost("a", (4, 2), 80), TensorCost("b", (2, 4), 8)), pool_macs=2)


def test_rows_and_totals_by_hand():
    first = Budget({"a": 0.5, "b": 1.0}, PROFILE)
    second = Budget({"b": 0.25, "a": 0.25})
    assert first.compare(second) == Comparison(
        (ComparisonRow("a", 8, 80, 0.5, 0.25), ComparisonRow("b", 8, 8, 1.0, 0.25)),
        Totals(overall=0.25, params=12, macs=50),
        Totals(overall=0.75, params=4, macs=24),
    )


def test_without_a_profile_there_are_no_totals():
    found = Budget({"a": 0.5}).compare(Budget({"a": 0.25}))
    assert found == Comparison((ComparisonRow("a", None, None, 0.5, 0.25),), None, None)


def test_different_networks_are_refused():
    with pytest.raises(ValueError, match="only the first has a; only the second has b, c"):
        Budget({"a": 0.5}).compare(Budget({"b": 0.5, "c": 1}))


def test_different_shapes_are_refused():
    other = Profile((TensorCost("a", (8, 1), 80), TensorCost("b", (2, 4), 8)))
    with pytest.raises(ValueError, match=r"a has shape \(8, 1\) in the budget and \(4, 2\) in the profile"):
        Budget({"a": 0.5, "b": 1.0}, PROFILE).compare(Budget({"a": 0.5, "b": 1.0}, other))


def test_published_budgets():
    found = Budget.load("resnet50/str-90.23").compare(Budget.load("resnet50/uniform-90"))
    # the paper: 343M against 409M
    assert (round(found.total_a.macs / 1e6), round(found.total_b.macs / 1e6)) == (343, 409)
    assert (len(found.rows), found.rows[0].name, found.rows[0].density_b) == (54, "conv1.weight", 0.1)
