"""The page is one file that needs nothing, and the command writes what it is asked for."""

import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from benchmarks.paper.__main__ import app
from benchmarks.paper.report import paper_page, paper_report, write_paper_report
from run_folders import write_run
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def page():
    return paper_page(paper_report())


class Links(HTMLParser):
    """All ids, and all that a page could load or lead to."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.targets = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key == "id":
                self.ids.append(value)
            if key in ("src", "href", "action", "srcset", "data"):
                self.targets.append(value)


def test_the_page_loads_nothing(page):
    links = Links(page)
    assert [t for t in links.targets if not t.startswith(("#", "data:,"))] == []
    assert len(links.ids) == len(set(links.ids))
    assert {t[1:] for t in links.targets if t.startswith("#")} <= set(links.ids)
    assert "default-src 'none'" in unescape(page)
    assert not re.search(r"@import|url\((?!#)", page)
    assert len(page) < 1_000_000


def test_the_page_has_everything(page):
    for title in [f"Figure {n}. " for n in range(4, 11)] + [f"Table {n}. " for n in range(1, 13)]:
        assert title in page
    assert "Figures 1 to 3" in page and "training logs, which are not published" in page
    assert page.count('data-group="differs"') > 20


def test_files_are_written(tmp_path):
    report = paper_report()
    small = type(report)(report.charts[-1:], report.tables[:1], report.checks)
    written = write_paper_report(small, out=tmp_path / "p.html", figures=tmp_path / "f", tables=tmp_path / "t")
    assert written == [tmp_path / "p.html", tmp_path / "f", tmp_path / "t"]
    assert [p.name for p in (tmp_path / "f").iterdir()] == ["figure_10_thresholds.svg"]


def test_places_that_cannot_be_written_are_refused_first(tmp_path):
    report = paper_report()
    with pytest.raises(ValueError, match=r"is a folder: name a file such as paper\.html"):
        write_paper_report(report, out=tmp_path, tables=tmp_path / "t")
    with pytest.raises(ValueError, match="which is no folder"):
        write_paper_report(report, out=tmp_path / "no" / "p.html", tables=tmp_path / "t")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file: name a folder"):
        write_paper_report(report, out=tmp_path / "p.html", tables=tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_jinja2_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match="report"):
        write_paper_report(paper_report(), out=tmp_path / "p.html", figures=tmp_path / "f", tables=tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path):
    write_run(tmp_path / "run", method="str", density=0.1)
    words = ["-o", str(tmp_path / "p.html"), "--ours", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "figure 1 Threshold of layer 10" in text and "table 12" in text
    assert "table 1 STR 81.27 % parameters 4.47M 4.776M" in text
    assert "267 values checked: 203 agrees, 31 other count, 25 differs, 8 not computable." in text
    assert "Ours, like figure 1" in (tmp_path / "p.html").read_text()


def test_the_module_runs_from_the_root_of_the_repository(tmp_path):
    command = [sys.executable, "-m", "benchmarks.paper", "-o"]
    done = subprocess.run([*command, str(tmp_path / "no" / "p.html")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and "which is no folder" in done.stderr
    assert not list(tmp_path.iterdir())


SCRIPT = """
import sys
sys.modules["torch"] = None  # any import of it fails
from benchmarks.paper.report import paper_report, paper_page
from benchmarks.paper.tables import to_csv
report = paper_report()
print(report.counts()["differs"], "Figure 7." in paper_page(report), len(list(map(to_csv, report.all_tables()))))
"""


def test_without_torch():
    run = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.stderr == ""
    assert run.stdout.split() == ["25", "True", "14"]
