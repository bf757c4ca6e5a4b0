"""Pages: complete in one file, escaped, with the numbers of the run."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from softprune.reporting.page import POLICY, SCRIPTS, STYLES, render
from softprune.reporting.report import (
    cards,
    checkpoint,
    dense_bytes,
    headline,
    load,
    packed_bytes,
    report_page,
    size_text,
    verdict,
    write_report,
)
from softprune.reporting.run import read_run
from softprune.reporting.tables import Column, Table, shown, table_html

MakeRun = Callable[..., Path]
HOSTILE = "<script>alert(1)</script>"


class Page(HTMLParser):
    """What a browser would make of a page: its tags with their attributes, its ids, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def page(make_run: MakeRun) -> str:
    return report_page([read_run(make_run())])


def test_a_page_loads_nothing(page: str) -> None:
    seen = Page(page)
    for tag, attributes in seen.tags:
        assert tag not in ("img", "iframe", "object", "embed", "base", "form", "video", "audio")
        assert "src" not in attributes
        if "href" in attributes:
            assert attributes["href"].startswith("#") or attributes["href"] == "data:,"
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    policies = [a["content"] for t, a in seen.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [POLICY]
    assert "default-src 'none'" in POLICY and "connect-src" not in POLICY


def test_ids_are_there_once(make_run: MakeRun) -> None:
    runs = [read_run(make_run(name)) for name in ("a", "b")]
    for shown_runs in (runs[:1], runs):
        ids = [attributes["id"] for _, attributes in Page(report_page(shown_runs)).tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        for _, attributes in Page(report_page(shown_runs)).tags:
            for name in ("aria-labelledby", "aria-controls"):
                assert all(part in ids for part in attributes.get(name, "").split())


def test_the_summary_has_the_numbers_of_the_run(page: str) -> None:
    text = Page(page).text
    for words in ("90.00 %", "120", "of 1,200", "2,100", "of 100,200 per input, 2.10 %", "met to the weight", "tiny"):
        assert words in text
    assert "90.00 % of its weights are zero, and 120 of 1,200 are left. Its test accuracy is 90.00 %." in text


def test_config_environment_and_command_are_there(page: str, make_run: MakeRun) -> None:
    text = Page(page).text
    assert "softprune train 'a b'" in text  # as it was started
    assert re.search(r"softprune train \S+/run/config.yaml --out runs/run-again", text)
    assert "sparsity: 0.9" in text


def test_hostile_names_stay_text(make_run: MakeRun) -> None:
    folder = make_run(
        "h", tensors=(HOSTILE, "fc.weight"), model={"name": HOSTILE}, data={"name": "</style>" + HOSTILE}, note=HOSTILE
    )
    (folder / "environment.json").write_text(
        '{"git": "</script><script>alert(1)</script>", "command": ["<b>", "</pre>"]}'
    )
    for runs in ([read_run(folder)], [read_run(folder), read_run(make_run("other"))]):
        page = report_page(runs)
        seen = Page(page)
        assert "<script>alert" not in page
        scripts = [attributes for tag, attributes in seen.tags if tag == "script"]
        assert all(a == {} or a["type"] == "application/json" for a in scripts)
        assert sum(a == {} for a in scripts) == 1
        assert HOSTILE in seen.text
        assert not any(tag == "b" and a for tag, a in seen.tags)


def test_problems_are_told(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "layers.csv").write_text("broken")
    text = Page(report_page([read_run(folder)])).text
    assert "layers.csv ends in the middle of a line" in text


def test_infinite_numbers_have_a_page(make_run: MakeRun) -> None:
    folder = make_run()
    with (folder / "layers.csv").open("a") as file:
        file.write("3,16,conv.weight,1e999,inf,inf,nan,-inf,inf,inf\n3,16,fc.weight,0,-1e308,1e308,0,0,0,1e308\n")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "epoch", "epoch": 1e308, "sparsity": -Infinity, "params": 1e308, "macs": NaN}\n')
    page = report_page([read_run(folder)])
    assert "NaN" not in page.split("<script>")[0] and "Infinity" not in page.split("<script>")[0]


def test_a_run_that_has_only_begun_and_a_dense_one_have_pages(make_run: MakeRun, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.yaml").write_text("method: {name: str}\n")
    text = Page(report_page([read_run(begun)])).text
    assert "has logged nothing yet" in text and "There is nothing about layers" in text
    dense = make_run("dense", name="dense", goal=None)
    (dense / "budget.json").unlink()
    assert "left dense" in Page(report_page([read_run(dense)])).text


def test_several_runs_are_in_one_table_with_buttons(make_run: MakeRun) -> None:
    runs = [read_run(make_run("a")), read_run(make_run("b", name="gmp", finished=False))]
    seen = Page(report_page(runs))
    assert [a["data-group-toggle"] for _, a in seen.tags if "data-group-toggle" in a] == ["a", "b"]
    assert "gmp global" in seen.text and "not finished" in seen.text
    rows = [a["data-group"] for tag, a in seen.tags if tag == "tr" and "data-group" in a]
    assert rows == ["a", "b", "a", "a", "b", "b"]  # the runs, then two layers of each


def test_runs_of_one_name_are_told_apart(make_run: MakeRun) -> None:
    seen = Page(report_page([read_run(make_run("x/run")), read_run(make_run("y/run"))]))
    buttons = [a["data-group-toggle"] for _, a in seen.tags if "data-group-toggle" in a]
    groups = {a["data-group"] for _, a in seen.tags if "data-group" in a and not a["data-group"].startswith("goal")}
    assert len(set(buttons)) == 2 and groups == set(buttons)


def test_a_served_page_asks_for_news_until_the_run_is_over(make_run: MakeRun) -> None:
    going, over = read_run(make_run("going", finished=False)), read_run(make_run("over"))
    follows = {a["data-follow"] for _, a in Page(report_page([going], follow=5)).tags if "data-follow" in a}
    assert follows == {"5"} and "connect-src 'self'" in report_page([going], follow=5)
    assert {a["data-follow"] for _, a in Page(report_page([over], follow=5)).tags if "data-follow" in a} == {"0"}


def test_the_file_is_written_whole_with_budgets_beside(make_run: MakeRun, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert write_report([make_run()], out, against=["uniform", "erk"]) == [out]
    text = Page(out.read_text(encoding="utf-8")).text
    assert "sparsity, uniform (90.00 %)" in text and "sparsity, erk (90.00 %)" in text
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("out", ["nowhere/report.html", "."])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path, out: str) -> None:
    with pytest.raises(ValueError, match="name an HTML file"):
        write_report([tmp_path / "no-run"], tmp_path / out)


def test_a_wrong_budget_leaves_no_file(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another network"):
        write_report([make_run()], tmp_path / "r.html", against=["resnet50/uniform-90"])
    assert not (tmp_path / "r.html").exists()


def test_figures_are_written_beside(make_run: MakeRun, tmp_path: Path) -> None:
    written = write_report([make_run()], tmp_path / "r.html", figures=tmp_path / "figures")
    assert tmp_path / "figures" / "layer_sparsity.svg" in written
    assert all(path.stat().st_size for path in written)


def test_sizes_are_counted_by_hand(make_run: MakeRun) -> None:
    folder = make_run()
    run = read_run(folder)
    assert dense_bytes(run) == 4 * (1200 + 30)
    # conv: 20 values and 20 positions; fc: 100 values and 200 bits; 30 other parameters
    assert packed_bytes(run) == (80 + 40) + (400 + 25) + 120
    assert checkpoint(run) is None
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-000000012.safetensors").write_bytes(b"x" * 1500)
    assert checkpoint(read_run(folder)) is not None
    assert any(card.value == "1.5 kB" for card in cards(read_run(folder)))
    assert [size_text(n) for n in (999, 1000, 1_500_000, 2_000_000_000)] == ["999 bytes", "1 kB", "1.5 MB", "2 GB"]


def test_a_result_cannot_name_a_file_elsewhere(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    (tmp_path / "secret").write_text("x")
    (folder / "result.json").write_text('{"last": {"checkpoint": "../../secret"}}')
    assert checkpoint(read_run(folder)) is None


def test_latency_is_shown_where_it_was_measured(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "latency.json").write_text('{"dense_ms": 12.5, "sparse_ms": "3.25", "device": "cpu", "bad_ms": null}')
    shown_cards = {card.name: card.value for card in cards(read_run(folder))}
    assert shown_cards["Latency: dense"] == "12.5 ms" and shown_cards["Latency: sparse"] == "3.25 ms"
    assert "Latency: bad" not in shown_cards


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        ({"sparsity": 0.9}, "met to the weight"),
        ({"params": 119}, "1 weight more than 119"),
        ({"flops": 2200}, "100 multiply-adds fewer than 2,200"),
        ({"sparsity": 0.9, "scope": "all"}, ""),
        (None, ""),
    ],
)
def test_the_goal_is_judged_in_its_own_unit(make_run: MakeRun, goal: object, words: str) -> None:
    assert verdict(read_run(make_run(goal=goal))) == words


def test_an_unfinished_run_says_how_far_it_is(make_run: MakeRun) -> None:
    assert headline(read_run(make_run(finished=False))).endswith("The run is not finished: epoch 3 of 9.")


def test_tables_keep_exact_values_and_escape(make_run: MakeRun) -> None:
    table = Table(
        "t",
        "All.",
        (Column("name"), Column("share", "percent")),
        ((HOSTILE, 0.123456), ("b", None)),
        groups=("<g>", ""),
    )
    text = table_html(table)
    assert (
        "<script>" not in text
        and 'data-v="0.123456"' in text
        and "12.35 %" in text
        and 'data-group="&lt;g&gt;"' in text
    )
    assert [shown(v, "number") for v in (float("nan"), float("inf"), 1e-9)] == ["", "inf", "1e-09"]


def test_styles_and_scripts_are_all_in_the_package(page: str) -> None:
    empty = render("base.html", title="x")
    for name in (*STYLES, *SCRIPTS):
        from importlib import resources

        text = (resources.files("softprune.reporting") / "templates" / name).read_text(encoding="utf-8")
        assert text in empty and text in page
        assert "</script" not in text and "</style" not in text


def test_runs_and_budgets_are_loaded_together(make_run: MakeRun) -> None:
    runs, budgets = load([make_run().parent], ["uniform"])
    assert [run.name for run in runs] == ["run"] and len(budgets) == 1
