"""Which runs are one point: those that differ in their seed alone; and which can be compared at all."""

import math

import pytest
from outcomes import write_benchmark, write_outcome

from softprune.reporting.cohorts import at_level, cohorts, estimate, levels, paired
from softprune.reporting.run import find_runs, read_outcome


def read(folder):
    return [read_outcome(path) for path in find_runs([folder])]


def only(folder):
    (found,) = cohorts(read(folder))
    return found


def test_estimates_by_hand():
    # Mean of 1, 2, 4 is 7/3; squared distances 16/9 + 1/9 + 25/9 = 42/9, divided by 2: 7/3.
    found = estimate([1.0, None, 2.0, math.nan, 4.0])
    assert (found.mean, found.deviation, found.n) == (pytest.approx(7 / 3), pytest.approx(math.sqrt(7 / 3)), 3)
    assert estimate([5.0]).n == 1 and math.isnan(estimate([5.0]).deviation)
    assert math.isnan(estimate([]).mean)


def test_differences_are_paired_by_seed():
    # Differences 1, 2, 3: mean 2, deviation 1, t(2) = 4.303 (any table of Student's t).
    found = paired({0: 2.0, 1: 3.0, 2: 4.0, 7: 100.0}, {0: 1.0, 1: 1.0, 2: 1.0, 8: -5.0})
    assert (found.mean, found.half, found.pairs) == (2.0, pytest.approx(4.303 / math.sqrt(3)), 3)
    one = paired({0: 2.0}, {0: 1.0})
    assert (one.mean, one.pairs) == (1.0, 1) and math.isnan(one.half)
    assert paired({0: 1.0}, {1: 1.0}).pairs == 0


def test_the_interval_is_never_narrower_than_student_says():
    gaps = {seed: float(seed % 2) for seed in range(200)}
    found = paired(gaps, dict.fromkeys(gaps, 0.0))
    deviation = math.sqrt(200 * 0.25 / 199)
    assert found.half >= 1.9720 * deviation / math.sqrt(200)  # t(199)


def test_seeds_of_one_method_and_level_are_one_group(tmp_path):
    first, other = cohorts(read(write_benchmark(tmp_path)))
    assert (first.title, other.title) == ("tiny on made-up", "big on made-up")
    assert [(g.label, g.level, len(g.runs)) for g in first.groups] == [
        (label, level, 3) for label in ("gmp global", "st3", "str goal") for level in (0.9, 0.98)
    ]
    group = next(g for g in first.groups if g.label == "str goal" and g.level == 0.98)
    assert group.accuracy.mean == pytest.approx(0.901)
    assert group.accuracy.deviation == pytest.approx(0.001)
    assert group.macs.mean == pytest.approx(0.02 * 100_200)
    assert first.dense.accuracy.mean == pytest.approx(0.931)
    assert first.dense_macs == 100_200
    assert first.notes == ()


def test_runs_that_are_not_finished_or_have_no_accuracy_are_in_no_mean(tmp_path):
    write_outcome(tmp_path / "a")
    write_outcome(tmp_path / "b", seed=1, finished=False)
    write_outcome(tmp_path / "c", seed=2, accuracy=None)
    write_outcome(tmp_path / "d", seed=3, accuracy=float("nan"))
    assert [run.name for run in only(tmp_path).groups[0].runs] == ["a"]


def test_what_differs_beside_the_seed_is_in_the_label(tmp_path):
    for name, rate, seed in (("a", 0.1, 0), ("b", 0.1, 1), ("c", 0.2, 0)):
        write_outcome(tmp_path / name, seed=seed, optimizer={"lr": rate, "weight_decay": 0.0})
    groups = only(tmp_path).groups
    assert [(g.label, len(g.runs)) for g in groups] == [
        ("str goal, optimizer.lr=0.1", 2),
        ("str goal, optimizer.lr=0.2", 1),
    ]


def test_many_variants_are_points_of_one_label_and_the_best_stands_for_it(tmp_path):
    for number in range(12):
        rate = {"lr": 0.01 * (number + 1), "weight_decay": 0.0}
        write_outcome(tmp_path / f"trial-{number:02d}", accuracy=0.8 + number / 100, optimizer=rate)
    found = only(tmp_path)
    assert found.labels == ("str goal",)
    assert len(found.groups) == 12
    assert at_level(found, 0.9)["str goal"].accuracy.mean == pytest.approx(0.91)


def test_methods_trained_in_another_way_are_told(tmp_path):
    write_outcome(tmp_path / "a")
    write_outcome(tmp_path / "b", method="gmp", epochs=60)
    (note,) = only(tmp_path).notes
    assert "epochs (3, 60)" in note


def test_where_and_how_a_run_was_made_does_not_matter(tmp_path):
    write_outcome(tmp_path / "a", threads=1, log={"every_steps": 50})
    write_outcome(tmp_path / "b", seed=1, threads=8, log={"every_steps": 1}, name="another", compile=True)
    (group,) = only(tmp_path).groups
    assert len(group.runs) == 2


def test_means_over_different_seeds_are_told(tmp_path):
    write_outcome(tmp_path / "a")
    write_outcome(tmp_path / "b", seed=1)
    write_outcome(tmp_path / "c", method="gmp")
    (note,) = only(tmp_path).notes
    assert "The groups have 1 to 2 runs" in note


def test_a_repeated_seed_counts_once(tmp_path):
    write_outcome(tmp_path / "a", accuracy=0.9)
    write_outcome(tmp_path / "b", accuracy=0.5)
    found = only(tmp_path)
    assert found.groups[0].accuracy.mean == 0.9
    assert found.notes == ("b repeats the seed and the settings of a and is left out.",)


def test_totals_of_multiply_adds_that_are_near_are_one_level(tmp_path):
    for seed, flops in enumerate((330_554, 346_616)):
        write_outcome(tmp_path / f"whole-{seed}", seed=seed, goal={"flops": flops})
        write_outcome(tmp_path / f"half-{seed}", seed=seed, goal={"flops": flops // 2})
    groups = only(tmp_path).groups
    assert sorted((g.label, g.goal, len(g.runs), g.level) for g in groups) == [
        ("str goal, flops", "about 169,292 multiply-adds", 2, None),
        ("str goal, flops", "about 338,585 multiply-adds", 2, None),
    ]


def test_runs_without_a_goal_are_levels_of_what_drives_them(tmp_path):
    for seed in range(2):
        for push, level in ((2.0, 0.7), (4.0, 0.9)):
            folder = tmp_path / f"push-{push}-{seed}"
            write_outcome(folder, seed=seed, level=level, goal=None, propose={"push": push})
    found = only(tmp_path)
    assert [(g.label, len(g.runs), round(g.sparsity.mean, 3)) for g in found.groups] == [
        ("str", 2, 0.7),
        ("str", 2, 0.9),
    ]
    assert levels(found) == []  # nobody was asked for a sparsity, and no two methods met


def test_a_method_without_a_goal_joins_the_level_that_it_came_near(tmp_path):
    write_outcome(tmp_path / "asked", method="gmp", level=0.98)
    write_outcome(tmp_path / "near", level=0.9805, goal=None)
    write_outcome(tmp_path / "far", level=0.95, goal=None, propose={"push": 1.0})
    found = only(tmp_path)
    assert levels(found) == [0.98]
    assert sorted(at_level(found, 0.98)) == ["gmp global", "str"]


def test_sections_of_one_network_say_what_differs(tmp_path):
    write_outcome(tmp_path / "a", data={"name": "images", "subset": 10_000})
    write_outcome(tmp_path / "b", data={"name": "images", "subset": 20_000})
    titles = [cohort.title for cohort in cohorts(read(tmp_path))]
    assert titles == ["tiny on images (data.subset=10000)", "tiny on images (data.subset=20000)"]


def test_more_labels_than_colours_share_those_of_their_method(tmp_path):
    for number in range(5):
        write_outcome(tmp_path / f"g{number}", method="gmp", optimizer={"lr": 0.1 + number})
        write_outcome(tmp_path / f"s{number}", optimizer={"lr": 0.1 + number})
    found = only(tmp_path)
    assert len(found.labels) == 10
    assert {group.family for group in found.groups} == {"gmp", "str"}


def test_damaged_files_are_told_and_no_end(tmp_path):
    write_outcome(tmp_path / "a")
    (tmp_path / "a" / "budget.json").write_text("{")
    run = read_outcome(tmp_path / "a")
    assert run.budget is None and "budget.json cannot be used" in run.problems[0]
    (tmp_path / "a" / "result.json").write_text('{"last": ')
    assert not read_outcome(tmp_path / "a").finished
    with pytest.raises(ValueError, match="holds no run"):
        read_outcome(tmp_path)
