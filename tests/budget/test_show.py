"""Budgets, profiles and sparsifiers in notebooks and terminals: right totals, everything escaped, never an error."""

import io
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from softprune import STR, Budget, Profile, Sparsity, sparsify
from softprune.budget.costs import TensorCost
from softprune.budget.show import MOST_ROWS, budget_table, profile_table

HOSTILE = "<script>alert(1)</script>[red]&"
CONV, FC = TensorCost("conv.weight", (8, 3, 3, 3), 21600), TensorCost("fc.weight", (10, 8), 80)
SMALL = Profile((CONV, FC), other_macs=5, pool_macs=7, other_params=18)


def shown(thing: object) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(thing)
    return console.file.getvalue()


def test_a_budget_shows_what_is_kept_of_all():
    budget = Budget({"conv.weight": 0.25, "fc.weight": 0.5}, profile=SMALL, source="by hand")
    # 0.25 * 216 + 0.5 * 80 = 94 of 296; 0.25 * 21600 + 0.5 * 80 + 5 + 7 = 5452 of 21692.
    assert budget_table(budget).totals == (("all tensors", "", "94 of 296", "68.24%", "5,452 of 21,692"),)
    assert budget_table(budget).rows[0] == ("conv.weight", "8x3x3x3", "54 of 216", "75.00%", "5,400 of 21,600")
    for text in (budget._repr_html_(), shown(budget)):
        assert all(word in text for word in ("by hand", "54 of 216", "68.24%", "5,452 of 21,692"))


def test_a_profile_shows_what_all_costs():
    assert profile_table(SMALL).totals == (("everything else", "", "18", "12"), ("all tensors", "", "296", "21,680"))
    for text in (SMALL._repr_html_(), shown(SMALL)):
        assert all(word in text for word in ("8x3x3x3", "21,600", "296"))


def test_a_profile_of_shapes_alone_has_no_multiply_adds():
    shapes = Profile((FC,), counted=False)
    assert profile_table(shapes).rows == (("fc.weight", "10x8", "80", "-"),)
    assert budget_table(Budget({"fc.weight": 0.5}, profile=shapes)).totals[0][2:] == ("40 of 80", "50.00%", "-")


@pytest.mark.parametrize(
    "budget",
    [
        Budget({"fc.weight": 0.5}),
        Budget({"fc.weight": 0.5}, profile=SMALL),
        Budget({"conv.weight": 0.5, "fc.weight": 0.5, "more.weight": 0.1}, profile=SMALL),
        Budget({"fc.weight": float("nan")}),
    ],
)
def test_a_budget_that_does_not_fit_is_shown_all_the_same(budget):
    assert "fc.weight" in budget._repr_html_()
    assert "fc.weight" in shown(budget)


def test_names_stay_text():
    budget = Budget({HOSTILE: 0.5}, profile=Profile((TensorCost(HOSTILE, (2, 2), 4),)), source=HOSTILE)
    html = budget._repr_html_()
    assert "<script>" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;[red]&amp;") == 2
    assert shown(budget).count(HOSTILE) == 2
    assert "<script>" not in budget.profile._repr_html_()


def test_a_long_table_is_cut_in_the_middle_and_keeps_its_totals():
    profile = Profile(tuple(TensorCost(f"{n}.weight", (2,), 2) for n in range(1000)))
    table = budget_table(Budget({t.name: 0.5 for t in profile}, profile=profile))
    assert len(table.rows) == MOST_ROWS + 1
    assert (table.rows[0][0], table.rows[-1][0]) == ("0.weight", "999.weight")
    assert table.rows[MOST_ROWS // 2][0] == "... 880 more ..."
    assert table.totals[0][2] == "1,000 of 2,000"


def test_a_sparsifier_shows_what_it_measures_until_it_is_baked():
    sparsifier = sparsify(torch.nn.Linear(8, 4, bias=False), STR(), goal=Sparsity(0.75))
    sparsifier.solve(at=1.0)
    for text in (sparsifier._repr_html_(), shown(sparsifier)):
        assert "STR, step 0" in text
        assert "8 of 32" in text and "75.00%" in text
    sparsifier.bake(at="target")
    assert "baked or removed" in sparsifier._repr_html_()
    assert "32" in shown(sparsifier)


def test_a_sparsifier_without_values_is_not_measured():
    with torch.device("meta"):
        model = torch.nn.Linear(8, 4)
    assert "not measured" in sparsify(model, STR())._repr_html_()


def test_a_notebook_without_torch_and_rich_still_shows_a_budget():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['rich'] = None; from softprune import Budget;"
        "assert '342,7' in Budget.load('resnet50/str-90.23')._repr_html_()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
