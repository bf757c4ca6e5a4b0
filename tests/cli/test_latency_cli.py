"""Tables of times and goals in milliseconds from the command line, from the measurement to a resumed run."""

import json

import pytest
import torch
from typer.testing import CliRunner

import softprune
from softprune import Budget, Latency, LatencyTable, profile, uniform
from softprune.budget.latency import LayerTime
from softprune.cli import app
from softprune.deploy.bench.latency import Effort
from softprune.deploy.engine.library import library
from softprune.nn.digits import digits_cnn
from softprune.train.config import ConfigError, RunConfig

DENSITIES = (0.01, 0.05, 0.1, 0.3, 1.0)


def table_for_digits(path):
    """Made up: a nanosecond per weight, and one microsecond for each layer."""
    costs = profile(digits_cnn(), torch.zeros(1, 1, 8, 8))
    layers = [
        LayerTime(t.name, t.shape, DENSITIES, tuple(1e-6 + 1e-9 * t.params * d for d in DENSITIES)) for t in costs
    ]
    LatencyTable(tuple(layers), 1e-5, "made up", "none", 1, 1).save(path)
    return costs


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_budget_is_allocated_and_shown_with_its_times(tmp_path):
    file = tmp_path / "table.json"
    costs = table_for_digits(file)
    call("budget", "allocate", "digits", "--ms", 0.05, "--latency", file, "--out", tmp_path / "budget.json")
    budget = Budget.load(tmp_path / "budget.json")
    assert LatencyTable.load(file).total(dict(budget)) == pytest.approx(5e-5)
    assert dict(budget) == dict(uniform(costs, Latency(0.05, LatencyTable.load(file))))
    shown = call("budget", "show", tmp_path / "budget.json", "--latency", file)
    assert "made up (none), batch 1, threads 1" in shown and "everything else" in shown
    assert [line.split()[1:3] for line in shown.splitlines() if line.startswith("total")] == [["50.0", "107.7"]]
    with pytest.raises(ValueError, match="--ms and --latency go together"):
        call("budget", "allocate", "digits", "--ms", 0.05)
    with pytest.raises(ValueError, match=r"got 2"):
        call("budget", "allocate", "digits", "--ms", 0.05, "--latency", file, "--sparsity", 0.5)
    with pytest.raises(ValueError, match="another network"):
        call("budget", "show", "resnet50/str-90.23", "--latency", file)


@pytest.mark.skipif(library() is None, reason="no compiled kernels")
def test_bench_writes_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "softprune.deploy.bench.latency.Effort", lambda tune: Effort(rounds=1, repeats=1, seconds=0.001, tune=False)
    )
    file = tmp_path / "table.json"
    shown = call("bench", "digits", "--table", file, "--batch", 3)
    table = LatencyTable.load(file)
    assert table.batch == 3 and [x.name for x in table.layers] == ["0.weight", "3.weight", "7.weight", "12.weight"]
    assert table.layers[0].densities == DENSITIES
    assert "us at 0.01" in shown and "total" in shown and "table.json" in shown.replace("\n", "")
    for words, message in (
        (["bench", "digits", "--table", tmp_path / "no" / "t.json"], "no folder"),
        (["bench", "digits", "--table", tmp_path / "t.csv"], "is a .json file"),
        (["bench", "model.spx", "--table", tmp_path / "t.json"], "several densities"),
        (["bench", "digits", "--table", tmp_path / "t.json", "--against", "none"], "--against has no effect"),
        (["bench", "zoo:digits/dense", "--input", "1,1,8,8"], "--input goes with --table"),
    ):
        with pytest.raises(ValueError, match=message):
            call(*words)


def test_a_run_meets_it_keeps_its_table_and_goes_on_without_the_file(tmp_path):
    pytest.importorskip("sklearn")
    file, folder = tmp_path / "table.json", tmp_path / "run"
    table_for_digits(file)
    table = LatencyTable.load(file)
    common = ["goal.ramp=null", "epochs=1", "data.subset=256", "--quiet"]
    call("train", "digits/str-goal", f"goal={{latency: {{ms: 0.03, table: {file}}}}}", *common, "--out", folder)
    file.unlink()
    goal = RunConfig.load(folder / "config.yaml").goal
    assert goal.total() == Latency(0.03, table)
    spent = table.total(dict(Budget.load(folder)))
    assert 0.03e-3 - 1.1e-9 < spent <= 0.03e-3 + 1e-15  # one nanosecond is one weight
    assert json.loads((folder / "result.json").read_text())["last"]["accuracy"] > 0
    call("train", "--resume", folder, "--quiet")
    state = softprune.sparsify(digits_cnn(), softprune.STR(), goal=goal.total()).state_dict()
    assert f"table {table.digest}" in json.dumps(state)


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        ("{latency: {ms: 1, table: missing.json}}", "cannot read missing.json: No such file"),
        ("{latency: {ms: 1, table: {format: other}}}", "format 'other'"),
        ("{latency: {ms: -1, table: missing.json}}", "goal.latency.ms"),
        ("{latency: {ms: 1}}", "goal.latency.table"),
        ("{latency: {ms: 1, table: 5}}", "goal.latency.table"),
    ],
)
def test_configurations_that_cannot_be_meant(goal, words):
    with pytest.raises(ConfigError) as caught:
        RunConfig.load("digits/str-goal", [f"goal={goal}"])
    assert words in str(caught.value)


def test_one_total_and_no_scope(tmp_path):
    table_for_digits(tmp_path / "table.json")
    latency = f"latency: {{ms: 0.03, table: {tmp_path / 'table.json'}}}"
    for goal, words in (
        (f"{{sparsity: 0.5, {latency}}}", "got sparsity and latency"),
        (f"{{scope: all, {latency}}}", "scope all is for sparsity and params"),
    ):
        with pytest.raises(ConfigError, match=words):
            RunConfig.load("digits/str-goal", [f"goal={goal}"])
    given = RunConfig.load("digits/str-goal", [f"goal={{{latency}, budget: erk}}", "method=gmp"]).goal
    budget = given.arguments(lambda: profile(digits_cnn(), torch.zeros(1, 1, 8, 8)))["budget"]
    assert given.total().table.total(dict(budget)) == pytest.approx(3e-5)
