"""Runs with a goal: the total is exact in every file they leave, after a stop, and for the average."""

import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from test_run import Watcher, assert_same_run

import softprune
from softprune import Budget
from softprune.nn.catalog import build
from softprune.train.config import RunConfig
from softprune.train.load_run import bake_run, evaluate_run
from softprune.train.run import resume, train

SHORT = ["method=str", "epochs=2", "data.subset=320", "threads=1", "goal=0.9"]
WEIGHTS, KEPT = 93_728, 9_373


def config(*changes):
    return RunConfig.load("digits/dense", [*SHORT, *changes])


def kept_in(tensors, names):
    return sum(int(torch.count_nonzero(tensors[name])) for name in names)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("goal") / "run"
    return folder, train(config(), folder)


def test_every_file_has_the_exact_count(run, tmp_path):
    folder, outcome = run
    assert outcome.finished
    result = json.loads((folder / "result.json").read_text())["last"]
    assert (result["params"], result["sparsity"]) == (KEPT, 1 - KEPT / WEIGHTS)
    budget = Budget.load(folder)
    assert budget.params == KEPT and len(set(budget.values())) == 4
    assert evaluate_run(folder)[1].params == KEPT
    bake_run(folder, tmp_path / "baked.safetensors")
    assert kept_in(load_file(tmp_path / "baked.safetensors"), budget) == KEPT


def test_what_one_run_has_learnt_another_method_can_use(run, tmp_path):
    folder, _ = run
    learnt = Budget.load(folder)
    model = build("digits")
    sparsifier = softprune.sparsify(model, softprune.GMP(), budget=learnt, schedule=softprune.constant())
    assert dict(sparsifier.measure()) == dict(learnt)
    outcome = train(config("method={name: gmp, every: 4}", f"goal={{budget: {folder}}}"), tmp_path / "gmp")
    assert dict(outcome.budget) == dict(learnt)


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("ema=0.9",),
        ("method={name: gmp, every: 4}",),
        ("method=st3",),
        ("method.granularity=filter",),
        ("method=imp", "method.rounds=3", "method.rewind_at=0.7"),
        ("method=imp", "method.rounds=3", "method.rewind=rate"),
        ("method=vd",),
        ("method=autosparse",),
    ],
    ids=["str", "ema", "gmp", "st3", "filter", "imp", "imp-rate", "vd", "autosparse"],
)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, changes):
    train(config(*changes), tmp_path / "whole")
    stopped = Watcher(at_step=4, act=lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert not train(config(*changes), tmp_path / "parts", observer=stopped).finished
    torch.manual_seed(99)
    outcome = resume(tmp_path / "parts")
    assert outcome.finished and outcome.budget.params == KEPT
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_the_average_has_the_exact_count_too(tmp_path):
    folder = tmp_path / "run"
    outcome = train(config("ema=0.8"), folder)
    _, averaged = evaluate_run(folder)  # of the average
    assert averaged.params == outcome.budget.params == KEPT
    bake_run(folder, tmp_path / "baked.safetensors")
    assert kept_in(load_file(tmp_path / "baked.safetensors"), averaged) == KEPT


def test_the_average_of_a_stopped_run_is_solved_when_it_is_read(tmp_path):
    stopped = Watcher(at_step=8, act=lambda: os.kill(os.getpid(), signal.SIGTERM))
    train(config("ema=0.8"), tmp_path / "run", observer=stopped)
    assert evaluate_run(tmp_path / "run")[1].params == KEPT


def test_multiply_adds_are_met_to_the_cost_of_one_weight(tmp_path):
    outcome = train(config("goal={flops: 100000}", "epochs=1"), tmp_path / "run")
    costs = outcome.budget.profile
    dearest = max(t.macs / t.params for t in costs)
    assert 100_000 - dearest - 1 <= outcome.budget.macs() <= 100_001
