"""The points of a space, and what a study makes of them."""

import optuna
import pytest

from softprune.train.sweep.sweep_config import Range, Space, costs, label, objective_values, parse_search

SPACE = Space(
    parse_search(
        {
            "lr": {"low": 0.1, "high": 0.5, "step": 0.1},
            "epochs": {"low": 2, "high": 6, "step": 2},
            "ema": [None, 0.5],
            "g": ["exp", {"g": "sigmoid", "k": 2.0}],
        }
    ),
    whole=frozenset({"epochs"}),
)


def test_steps_are_decimal():
    assert Range(low=0.1, high=0.7, step=0.1).values() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert Range(low=1, high=7, step=3).values() == [1, 4, 7]
    assert [type(value) for value in Range(low=0, high=1, step=0.5).values()] == [float] * 3


def test_a_grid_has_every_combination_once():
    points = SPACE.points()
    assert len(points) == SPACE.size() == 5 * 3 * 2 * 2
    assert points[0] == {"lr": 0.1, "epochs": 2, "ema": None, "g": "exp"}
    assert points[1]["g"] == {"g": "sigmoid", "k": 2.0}
    assert all(points.count(point) == 1 for point in points)


def test_a_study_gives_back_the_points_that_were_laid_out(recwarn):
    study = optuna.create_study()
    for point in SPACE.points():
        study.enqueue_trial(SPACE.fixed(point))
    suggested = [SPACE.suggest(study.ask()) for _ in SPACE.points()]
    assert suggested == SPACE.points()
    assert [SPACE.chosen(trial.params) for trial in study.trials] == SPACE.points()
    assert [str(warning.message) for warning in recwarn] == []


def test_whole_numbers_stay_whole_and_ranges_keep_their_ends():
    space = Space(
        parse_search({"epochs": {"low": 1, "high": 9}, "lr": {"low": 1, "high": 100, "log": True}}),
        frozenset({"epochs"}),
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    found = [space.suggest(study.ask()) for _ in range(60)]
    assert {type(values["epochs"]) for values in found} == {int} and {values["epochs"] for values in found} == set(
        range(1, 10)
    )
    assert {type(values["lr"]) for values in found} == {float} and all(1 <= values["lr"] <= 100 for values in found)
    # Evenly spread in the logarithm: about half of them below 10.
    assert 15 < sum(values["lr"] < 10 for values in found) < 45
    assert space.endless() == ["lr"]


def test_corners_are_all_ends_or_each_end_once():
    ends = SPACE.corners(100)
    assert len(ends) == 2 * 2 * 2 * 2 and {"lr": 0.5, "epochs": 6, "ema": 0.5, "g": "exp"} in ends
    few = SPACE.corners(8)
    assert few[0] == {"lr": 0.1, "epochs": 2, "ema": None, "g": "exp"} and len(few) == 1 + 4
    assert [sum(a != b for a, b in zip(point.values(), few[0].values(), strict=True)) for point in few[1:]] == [1] * 4


@pytest.mark.parametrize("choice", [None, True, 3, 0.25, "sgd"], ids=str)
def test_plain_choices_are_stored_as_they_are(choice):
    assert label(choice) is choice


def test_objectives_judge_an_average_and_know_their_direction():
    metrics = {"accuracy": 0.5, "average_accuracy": 0.75, "macs": 10}
    assert objective_values(metrics, ["accuracy", "macs"]) == [0.75, 10.0]
    with pytest.raises(ValueError, match="the run has no sparsity and no params: it is dense"):
        objective_values({"accuracy": 0.5}, ["accuracy", "sparsity", "params"])
    assert costs({"params": 4, "accuracy": 0.5}, ["accuracy", "params"]) == (-0.5, 4)
