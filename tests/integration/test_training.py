"""`softprune train` as people run it: in processes of its own, killed, under torchrun, on every recipe."""

import json
import random
import shutil
import time
from pathlib import Path

import pytest
import torch

from softprune import Budget
from softprune.core.state_file import read_state
from softprune.train.config.run import recipes
from softprune.train.run_folder import RunFolder
from warm import run, run_on_two, start

SHORT = ["epochs=4", "data.subset=640", "threads=1", "checkpoint.every_steps=3", "propose.push=2", "log.every_steps=1"]
COMMAND = ("-m", "softprune", "train")


def train_on_two(*words):
    return run_on_two(*COMMAND, *words)


def final_state(folder):
    return read_state(sorted((folder / "checkpoints").glob("step-*"))[-1])


def metrics(folder):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in RunFolder(folder).metrics()]


@pytest.mark.slow
def test_killed_at_twenty_random_moments_a_run_ends_as_if_nothing_had_been(tmp_path):
    folder = tmp_path / "killed"
    chance, kills = random.Random(7), 0
    started = time.monotonic()
    run(*COMMAND, "digits/str", *SHORT, "--out", tmp_path / "whole")
    whole = time.monotonic() - started
    command = [*COMMAND, "digits/str", *SHORT, "--out", folder]
    while kills < 20:
        process = start(*command)
        # From before the first step to after the last one.
        deadline = time.monotonic() + chance.uniform(0.0, 1.2 * whole)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        kills += process.poll() is None
        process.kill()
        if process.wait() == 0 and kills < 20:
            # It got through: kill a fresh run on the same terms, so that all moments have their chance.
            shutil.rmtree(folder)
        begun = (folder / "config.yaml").exists()
        command = [*COMMAND, "--resume", folder] if begun else [*COMMAND, "digits/str", *SHORT, "--out", folder]
    run(*command)
    (a, facts_a), (b, facts_b) = final_state(tmp_path / "whole"), final_state(folder)
    assert [k for k in a if not torch.equal(a[k], b[k])] == []
    assert facts_a["sparsifier"] == facts_b["sparsifier"] and facts_a["random"] == facts_b["random"]
    assert metrics(tmp_path / "whole") == metrics(folder)
    assert not list((folder / "checkpoints").glob(".*"))


@pytest.mark.slow
def test_two_processes_agree_with_one_and_continue_each_other(tmp_path):
    small = ["digits/str", *SHORT, "model=softprune.nn.digits:digits_cnn"]
    run(*COMMAND, *small, "--out", tmp_path / "one")
    train_on_two(*small, "--out", tmp_path / "two")
    one, two = (json.loads((tmp_path / n / "result.json").read_text()) for n in ("one", "two"))
    assert one["last"]["step"] == two["last"]["step"] == 40
    # Each process has its own batch statistics, so the runs are alike, not equal.
    assert abs(one["last"]["sparsity"] - two["last"]["sparsity"]) < 0.1
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 2
    assert len([m for m in metrics(tmp_path / "two") if m["kind"] == "epoch"]) == 4

    half = [*small, "seed=1"]
    for first, second in (("one", "two"), ("two", "one")):
        folder = tmp_path / f"{first}-then-{second}"
        start = (lambda *w: run(*COMMAND, *w)) if first == "one" else (lambda *w: train_on_two(*w))
        go_on = (lambda *w: run(*COMMAND, *w)) if second == "one" else (lambda *w: train_on_two(*w))
        start(*half, "--out", folder)
        # Back to the middle: forget the newest checkpoint and the end.
        newest = sorted((folder / "checkpoints").glob("step-*"))[-1]
        newest.unlink()
        (folder / "result.json").unlink()
        go_on("--resume", folder, "--trust")  # the stored configuration names a factory
        assert json.loads((folder / "result.json").read_text())["last"]["step"] == 40
        assert [m["step"] for m in metrics(folder) if m["kind"] == "step"] == list(range(1, 41))


@pytest.mark.slow
def test_two_processes_hold_one_budget_under_each_strategy(tmp_path):
    for strategy in ("ddp", "fsdp"):
        folder = tmp_path / strategy
        train_on_two("digits/str", *SHORT, f"distributed.strategy={strategy}", "--out", folder)
        budget = Budget.load(folder)
        counted = json.loads((folder / "result.json").read_text())["last"]["sparsity"]
        assert budget.overall == counted
        tensors, _ = final_state(folder)
        s = {k: t for k, t in tensors.items() if k.endswith(".0.s")}
        assert len([k for k in s if k.startswith("model.")]) == 4
    ddp, fsdp = (final_state(tmp_path / n)[0] for n in ("ddp", "fsdp"))
    for name in (n for n in ddp if n.startswith("model.")):
        torch.testing.assert_close(ddp[name], fsdp[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [info.name for info in recipes()])
def test_every_recipe_dry_runs_without_data(name, capsys):
    from softprune.train.config import RunConfig
    from softprune.train.dry_run import plan_text

    config = RunConfig.load(name)
    if config.model.weights is not None:
        # A recipe for trained weights does not run without them, and neither does its dry run.
        with pytest.raises(ValueError, match=f"model.weights: there is no file {config.model.weights}"):
            plan_text(config)
        config = RunConfig.load(name, ["model.weights=null"])
    text = plan_text(config)
    assert "steps: " in text and "MACs" in text
    assert ("sparsity is expected to set in" in text) == (config.method is not None and config.goal is None)
    assert ("the goal is approached" in text) == (config.goal is not None)


def test_the_command_line_trains_evaluates_and_bakes(tmp_path):
    out = tmp_path / "run"
    done = run(*COMMAND, "digits/str", "epochs=2", "data.subset=320", "propose.push=2", "--out", out)
    assert "run folder" in done.stdout and "overall" in done.stdout
    assert "epoch 2" in done.stdout
    assert "accuracy" in run("-m", "softprune", "evaluate", out).stdout
    baked = tmp_path / "model.safetensors"
    assert "zero" in run("-m", "softprune", "bake", out, "-o", baked).stdout
    assert baked.is_file()
    quiet = run(
        *COMMAND, "digits/str", "epochs=1", "data.subset=320", "propose.push=2", "--quiet", "--out", tmp_path / "q"
    )
    assert "epoch 1 " not in quiet.stdout


def test_measuring_a_few_steps_estimates_the_whole():
    text = run(*COMMAND, "digits/str", "--time", "3", "threads=1").stdout
    assert "3 steps of 64 samples" in text and "1,200 steps take about" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits/str", "optimizer.momentun=0.9"], "did you mean optimizer.momentum?"),
        (["digits/stx"], "digits/str"),
        ([], "softprune recipes"),
        (["digits/str", "--resume", "x"], "--resume takes the run folder alone"),
        (["--resume", "nowhere"], "holds no run"),
        (["fashion-mnist/str", "data.root=/nowhere"], "dataset-fashion-mnist"),
    ],
)
def test_mistakes_end_in_one_sentence(words, sentence, tmp_path):
    done = run(*COMMAND, *words, check=False, cwd=tmp_path)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert sentence in " ".join(done.stderr.split())
    assert list(Path(tmp_path).iterdir()) == []
