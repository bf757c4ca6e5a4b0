"""Our runs beside the paper."""

import pytest
from benchmarks.paper.report import contents, paper_page, paper_report
from run_folders import write_run

from softprune.budget.budget import published


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "runs" / "learnt", method="str", density=0.1)
    write_run(tmp_path / "runs" / "pruned", method="gmp", density=0.2)
    return tmp_path / "runs"


def test_two_runs_are_read_and_drawn(runs):
    ours = paper_report([runs]).ours
    names = [column.name for column in ours.table.columns]
    cells = [dict(zip(names, row, strict=True)) for row in ours.table.rows]
    assert [(c["run"], c["top-1 %"], c["sparsity %"], c["weights"], c["FLOPs"]) for c in cells] == [
        ("learnt", "51.00", "90.00", "20", "110"),
        ("pruned", "52.00", "80.00", "40", "220"),
    ]
    numbers = [int(chart.name.split("figure_")[1][:2]) for chart in ours.charts]
    assert numbers == [1, 2, 3, 4, 5, 6, 7]
    frontier = ours.charts[3]
    assert frontier.title.startswith("Ours, like figure 4: Accuracy against sparsity, tiny on made-up")
    assert [(s.x, s.y, s.notes) for s in frontier.series] == [
        ((pytest.approx(0.9),), (pytest.approx(0.51),), ("learnt",)),
        ((pytest.approx(0.8),), (pytest.approx(0.52),), ("pruned",)),
    ]
    assert ours.charts[4].series[0].x == (pytest.approx(110 / 1e6),)


def test_figures_of_the_paper_stay_as_they_are(runs):
    assert paper_report([runs]).charts == paper_report().charts
    assert contents(paper_report([runs]))[0][3] == "1 of our runs' own"
    assert contents(paper_report())[0][3] == "not made"


def test_a_run_on_the_papers_network_is_in_its_figures(tmp_path):
    profile = published("mobilenetv1/str-89.01").profile
    write_run(tmp_path / "mine", method="str", density=0.25, model="mobilenetv1", profile=profile)
    sparsity = next(c for c in paper_report([tmp_path / "mine"]).charts if c.name.startswith("figure_08"))
    assert [s.name for s in sparsity.series] == ["STR", "GMP", "ours: mine"]
    assert set(sparsity.series[-1].y) == {0.75}


def test_networks_are_kept_apart(runs):
    write_run(runs / "other", method="str", density=0.5, model="small")
    names = [chart.name for chart in paper_report([runs]).ours.charts]
    assert len(names) == len(set(names))
    assert {name.split("_figure")[0] for name in names} == {"ours_1", "ours_2"}


def test_hostile_names_stay_text(tmp_path):
    write_run(tmp_path / "x", method="str", density=0.1, model="<script>alert(1)</script>")
    page = paper_page(paper_report([tmp_path / "x"]))
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        paper_report([tmp_path])
