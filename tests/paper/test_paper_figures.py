"""The figures have the printed values, and ours where they are recomputed."""

import math

import pytest
from benchmarks.paper.figures import (
    METHODS,
    accuracy_against_macs,
    accuracy_against_sparsity,
    layer_macs,
    layer_sparsity,
    thresholds,
)
from benchmarks.paper.printed import published_table

from softprune.budget.budget import Budget, published


def series_of(chart):
    return {series.name: series for series in chart.series}


def test_figure_4_has_every_row_of_table_1():
    chart = accuracy_against_sparsity()
    assert chart.title.startswith("Figure 4.")
    points = sum(len(s.x) for s in chart.series if not s.faint)
    assert points == len(published_table(1).rows) - 1  # all but the dense network, which is the faint line
    assert [s.name for s in chart.series] == [*METHODS, "dense"]
    gmp = series_of(chart)["GMP"]
    assert gmp.x == pytest.approx((0.8, 0.9, 0.95, 0.98, 0.99))
    assert gmp.y == pytest.approx((0.756, 0.7391, 0.7059, 0.579, 0.4478))
    assert series_of(chart)["dense"].y == pytest.approx((0.7701, 0.7701)) and series_of(chart)["dense"].faint


def test_figure_5_is_at_recomputed_flops_and_tells_the_printed_ones():
    found = series_of(accuracy_against_macs())
    erk = found["RigL + ERK"]
    assert [round(x) for x in erk.x] == [348, 498, 989, 1692]
    assert erk.notes[0] == "printed ~500M, ours 348.4M, at 96.50 % sparsity"
    # SNFS at 80 % has no FLOPs; DSR's are as printed.
    assert (len(found["SNFS"].x), found["DSR"].x) == (1, (1230.0,))
    assert found["DSR"].notes[0].endswith("first layer dense, last layer dense")


@pytest.mark.parametrize(("network", "figure", "layers"), [("resnet50", 6, 54), ("mobilenetv1", 8, 28)])
def test_layers(network, figure, layers):
    sparsity, macs = layer_sparsity(network), layer_macs(network)
    assert (sparsity.title[:9], macs.title[:9]) == (f"Figure {figure}.", f"Figure {figure + 1}.")
    assert len(sparsity.x.categories) == layers
    for chart in (sparsity, macs):
        assert all(len(s.x) == len(s.y) == layers for s in chart.series)
    # The layers and the pool together are the whole.
    budget = published("resnet50/str-90.23" if network == "resnet50" else "mobilenetv1/str-89.01")
    assert math.fsum(macs.series[0].y) * 1e6 == pytest.approx(budget.macs(pool=False), abs=layers)


def test_printed_layers_of_figure_6():
    # Table 7: conv1 and fc of STR, layer1.0.conv1 of ERK, which is dense.
    found = series_of(layer_sparsity("resnet50"))
    assert (found["STR"].y[0], found["STR"].y[-1], found["ERK"].y[1]) == (0.598, 0.645, 0.0)


def test_names_of_mobilenet_are_those_of_the_paper():
    names = layer_sparsity("mobilenetv1").x.categories
    assert (names[0], names[1], names[2], names[25], names[27]) == ("1", "2 dw", "3", "26 dw", "28 fc")


def test_other_budgets_are_drawn_with_them():
    learnt = published("mobilenetv1/str-89.01")
    other = Budget(dict.fromkeys(learnt, 0.5), learnt.profile)
    series = layer_sparsity("mobilenetv1", {"ours: half": other}).series[-1]
    assert series.name == "ours: half" and set(series.y) == {0.5}


def test_figure_10_by_hand():
    found = series_of(thresholds())
    soft = dict(zip(found["soft"].x, found["soft"].y, strict=True))
    assert (soft[-3.0], soft[-2.0], soft[0.5], soft[2.5], soft[5.0]) == (-1.0, 0.0, 0.0, 0.5, 3.0)
    hard = [(x, y) for x, y in zip(found["hard"].x, found["hard"].y, strict=True) if x in (-3.0, -2.0, 0.5, 2.0, 2.5)]
    ends = [y for x, y in hard if abs(x) == 2.0 and math.isfinite(y)]
    assert (dict(hard)[-3.0], dict(hard)[0.5], dict(hard)[2.5]) == (-3.0, 0.0, 2.5)
    # At the threshold the line ends, and begins again at 0.
    assert sorted(ends) == [-2.0, 0.0, 0.0, 2.0]
    assert sum(math.isnan(y) for y in found["hard"].y) == 2
