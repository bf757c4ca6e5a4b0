"""softprune sweep as a person meets it."""

import os
import signal
import sys

import pytest
from sweep_parts import SHORT, read_table, wait_for, write_sweep
from typer.testing import CliRunner

import warm
from softprune.cli import app
from softprune.train.config import RunConfig

# A network of the catalogue: the processes of the command line do not see those of the tests.
PLAIN = {"model": "digits"}


def run(*words, code=0):
    result = CliRunner().invoke(app, ["sweep", "--trust", *map(str, words)], env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return result.output


def test_a_sweep_tells_every_trial_and_the_best(tmp_path):
    search = {"optimizer.lr": [0.5, 1e-6], "batch": [32, 64]}
    file = write_sweep(tmp_path, base="digits/dense", search=search, changes={"propose.push": 8.2, "epochs": 2})
    lines = run(file, "--out", tmp_path / "out").splitlines()
    assert lines[0].startswith("trial 0000  complete  optimizer.lr=0.5 batch=32  accuracy ")
    assert lines[0].endswith("of 0000)  1/4") and lines[3].endswith("of 0000)  4/4")
    assert lines[4].split() == ["best", "trial", "optimizer.lr", "batch", "accuracy"]
    assert lines[5].split()[:3] == ["0000", "0.5", "32"]
    assert lines[6] == f"4 complete; all in {tmp_path / 'out' / 'trials.csv'}"
    again = run(file, "--out", tmp_path / "out", "--quiet").splitlines()
    assert again == lines[4:]


def test_two_objectives_end_in_the_pareto_set(tmp_path):
    file = write_sweep(tmp_path, search={"propose.push": [1.0, 8.0]}, objectives=["accuracy", "params"])
    text = run(file, "--out", tmp_path / "out")
    assert "in the Pareto set)" in text and "best trials" in text and "params" in text


def test_a_dry_run_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = run(write_sweep(tmp_path, search={"seed": [0, 1, 2]}), "--dry-run")
    assert "over 3 trials" in text and "3 combinations" in text
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


def test_a_sweep_in_which_all_trials_fail_is_an_error(tmp_path):
    wild = {"optimizer.threshold_decay": 1e-30, "method.s_init": -100.0, "propose.push": 8.2, "data.subset": 640}
    file = write_sweep(tmp_path, search={"optimizer.lr": [1e18, 1e19]}, changes=wild)
    result = CliRunner().invoke(app, ["sweep", "--trust", str(file), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert str(result.exception).startswith("all 2 trials failed; the first one: FloatingPointError: the loss is")


def test_without_optuna_the_error_names_the_extra_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    file = write_sweep(tmp_path, search={"seed": [0, 1]})
    result = CliRunner().invoke(app, ["sweep", "--trust", str(file), "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, ImportError)
    assert 'pip install "softprune[sweep]"' in str(result.exception)
    assert not (tmp_path / "out").exists()
    assert "over 2 trials" in run(file, "--dry-run")


def test_under_torchrun_a_sweep_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(app, ["sweep", "--trust", str(write_sweep(tmp_path, search={"seed": [0]}))])
    assert "without torchrun" in str(result.exception)


@pytest.mark.slow
def test_workers_of_one_command_stop_together_and_put_their_trials_back(tmp_path):
    changes = {**SHORT, **PLAIN, "threads": None, "checkpoint.every_steps": 1, "epochs": 200}
    file = write_sweep(tmp_path, search={"seed": [0, 1]}, changes=changes)
    command = ["-m", "softprune", "sweep", "--trust", file, "--out", tmp_path / "out", "--workers", 2]
    parent = warm.start(*command)
    for number in ("0000", "0001"):
        wait_for(tmp_path / "out" / "trials" / number / "checkpoints")
    os.kill(parent.pid, signal.SIGTERM)
    ended = parent.done(timeout=120)
    assert ended.returncode == 1 and "2 trials are left; the same command goes on" in ended.stdout + ended.stderr
    rows = read_table(tmp_path / "out")
    assert [(row["state"], row["attempts"]) for row in rows] == [("waiting", "1")] * 2
    for row in rows:
        assert RunConfig.load(tmp_path / "out" / row["folder"] / "config.yaml", trust=True).threads == 1
