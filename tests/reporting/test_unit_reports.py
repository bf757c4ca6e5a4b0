"""Reports of runs that prune units speak of filters, blocks and directions, and not of weights."""

import io
import re
from html import unescape
from pathlib import Path

import pytest
from folders import write_run
from rich.console import Console
from unit_runs import write_unit_run

from softprune.cli.report import frame
from softprune.reporting.charts import layer_macs, layer_sparsity
from softprune.reporting.compare import comparison_page
from softprune.reporting.labels import configured_units
from softprune.reporting.live_run import WatchedRun
from softprune.reporting.report import cards, dense_bytes, headline, packed_bytes, report_page, verdict
from softprune.reporting.run import read_outcome, read_run
from softprune.reporting.tables import layer_table, run_table


def words(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)))


def test_the_summary_counts_directions_and_the_parameters_that_are_stored(tmp_path: Path) -> None:
    run = read_run(write_unit_run(tmp_path / "run"))
    assert not run.problems
    assert "80.90 % of its directions are zero, and 17 of 89 are left." in headline(run)
    assert "Without them it has 2,374 parameters." in headline(run)
    shown = {card.name: card for card in cards(run)}
    assert shown["Directions left"].value == "17"
    assert shown["Directions left"].more == "of 89, 19.10 %"
    assert shown["Parameters stored"].value == "2,374"
    assert shown["Target"].value == "rank w 9, u 8"
    assert not {"Packed size", "Weights left", "Multiply-adds left"} & set(shown)


def test_sizes_of_single_weights_are_left_out(tmp_path: Path) -> None:
    run = read_run(write_unit_run(tmp_path / "run", units="filter", stored=None))
    assert dense_bytes(run) is None
    assert packed_bytes(run) is None
    assert run.macs is None


@pytest.mark.parametrize(("units", "noun"), [("rank", "directions"), ("filter", "filters"), ("block 4x8", "blocks")])
def test_the_page_speaks_of_units_and_nowhere_of_weights_left(tmp_path: Path, units: str, noun: str) -> None:
    text = words(report_page([read_run(write_unit_run(tmp_path / "run", units=units))]))
    assert f"Share of all managed {noun} that are zero." in text
    assert f"Importances of the {noun} of a layer that are smaller than its threshold are zero." in text
    assert f"{noun} left" in text
    assert not re.search(r"weights left|managed weights that|Packed size|MACs left", text)


def test_the_table_of_layers_has_no_multiply_adds_where_nobody_knows_them(tmp_path: Path) -> None:
    table = layer_table([read_run(write_unit_run(tmp_path / "run"))])
    assert [column.name for column in table.columns] == [
        "layer", "shape", "directions", "directions left", "sparsity", "threshold", "s", "L1 norm",
    ]  # fmt: skip
    assert table.rows[1] == ("rnn.cell.u.m", "80", 80, 8, 0.9, 0.5, -1.0, 3.5)


def test_runs_of_weights_and_of_units_stand_side_by_side(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / "weights")), read_run(write_unit_run(tmp_path / "ranks"))]
    table = run_table(runs)
    assert [column.name for column in table.columns][6:9] == ["units left", "parameters stored", "MACs left"]
    assert [row[6:9] for row in table.rows] == [(120, None, 2100), (17, 2374, None)]
    layers = layer_table(runs)
    place = [column.name for column in layers.columns].index("MACs")
    assert [row[place] for row in layers.rows] == [100_000, 200, None, None]


def test_charts_of_layers_say_what_is_kept(tmp_path: Path) -> None:
    runs = [read_run(write_unit_run(tmp_path / "run", units="filter"))]
    assert layer_sparsity(runs).series[0].notes == ("9 of 9 filters are left", "8 of 80 filters are left")
    assert layer_macs(runs).series[0].x == ()


@pytest.mark.parametrize(
    ("config", "stored", "text"),
    [
        ({"goal": {"sparsity": 0.8}}, None, "1 direction fewer than 18"),
        ({"goal": {"params": 2400}}, 2374, "26 parameters fewer than 2,400"),
        ({"goal": {"params": 2400}}, None, ""),
    ],
)
def test_the_verdict_is_in_what_the_goal_counts(tmp_path: Path, config: dict, stored: int | None, text: str) -> None:
    assert verdict(read_run(write_unit_run(tmp_path / "run", stored=stored, **config))) == text


def test_comparisons_name_the_units_and_keep_ranks_as_levels(tmp_path: Path) -> None:
    places = [("a", {"w": 9, "u": 8}), ("b", {"w": 4, "u": 4})]
    runs = [read_outcome(write_unit_run(tmp_path / name, goal={"rank": rank})) for name, rank in places]
    assert {run.label for run in runs} == {"str goal, directions"}
    text = words(comparison_page(runs))
    assert "managed directions left, mean over seeds" in comparison_page(runs)
    assert "rank w 9, u 8" in text and "rank w 4, u 4" in text
    assert "goal.rank" not in text and "units.kind" not in text


def test_an_old_folder_counts_weights(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    assert run.units == "weight"
    assert "90.00 % of its weights are zero" in headline(run)


@pytest.mark.parametrize(
    ("given", "units"),
    [
        ("filter", "filter"), ({"block": [4, 8]}, "block 4x8"), ({"kind": "block", "block": [4, 8]}, "block 4x8"),
        ({"kind": "rank", "block": None}, "rank"), (None, "weight"), ("nonsense", "weight"), ({"block": [0]}, "weight"),
    ],
)  # fmt: skip
def test_a_configuration_says_what_is_counted(given: object, units: str) -> None:
    assert configured_units({} if given is None else {"units": given}) == units


def test_the_live_view_shows_units(tmp_path: Path) -> None:
    run = WatchedRun(write_unit_run(tmp_path / "run"))
    run.look()
    console = Console(file=io.StringIO(), width=120)
    console.print(frame(run))
    picture = console.file.getvalue()
    assert "goal: rank w 9, u 8, directions" in picture
    assert "rnn.cell.u.m" in picture and "MACs" not in picture
