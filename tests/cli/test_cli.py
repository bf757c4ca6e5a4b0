"""The command line from end to end, each command in a process of its own or through its entry point."""

import json

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import warm
from softprune import Budget, __version__
from softprune.cli import app


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def test_help_teaches():
    text = run("--help")
    assert all(command in text for command in ("demo", "profile", "budget", "import-str", "export", "bench"))
    assert "1,3,224,224" in run("profile", "--help")
    assert "(0, 1)" in run("budget", "allocate", "--help")
    assert run("--version").strip() == __version__


@pytest.mark.slow
def test_the_demo_ends_with_a_page_about_its_run(tmp_path):
    text = run("demo", "--out", str(tmp_path / "run"), "--no-bench")
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"open {(tmp_path / 'run' / 'report.html').as_uri()}" in text
    assert "was trained on digits and made sparse by the method str" in page
    result = json.loads((tmp_path / "run" / "result.json").read_text())["last"]
    assert result["sparsity"] > 0.9 and f"{result['params']:,} of 93,728 are left" in page


@pytest.mark.parametrize("columns", [60, 80, 160])
def test_methods_are_listed_at_any_width(columns, monkeypatch):
    monkeypatch.setattr("softprune.cli.training.console", Console(width=columns))
    lines = run("methods").splitlines()
    (rigl,) = (line for line in lines if line.startswith("rigl "))
    assert "given" in rigl and "budget" in rigl and "Evci et al. 2020" in rigl
    assert {line.split()[0] for line in lines if line and line[0] != " "} >= {"str", "gmp", "dnw", "imp", "vd", "acdc"}
    assert max(map(len, lines)) <= columns


def test_profile_prints_the_totals_of_the_paper(tmp_path):
    text = run("profile", "resnet50", "--out", str(tmp_path / "p.json"))
    assert "25,502,912" in text and "4,089,184,256" in text and "100,352" in text
    assert len(json.loads((tmp_path / "p.json").read_text())["tensors"]) == 54
    assert "568,740,352" in run("profile", "mobilenetv1")
    assert "softprune.nn.digits:digits_cnn" not in run(
        "profile", "softprune.nn.digits:digits_cnn", "--input", "1,1,8,8"
    )


def test_budgets_are_listed_shown_compared_and_allocated(tmp_path):
    assert run("budget", "list").count("resnet50/") == 21
    assert "342,7" in run("budget", "show", "resnet50/str-90.23")
    text = run("budget", "compare", "resnet50/str-90.23", "resnet50/uniform-90")
    assert "90.23%" in text and "90.00%" in text
    out = tmp_path / "b.json"
    run("budget", "allocate", "resnet20", "--sparsity", "0.9", "--by", "erk", "--out", str(out))
    assert Budget.load(out).overall == pytest.approx(0.9, abs=1e-4)
    assert "conv1.weight" in run("budget", "show", str(out))
    scaled = run("budget", "allocate", "resnet20", "--sparsity", "0.95", "--like", str(out))
    assert "95.00%" in scaled
    dense = run("budget", "allocate", "resnet20", "--flops", "10e6", "--dense", "conv1.weight")
    assert "0.00%" in dense


def test_import_str_writes_weights_and_budget(tmp_path):
    state = {"module.a.weight": torch.tensor([-1.0, 0.2, 0.75, 2.0]), "module.a.sparseThreshold": torch.zeros(1, 1)}
    torch.save({"state_dict": state}, tmp_path / "x.pth")
    assert "25.00% zeros" in run("import-str", str(tmp_path / "x.pth"), "--out", str(tmp_path / "out"))
    assert Budget.load(tmp_path / "out")["a.weight"] == 0.75
    assert "a.weight" in run("budget", "show", str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["budget", "allocate", "resnet20", "--sparsity", "90"], "did you mean 0.9?"),
        (["budget", "allocate", "resnet20"], "name one goal"),
        (["budget", "show", "resnet50/str-90.24"], "resnet50/str-90.23"),
        (["profile", "resnet51"], "choose resnet50"),
        (["profile", "resnet20", "--input", "1,3,x"], "positive numbers with commas"),
        (["import-str", "absent.pth", "--out", "x"], "there is no file absent.pth"),
    ],
)
def test_bad_input_ends_in_one_sentence(words, sentence):
    done = warm.run("-m", "softprune", *words, check=False)
    assert done.returncode == 1
    assert sentence in done.stderr and "Traceback" not in done.stderr
