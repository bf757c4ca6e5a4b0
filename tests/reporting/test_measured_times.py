"""Measured times in reports: what softprune bench wrote, and files of unknown origin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from softprune.reporting.report import cards, report_page
from softprune.reporting.run import read_run, read_times

MakeRun = Callable[..., Path]


def measured(**changes: Any) -> dict[str, Any]:
    return {
        "format": "softprune-bench",
        "version": 1,
        "processor": "A processor",
        "level": "avx2",
        "batch": 1,
        "threads": 2,
        "engines": {
            "onnxruntime": {"seconds": 0.006, "median": 0.007, "bursts": 9, "dropped": 1},
            "softprune": {"seconds": 0.002, "median": 0.0025, "bursts": 10, "dropped": 0},
        },
        "ratios": {"onnxruntime": {"median": 2.9, "low": 2.8, "high": 3.1, "best": 3.0}},
        "share of the roofline": 0.5,
        "layers": [
            {"path": "conv", "what": "planes", "microseconds": 1.5},
            {"path": "conv", "what": "conv2d", "microseconds": 10.0},
            {"path": "fc", "what": "linear", "microseconds": 2.25},
        ],
        **changes,
    }


def read(tmp_path: Path, text: str | bytes) -> tuple[Any, list[str]]:
    path = tmp_path / "latency.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    problems: list[str] = []
    return read_times(path, problems), problems


def test_a_report_shows_standings_ratio_and_layers(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "latency.json").write_text(json.dumps(measured()))
    run = read_run(folder)
    (card,) = (card for card in cards(run) if card.name == "Time of a call")
    assert (card.value, card.more) == ("2 ms", "3.00 times as fast as onnxruntime")
    page = report_page([run])
    assert not run.problems and "A processor, avx2, batch 1, threads 2" in page
    assert 'id="latency"' in page and ">microseconds<" in page and ">11.5<" in page and ">2.25<" in page
    assert page.index(">softprune<") < page.index(">onnxruntime<")


def test_a_report_without_times_has_no_column_for_them(make_run: MakeRun) -> None:
    page = report_page([read_run(make_run())])
    assert ">microseconds<" not in page and 'id="latency"' not in page


def test_runs_with_and_without_times_share_a_table(make_run: MakeRun) -> None:
    timed, other = make_run("a"), make_run("b")
    (timed / "latency.json").write_text(json.dumps(measured(layers=None)))
    assert ">microseconds<" not in report_page([read_run(timed), read_run(other)])
    (timed / "latency.json").write_text(json.dumps(measured()))
    page = report_page([read_run(timed), read_run(other)])
    assert page.count(">11.5<") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps(measured())[:200], "cut off"),
        (b"\xff\xfe\x00", "no UTF-8"),
        ("[1, 2]", "where a mapping is needed"),
        ("[" * 100_000, "cannot be understood"),
        ("{}", "holds no times"),
        (json.dumps(measured(version=7)), "has version 7; this release reads 1"),
        (json.dumps(measured(version="x" * 9999)), "..."),
        (json.dumps(measured(engines=[1])), "no time of softprune"),
        (json.dumps(measured(engines={"softprune": {"seconds": -1}})), "1 engines have no time"),
        (json.dumps(measured(engines={"softprune": {"seconds": float("nan")}})), "no time of softprune"),
        (json.dumps(measured(engines={"onnxruntime": {"seconds": 1}})), "no time of softprune"),
    ],
)
def test_files_that_cannot_be_used_end_in_a_sentence(tmp_path: Path, text: str | bytes, words: str) -> None:
    found, problems = read(tmp_path, text)
    assert found is None and any(words in problem for problem in problems)
    assert max(map(len, problems)) < 500


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": {"conv": 1}},
        {"layers": [None, 3, {"path": 5, "microseconds": 1}, {"path": "conv", "microseconds": "x"}]},
        {"layers": [{"path": "conv", "microseconds": 10**400}]},
    ],
)
def test_bad_layers_are_left_out(make_run: MakeRun, changes: dict[str, Any]) -> None:
    folder = make_run()
    (folder / "latency.json").write_text(json.dumps(measured(**changes)))
    run = read_run(folder)
    assert any("layers have no path or no time" in problem for problem in run.problems)
    assert run.latency is not None and not run.latency.microseconds
    assert "layers have no path" in report_page([run])


def test_strange_values_do_not_break_the_page(make_run: MakeRun) -> None:
    folder = make_run()
    odd = measured(
        processor=["x"],
        level="<script>alert(1)</script>",
        batch=None,
        ratios=7,
        engines={"softprune": {"seconds": 1e-3, "median": "y", "bursts": {}}, "<b>": {"seconds": 1e300}},
    )
    (folder / "latency.json").write_text(json.dumps(odd))
    page = report_page([read_run(folder)])
    assert "<script>alert(1)" not in page and "&lt;script&gt;alert(1)" in page and "&lt;b&gt;" in page


def test_a_folder_in_its_place_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "latency.json").mkdir()
    problems: list[str] = []
    assert read_times(tmp_path / "latency.json", problems) is None and "cannot be read" in problems[0]
