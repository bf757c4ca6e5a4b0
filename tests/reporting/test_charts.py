"""Charts of runs: their values are those of the files."""

import math
from pathlib import Path

import pytest
from folders import DENSITIES, PROFILE, TENSORS, write_run

from softprune.budget.budget import Budget
from softprune.reporting.charts import CHARTS, MOST_LINES, layer_macs, layer_sparsity, tells_something, thresholds
from softprune.reporting.report import reference_budgets
from softprune.reporting.run import Run, read_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read_run(write_run(tmp_path / "a"))


def test_every_chart_has_its_own_name(run: Run) -> None:
    for name, make in CHARTS.items():
        chart = make([run])
        assert chart.name == name
        assert chart.title and chart.caption.endswith(".")
        assert all(len(series.x) == len(series.y) for series in chart.series)


def test_curves_are_the_rows_of_the_metrics(run: Run) -> None:
    (loss,) = CHARTS["training_loss"]([run]).series
    assert (loss.x, loss.y) == ((2, 6, 10), (2.0, 1.5, 1.0))
    (accuracy,) = CHARTS["accuracy"]([run]).series
    assert accuracy.x == (1, 2, 3) and accuracy.y == pytest.approx((0.5, 0.7, 0.9))
    sparsity, goal = CHARTS["sparsity"]([run]).series
    # (0.5 * 1000 + 0.2 * 200) / 1200 after the second epoch
    assert sparsity.y == pytest.approx((0.0, 0.45, 0.9))
    assert goal.faint and set(goal.y) == {0.9} and "90 %" in goal.name


def test_thresholds_are_those_of_every_layer(run: Run) -> None:
    chart = CHARTS["thresholds"]([run])
    assert [series.name for series in chart.series] == list(TENSORS)
    assert chart.series[0].y == pytest.approx((0.0, 0.01, 0.02))
    (last,) = CHARTS["final_thresholds"]([run]).series
    assert last.y == pytest.approx((0.02, 0.02)) and last.mark == "bars"


def test_layers_are_in_the_order_of_the_network_with_exact_notes(run: Run) -> None:
    chart = layer_sparsity([run])
    assert chart.x.categories == TENSORS
    assert chart.series[0].y == pytest.approx((0.98, 0.5))
    assert chart.series[0].notes == ("20 of 1,000 weights are left", "100 of 200 weights are left")
    macs = layer_macs([run]).series[0]
    assert macs.y == (2000, 100)
    assert macs.notes == ("2.00 % of 100,000", "50.00 % of 200")


def test_other_budgets_stand_beside_the_run(run: Run, tmp_path: Path) -> None:
    mine = Budget({"fc.weight": 0.25, "conv.weight": 0.75}).save(tmp_path / "mine.json")
    others = reference_budgets(["uniform", str(mine)], [run])
    assert [budget.source for budget in others] == ["uniform (90.00 %)", "mine.json"]
    own, uniform, given = layer_sparsity([run], against=others).series
    assert own.y == pytest.approx((0.98, 0.5))
    assert uniform.y == pytest.approx((0.9, 0.9))
    assert given.y == pytest.approx((0.25, 0.75))
    assert layer_macs([run], against=others).series[2].y == pytest.approx((75_000, 50))


def test_the_same_network_under_other_names_is_recognised_by_its_sizes(run: Run, tmp_path: Path) -> None:
    renamed = read_run(write_run(tmp_path / "b", tensors=("first", "second")))
    (other,) = reference_budgets([str(renamed.path)], [run])
    assert dict(other) == pytest.approx(dict(zip(TENSORS, DENSITIES[-1], strict=True)))


def test_a_budget_of_another_network_is_refused_by_name(run: Run) -> None:
    with pytest.raises(ValueError, match=r"resnet50/str-90\.23 is of another network: it has 54 tensors, the run 2"):
        reference_budgets(["resnet50/str-90.23"], [run])


def test_budgets_need_a_run_that_knows_its_layers(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "budget.json").unlink()
    with pytest.raises(ValueError, match=r"no budget\.json tells the layers"):
        reference_budgets(["uniform"], [read_run(folder)])


def test_runs_keep_their_place_in_all_charts(run: Run, tmp_path: Path) -> None:
    dense = write_run(tmp_path / "dense", name="dense", goal=None)
    (dense / "layers.csv").write_text("epoch,step,name,s,alpha,density,P,l1_active,balance,macs\n")
    (dense / "budget.json").unlink()
    for name in ("accuracy", "layer_sparsity", "layer_macs", "final_thresholds"):
        first, second, *_ = CHARTS[name]([read_run(dense), run]).series
        assert (first.name, second.name) == ("dense", "a")
        assert second.x and second.mark == "line"


def test_two_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / part / "run")) for part in ("one", "two")]
    names = [series.name for series in CHARTS["accuracy"](runs).series]
    assert len(set(names)) == 2 and all(name.endswith("run") for name in names)


def test_of_very_many_layers_some_are_drawn_over_time_and_all_at_the_end(run: Run) -> None:
    from dataclasses import replace

    many = replace(run, layers={f"layer{i}": run.layers["fc.weight"] for i in range(1000)}, budget=None)
    chart = thresholds([many])
    assert len(chart.series) == MOST_LINES
    assert (chart.series[0].name, chart.series[-1].name) == ("layer0", "layer999")
    assert "Some layers" in chart.caption
    assert len(layer_sparsity([many]).series[0].y) == 1000


def test_what_tells_nothing_is_not_shown(run: Run, tmp_path: Path) -> None:
    assert all(tells_something(make([run])) for make in CHARTS.values())
    once = read_run(write_run(tmp_path / "once", epochs=1))
    shown = {name for name, make in CHARTS.items() if tells_something(make([once]))}
    assert shown == {"layer_sparsity", "layer_macs"}  # thresholds of the first epoch are all 0


def test_a_value_that_is_missing_is_a_gap(run: Run) -> None:
    from dataclasses import replace

    part = replace(run, layers={"fc.weight": run.layers["fc.weight"]})
    chart = layer_sparsity([run, part])
    assert chart.x.categories == TENSORS
    assert math.isnan(chart.series[1].y[0]) and chart.series[1].y[1] == 0.5
    assert PROFILE.names == TENSORS
