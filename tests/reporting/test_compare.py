"""The comparison: values of charts and tables against the runs, the page, the command, figures by name."""

import json
import math
import re
import subprocess
import sys

import pytest
from outcomes import write_benchmark, write_outcome
from test_cohorts import only, read
from typer.testing import CliRunner

import softprune.reporting
from softprune.cli import app
from softprune.reporting.compare import (
    compare_table,
    comparison_charts,
    comparison_page,
    differences,
    group_table,
    write_comparison,
)
from softprune.reporting.frontier import front, frontier, layer_budgets, macs_frontier, only_cohort, pareto

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def bench(tmp_path):
    return write_benchmark(tmp_path / "bench")


@pytest.fixture
def runs(bench):
    return [run for run in read(bench) if run.model == "tiny"]


def named(chart):
    return {series.name: series for series in chart.series}


def test_the_frontier_has_means_and_deviations_and_the_dense_line(runs):
    series = named(frontier(only_cohort(runs)))
    assert list(series) == ["gmp global", "st3", "str goal", "dense"]
    best = series["str goal"]
    assert best.x == pytest.approx((0.9, 0.98))
    assert best.y == pytest.approx((0.921, 0.901))
    assert best.spread == pytest.approx((0.001, 0.001))
    assert "98 % sparsity, 3 runs" in best.notes[1]
    dense = series["dense"]
    assert dense.faint and dense.y == pytest.approx((0.931, 0.931)) and dense.x == pytest.approx((0.9, 0.98))


def test_the_frontier_of_multiply_adds_reaches_to_the_dense_network(runs):
    chart = macs_frontier(only_cohort(runs))
    series = named(chart)
    assert chart.x.scale == "log"
    assert series["st3"].x == pytest.approx((0.02 * 100_200, 0.1 * 100_200))
    assert series["dense"].x[-1] == 100_200


@pytest.mark.parametrize(
    ("points", "kept"),
    [
        ([], []),
        ([(1, 0.8), (2, 0.7), (3, 0.9), (3, 0.85)], [0, 2]),
        ([(2, 0.7), (1, 0.7)], [1]),
        ([(1, 0.7), (1, 0.7)], [0, 1]),  # equal ones dominate neither
        ([(1, 0.9), (1, 0.8)], [0]),
    ],
)
def test_the_front_is_what_no_other_dominates(points, kept):
    assert front(points) == kept

    def dominated(a):
        return any(b[0] <= a[0] and b[1] >= a[1] and b != a for b in points)

    assert sorted(kept) == [at for at, point in enumerate(points) if not dominated(point)]


def test_the_pareto_chart_marks_the_front(runs):
    series = named(pareto(only_cohort(runs)))
    assert series["not dominated"].y == pytest.approx((0.901, 0.921))
    assert all("not dominated" in note for note in series["str goal"].notes)
    assert not any("not dominated" in note for note in series["gmp global"].notes)


def test_budgets_stand_side_by_side_at_the_level_of_most_methods(runs):
    chart = layer_budgets(only_cohort(runs))
    assert "98 % sparsity" in chart.title
    assert chart.x.categories == ("conv.weight", "fc.weight")
    assert named(chart)["str goal"].y == pytest.approx((0.98, 0.98))


def test_a_method_that_failed_does_not_hide_the_others(tmp_path):
    for number, accuracy in enumerate((0.90, 0.91, 0.92, 0.93, 0.2)):
        write_outcome(tmp_path / str(number), level=0.9 + number / 100, accuracy=accuracy)
    chart = frontier(only_cohort(read(tmp_path)))
    assert chart.y.low == pytest.approx(0.84)  # 0.93 - 3 * (0.93 - 0.90)
    assert "Below the axis: str goal, 94 % sparsity: 20.00%" in chart.caption
    assert 0.2 in chart.series[0].y


def test_the_table_has_the_best_of_every_level(runs, bench):
    from softprune.reporting.cohorts import cohorts

    table = compare_table(cohorts(read(bench))[0])
    assert [column.name for column in table.columns] == ["method", "90 %", "98 %"]
    cells = {label: row for label, *row in table.rows}
    assert cells["str goal"][1].text == "90.10 \u00b1 0.10 % (n=3)"
    assert cells["str goal"][1].more == "2,004 MACs"
    assert [cell.best for cell in cells["str goal"]] == [True, True]
    assert not any(cell.best for label in ("st3", "gmp global") for cell in cells[label])
    assert "93.10 \u00b1 0.10 %" in table.caption


def test_differences_are_to_str_unless_said_otherwise(bench):
    from softprune.reporting.cohorts import cohorts

    cohort = cohorts(read(bench))[0]
    table = differences(cohort)
    cells = {label: row for label, *row in table.rows}
    assert "str goal" not in cells
    assert cells["gmp global"][0].text == "-2.00 \u00b1 0.00"
    assert cells["gmp global"][0].more == "3 pairs"
    assert [label for label, *_ in differences(cohort, to="st3").rows] == ["gmp global", "str goal"]
    assert differences(only(write_outcome(bench.parent / "alone"))) is None


def test_the_long_table_has_every_group(bench):
    from softprune.reporting.cohorts import cohorts

    table = group_table(cohorts(read(bench))[0])
    rows = {(row[0], row[1]): row for row in table.rows}
    assert len(rows) == 7
    row = rows["str goal", "98 % sparsity"]
    assert row[2] == 3 and row[3] == pytest.approx(0.98) and row[7] == pytest.approx(24) and row[8] == "yes"
    assert rows["dense", ""][3] is None


def test_the_page_is_complete_and_keeps_kinds_apart(bench):
    page = comparison_page(read(bench))
    assert "tiny on made-up" in page and "big on made-up" in page
    assert "The runs are of 2 kinds" in page
    assert "going-on" in page and "it is not finished" in page
    assert "At 98 % sparsity str goal has the highest mean of 3 methods, 90.10%; st3 follows with 89.10%" in page
    assert "and the dense network has 93.10%." in page
    for label in ("str goal", "gmp global", "st3", "dense"):
        assert f'data-group-toggle="{label}"' in page
    assert not re.search(r"https?://|<link(?! rel=\"icon\" href=\"data:,\")|src=", page)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_names_stay_text(tmp_path):
    for method in ("str", f"{HOSTILE}"):
        write_outcome(tmp_path / method.replace("/", "_"), method=method, model={"name": f"{HOSTILE}\"'&"})
    write_outcome(tmp_path / "going <b>on</b>", seed=3, finished=False, model={"name": HOSTILE})
    page = comparison_page(read(tmp_path))
    assert "<script>alert" not in page and "<b>on" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_files_are_written_or_nothing(bench, tmp_path):
    out, figures = tmp_path / "compare.html", tmp_path / "figures"
    written = write_comparison([bench], out, figures=figures)
    assert written[0] == out and out.stat().st_size > 20_000
    assert {path.name for path in figures.iterdir()} == {
        f"{name}{suffix}.svg"
        for name in ("frontier", "macs_frontier", "pareto", "layer_budgets")
        for suffix in ("", "-2")
    }
    for bad, match in ((tmp_path, "is a folder"), (tmp_path / "no" / "x.html", "there is no folder")):
        with pytest.raises(ValueError, match=match):
            write_comparison([bench], bad)
    with pytest.raises(ValueError, match="no run has the label 'nobody'; the labels are gmp global, st3, str goal"):
        write_comparison([bench], tmp_path / "other.html", reference="nobody")
    assert not (tmp_path / "other.html").exists()


def test_nothing_finished_is_said(tmp_path):
    write_outcome(tmp_path / "a", finished=False)
    with pytest.raises(ValueError, match="none of the 1 runs is finished"):
        write_comparison([tmp_path], tmp_path / "compare.html")
    with pytest.raises(ValueError, match="no run is finished"):
        frontier(only_cohort(read(tmp_path)))


def test_one_chart_refuses_runs_of_two_kinds(bench):
    with pytest.raises(ValueError, match="2 kinds"):
        frontier(only_cohort(read(bench)))
    assert len(comparison_charts(read(bench))) == 8


def test_dense_runs_alone_make_a_page(tmp_path):
    write_outcome(tmp_path / "dense", method=None)
    page = comparison_page(read(tmp_path))
    assert "0 runs of 0 methods" in page and "1 dense run" in page


def test_a_run_that_names_no_goal_and_no_numbers_makes_a_page(tmp_path):
    write_outcome(tmp_path / "a", goal=None)
    (tmp_path / "a" / "budget.json").unlink()
    (tmp_path / "a" / "result.json").write_text(json.dumps({"last": {"accuracy": 0.5}}))
    assert "50.00 %" in comparison_page(read(tmp_path))


def test_the_command_writes_the_page(bench, tmp_path):
    out = tmp_path / "c.html"
    result = CliRunner().invoke(app, ["compare", str(bench), "-o", str(out), "--reference", "st3"])
    assert result.exit_code == 0, result.output
    assert "c.html" in result.output.replace("\n", "")
    assert "minus that of st3" in out.read_text()


def test_figures_by_name(bench, runs):
    made = softprune.reporting.figure("frontier", runs)
    assert [series.name for series in made.chart.series] == ["gmp global", "st3", "str goal", "dense"]
    one = softprune.reporting.figure("layer_sparsity", bench / "str-0.9-0")
    assert one.chart.y.label == "sparsity"
    both = softprune.reporting.figure("layer_budgets", [str(bench / "str-0.9-0"), bench / "gmp-0.9-0"])
    assert [series.name for series in both.chart.series] == ["gmp global", "str goal"]
    assert made._repr_svg_() == made.svg and made.svg.startswith("<svg ")
    with pytest.raises(ValueError, match=r"no figure 'fronteer'; the figures are training_loss, .*, frontier"):
        softprune.reporting.figure("fronteer", bench)
    with pytest.raises(ValueError, match="at least one run"):
        softprune.reporting.figure("frontier", [])
    with pytest.raises(AttributeError, match="no attribute 'drawing'"):
        softprune.reporting.drawing  # noqa: B018


def test_all_values_of_charts_are_numbers_or_gaps(bench):
    for chart in comparison_charts(read(bench)):
        for series in chart.series:
            assert len(series.x) == len(series.y)
            assert all(math.isfinite(x) for x in series.x)


def test_comparing_needs_no_torch(bench, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path;"
        "from softprune.reporting.compare import write_comparison;"
        f"write_comparison([Path({str(bench)!r})], Path({str(tmp_path / 'c.html')!r}));"
        "assert 'matplotlib' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
