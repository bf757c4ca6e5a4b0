"""The best of many trials, and the tables."""

import csv
import json
import random

import pytest
from sweep_parts import write_sweep

from softprune.train.sweep.folder import Results, TrialResult
from softprune.train.sweep.sweep import Sweep


def results_of(folder, objectives, rows):
    """Results with these objectives per trial; None for one that is not complete."""
    names = objectives if isinstance(objectives, list) else [objectives]
    sweep = Sweep.load(write_sweep(folder, search={"seed": {"low": 0, "high": 199}}, objectives=objectives), trust=True)
    trials = []
    for n, row in enumerate(rows):
        state, reason = ("failed", "no") if row is None else ("complete", "")
        values = dict(zip(names, row or (), strict=False))
        trials.append(TrialResult(n, state, {"seed": n}, values, 1, f"trials/{n:04d}", reason))
    return Results(sweep, tuple(trials))


@pytest.mark.parametrize("seed", range(5))
def test_the_pareto_set_is_what_nothing_beats(tmp_path, seed):
    # Few different values, so that many trials are equal in one objective or in both; accuracy costs weights.
    draw = random.Random(seed)
    levels = [draw.randrange(12) for _ in range(60)]
    rows = [None if draw.random() < 0.1 else (level / 16, level + draw.randrange(6)) for level in levels]
    beaten = {
        n
        for n, row in enumerate(rows)
        if row is None
        or any(a >= row[0] and p <= row[1] and (a, p) != row for a, p in (other for other in rows if other is not None))
    }
    best = results_of(tmp_path, ["accuracy", "params"], rows).best
    assert {trial.number for trial in best} == set(range(60)) - beaten and len(best) > 1
    assert [trial.objectives["accuracy"] for trial in best] == sorted(
        (t.objectives["accuracy"] for t in best), reverse=True
    )


@pytest.mark.parametrize(
    ("objective", "rows", "number"),
    [
        ("accuracy", [(0.5,), None, (0.7,), (0.7,)], 2),
        ("sparsity", [(0.1,), (0.3,), (0.2,)], 1),
        ("macs", [None, (9,), (4,), (4,)], 2),
        ("params", [(7,), (8,)], 0),
    ],
)
def test_of_one_objective_the_first_of_the_best_is_the_best(tmp_path, objective, rows, number):
    assert [trial.number for trial in results_of(tmp_path, objective, rows).best] == [number]


def test_without_a_complete_trial_nothing_is_best(tmp_path):
    results = results_of(tmp_path, "accuracy", [None, None])
    results.write(tmp_path)
    assert results.best == [] and json.loads((tmp_path / "best.json").read_text())["best"] == []
    with (tmp_path / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["accuracy"], row["reason"]) for row in rows] == [("0", "", "no"), ("1", "", "no")]
