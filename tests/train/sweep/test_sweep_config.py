"""Sweep files: what is refused, with which words, before anything is written."""

from pathlib import Path

import pytest
from sweep_parts import SHORT, write_sweep

from softprune.train.config import ConfigError, RunConfig
from softprune.train.config.keys import write_yaml
from softprune.train.sweep.run import describe
from softprune.train.sweep.sweep import Sweep
from softprune.train.sweep.sweep_config import SweepConfig

GOOD = {"base": "digits/str", "search": {"optimizer.lr": [0.05, 0.1]}, "sampler": "grid"}
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def refused(tmp_path, **keys):
    """The lines about a sweep file that is wrong."""
    path = tmp_path / "sweep.yaml"
    path.write_text(write_yaml({key: value for key, value in {**GOOD, **keys}.items() if value != "absent"}))
    with pytest.raises(ConfigError) as error:
        Sweep.load(path, trust=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["sweep.yaml"]
    return [str(problem) for problem in error.value.problems]


def test_every_problem_is_listed_at_once(tmp_path):
    problems = refused(tmp_path, serach=1, sampler="tpee", retries=-1, pruner={"name": "median", "warmup": 2})
    text = "\n".join(problems)
    assert len(problems) == 4
    assert "serach: unknown key; did you mean search?" in text
    assert "sampler: 'tpee' is not one of grid, random, tpe; did you mean 'tpe'?" in text
    assert "retries: -1 is not at least 0" in text
    assert "pruner.warmup: unknown key; did you mean pruner.warmup_epochs?" in text


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"base": "absent"}, "base: is missing"),
        ({"search": {}}, "names no key to search"),
        ({"search": {"optimizer.lr": 0.1}}, "search.optimizer.lr: 0.1 is neither a list of choices nor {low"),
        ({"search": {"optimizer": {"lr": [0.1]}}}, "write dotted keys, such as optimizer.lr"),
        ({"search": {"optimizer.lr": []}}, "search.optimizer.lr: the list of choices is empty"),
        ({"search": {"seed": [1, 2, 1.0]}}, "search.seed.2: 1.0 is the same as a choice before it"),
        ({"search": {"optimizer.lr": {"low": 0.1}}}, "search.optimizer.lr.high: is missing"),
        ({"search": {"optimizer.lr": {"low": 0.2, "high": 0.1}}}, "low: 0.2 is not below high, which is 0.1"),
        ({"search": {"optimizer.lr": {"low": 0, "high": 1, "log": True}}}, "low: 0 has no logarithm"),
        ({"search": {"optimizer.lr": {"low": 0.1, "high": 1, "step": 2}}}, "step: 2 is not between 0 and 0.9"),
        (
            {"search": {"optimizer.lr": {"low": 0.1, "high": 1, "step": 0.4}}},
            "step: 0.4 does not lead to high, but to 0.9",
        ),
        ({"search": {"optimizer.lr": {"low": 1, "high": 9, "log": True, "step": 1}}}, "step: 1 cannot go with log"),
        ({"search": {"optimizer.lr": {"low": "a", "high": 1}}}, "search.optimizer.lr.low: 'a' is not a"),
        ({"search": {"optimizer.lr": {"low": 1, "high": 2, "logg": True}}}, "did you mean log?"),
        ({"sampler": "tpe"}, "trials: is missing: tpe never comes to an end"),
        ({"objectives": ["accuracy", "flops"]}, "objectives.1: 'flops' is not one of accuracy, sparsity, params, macs"),
        ({"objectives": ["accuracy", "macs", "params"]}, "must be one or two"),
        ({"objectives": ["macs", "macs"]}, "names one twice"),
        ({"objectives": ["accuracy", "macs"], "pruner": "median"}, "pruner: median cannot judge two objectives"),
        ({"pruner": {"name": "halving", "startup_trials": 2}}, "2 has no effect with halving, only with median"),
        ({"pruner": {"name": "median", "factor": 4}}, "4 has no effect with median, only with halving and hyperband"),
        ({"name": "a b"}, "name: 'a b' must begin with"),
        ({"storage": "study.db"}, "is not a database URL"),
        ({"storage": "sqlite:///study.db"}, "names no file by its whole path"),
        ({"version": 2}, "this release reads version 1"),
    ],
)
def test_a_sweep_that_cannot_be_meant(tmp_path, keys, sentence):
    assert any(sentence in problem for problem in refused(tmp_path, **keys))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"search": {"optimizer.lrr": [0.1]}}, "search.optimizer.lrr: unknown key; did you mean optimizer.lr?"),
        ({"search": {"lr": [0.1]}}, "search.lr: unknown key; did you mean optimizer.lr?"),
        ({"changes": {"epoch": 3}}, "changes.epoch: unknown key; did you mean epochs?"),
        ({"search": {"name": ["a", "b"]}}, "search.name: cannot be chosen"),
        ({"changes": {"optimizer.lr": 0.1}}, "search.optimizer.lr: would overwrite changes.optimizer.lr"),
        ({"search": {"optimizer": ["sgd"], "optimizer.lr": [0.1]}}, "would overwrite search.optimizer.lr"),
        ({"search": {"epochs": [1, "two"]}}, "search.epochs: 'two' is not a whole number"),
        ({"search": {"optimizer.lr": [0.1, 0.0]}}, "search.optimizer.lr: 0.0 is not above 0"),
        (
            {"search": {"epochs": {"low": 0.5, "high": 4}}},
            "search.epochs.low: 0.5 is not a whole number, but epochs is one",
        ),
        ({"search": {"epochs": {"low": 2, "high": 4.0}}}, "but epochs is one: write 4"),
        (
            {"search": {"optimizer.lr": {"low": 0.1, "high": 0.2}}},
            "search.optimizer.lr: has no end of values for a grid",
        ),
        ({"trials": 3}, "trials: 3 are more than the 2 combinations"),
        ({"search": {"seed": {"low": 0, "high": 10_000}}}, "makes a grid of 10,001 points"),
        (
            {"search": {"optimizer.name": ["sgd", "adam"]}},
            "optimizer.name can be chosen so that optimizer.momentum: 0.9",
        ),
        ({"changes": {"method": None}, "objectives": ["macs"]}, "objectives: a dense run has no macs"),
        ({"pruner": {"name": "median", "warmup_epochs": 60}}, "60 is not below the 60 epochs of a trial"),
        # Not at the corners of the grid, but at those of a range.
        (
            {"sampler": "random", "trials": 2, "search": {"schedule.final": {"low": 0.5, "high": 1.5}}},
            "search.schedule.final: 1.5 is not at most 1",
        ),
    ],
)
def test_a_sweep_that_its_base_cannot_take(tmp_path, keys, sentence):
    problems = refused(tmp_path, **keys)
    assert any(sentence in problem for problem in problems), problems
    assert len(problems) == len(set(problems))


def test_a_problem_of_many_combinations_is_told_once(tmp_path):
    (problem,) = refused(tmp_path, search={"optimizer.lr": [0.1, -1.0], "seed": [0, 1, 2]})
    assert problem == "search.optimizer.lr: -1.0 is not above 0 (in 3 combinations)"


def test_a_large_space_is_tried_value_by_value(tmp_path):
    search = {"seed": list(range(300)), "batch": [16, 32, 64], "optimizer.lr": {"low": 0.1, "high": 1e30, "log": True}}
    assert Sweep.load(write_sweep(tmp_path, search=search, sampler="random", trials=2), trust=True).trials == 2
    wrong = {**search, "batch": [16, 32, 0]}
    with pytest.raises(ConfigError, match=r"search.batch: 0 is not at least 1"):
        Sweep.load(write_sweep(tmp_path, search=wrong, sampler="random", trials=2), trust=True)


def test_the_base_is_a_file_beside_the_sweep(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "base.yaml").write_text(RunConfig.load("digits/str", ["epochs=7"]).dump())
    file = write_sweep(tmp_path / "mine", base="base.yaml", search={"seed": [0]}, changes={"epochs": 8})
    monkeypatch.chdir(tmp_path)
    base = Sweep.load(file.relative_to(tmp_path), trust=True).base
    assert (base.epochs, base.data.subset) == (8, SHORT["data.subset"])


def test_a_trial_has_the_values_of_its_point(tmp_path):
    search = {"method.g": ["exp", {"g": "sigmoid", "k": 2.0}], "ema": [None, 0.5], "skip": [[], ["1.weight"]]}
    sweep = Sweep.load(write_sweep(tmp_path, search=search), trust=True)
    configs = [sweep.run_config(point) for point in sweep.points()]
    found = [(c.method.settings["g"]["g"], c.ema, c.skip) for c in configs]
    assert found == [(g, ema, skip) for g in ("exp", "sigmoid") for ema in (None, 0.5) for skip in ((), ("1.weight",))]


def test_fewer_trials_of_a_grid_are_a_sample_by_the_seed(tmp_path):
    search = {"seed": {"low": 0, "high": 99}}
    chosen = [
        Sweep.load(write_sweep(tmp_path, search=search, trials=10, seed=s), trust=True).points() for s in (0, 0, 1)
    ]
    assert chosen[0] == chosen[1] != chosen[2]
    seeds = [point["seed"] for point in chosen[0]]
    assert len(set(seeds)) == 10 and seeds == sorted(seeds) and max(seeds) > 50


def test_a_sweep_comes_back_from_its_text(tmp_path):
    search = {"optimizer.lr": {"low": 0.01, "high": 1, "log": True}, "ema": [None, 0.5]}
    config = SweepConfig.load(write_sweep(tmp_path, search=search, sampler="tpe", trials=5, pruner="hyperband"))
    (tmp_path / "again.yaml").write_text(config.dump())
    assert SweepConfig.load(tmp_path / "again.yaml") == config


def test_the_plan_names_space_number_and_first_run(tmp_path):
    search = {"optimizer.lr": {"low": 0.1, "high": 0.3, "step": 0.1}, "epochs": {"low": 1, "high": 4}}
    text = describe(Sweep.load(write_sweep(tmp_path, search=search, objectives=["accuracy", "macs"]), trust=True))
    assert "maximize accuracy and minimize macs on digits/str over 12 trials, chosen by grid" in text
    assert "12 combinations of" in text and "0.1 to 0.3 in steps of 0.1" in text and "whole numbers 1 to 4" in text
    assert "128 (changed)" in text and "a run with optimizer.lr=0.1 epochs=1:" in text
    assert "2 steps: 1 epochs of 2 steps of 64 samples" in text and "would fail" not in text


def test_the_plan_tells_which_corners_a_run_would_refuse(tmp_path):
    search = {"propose.push": [2.0, 90.0]}
    text = describe(
        Sweep.load(write_sweep(tmp_path, search=search, changes={"epochs": 15, "model": "digits"}), trust=True)
    )
    assert "a run with propose.push=90 would fail: a decay of" in text and "a run with propose.push=2:" in text


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("sweep*.yaml")), ids=lambda file: file.name)
def test_the_examples_are_valid(file):
    assert Sweep.load(file, trust=True).trials > 1
