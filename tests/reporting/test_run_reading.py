"""Reading run folders: whole ones, growing ones, damaged ones."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from folders import DENSITIES, TENSORS, write_run

from softprune.reporting.run import find_runs, read_run


def test_a_whole_run_is_read_without_problems(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a"))
    assert run.problems == ()
    assert (run.name, run.method, run.label, run.goal) == ("a", "str", "str goal", "90 % sparsity")
    assert (run.model, run.data, run.seed, run.finished) == ("tiny", "made-up", 7, True)
    assert run.accuracy == pytest.approx(0.9)
    # 0.02 * 1000 + 0.5 * 200 of 1200 weights; 0.02 * 100000 + 0.5 * 200 multiply-adds
    assert (run.params, run.macs) == (120, 2100)
    assert run.sparsity == pytest.approx(0.9)
    assert list(run.layers) == list(TENSORS)
    assert [row.density for row in run.layers["fc.weight"]] == [d[1] for d in DENSITIES]
    assert [(row.epoch, row.step) for row in run.layers["conv.weight"]] == [(0, 4), (1, 8), (2, 12)]
    assert len(run.steps) == len(run.epochs) == 3
    assert run.budget is not None and run.budget.profile is not None


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no run: it has no config\.yaml"):
        read_run(tmp_path)


def test_all_else_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("method: {name: str}\n")
    run = read_run(tmp_path)
    assert (run.finished, run.accuracy, run.sparsity, run.params, run.budget) == (False, None, None, None, None)
    assert len(run.problems) == 4
    for file in ("metrics.jsonl", "layers.csv", "environment.json", "budget.json"):
        assert any(problem.startswith(f"{file} is missing") for problem in run.problems)


def test_a_line_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", finished=False)
    for file in ("metrics.jsonl", "layers.csv"):
        whole = (folder / file).read_text()
        (folder / file).write_text(whole[:-3])
    run = read_run(folder)
    assert len(run.epochs) == 2 and len(run.steps) == 3
    assert len(run.layers["fc.weight"]) == 2 and len(run.layers["conv.weight"]) == 3
    assert sum("in the middle of a line" in problem for problem in run.problems) == 2


@pytest.mark.parametrize("file", ["metrics.jsonl", "layers.csv", "budget.json", "result.json", "environment.json"])
@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00garbage", b"[1, 2]\n", b"{" * 100_000, b"\n\n\n", b'{"a": NaN', b"a,b\n1,2\n\0\n", b"ep\roch\n"],
)
def test_a_damaged_file_is_named_and_nothing_raised(tmp_path: Path, file: str, content: bytes) -> None:
    folder = write_run(tmp_path / "a")
    (folder / file).write_bytes(content)
    run = read_run(folder)
    if content.strip() or file.endswith(".json"):
        assert any(problem.startswith(file) for problem in run.problems)
    assert all(problem.endswith((".", "]")) or "cannot be used" in problem for problem in run.problems)


@pytest.mark.parametrize("text", ["- a\n- b\n", "key: [unclosed\n", "just words", "a: &a [*a]\n"])
def test_a_configuration_that_is_none_is_a_problem(tmp_path: Path, text: str) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "config.yaml").write_text(text)
    run = read_run(folder)
    assert run.method == "dense" and run.goal == ""


def test_nothing_in_a_configuration_is_executed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "config.yaml").write_text(f"method: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']\n")
    assert any(problem.startswith("config.yaml") for problem in read_run(folder).problems)
    assert not (tmp_path / "made").exists()


def test_values_that_are_no_numbers_are_nan_and_extra_keys_do_not_matter(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "epoch", "epoch": 3, "accuracy": "high", "sparsity": None, "new": [1]}) + "\n")
        file.write('{"kind": "epoch", "epoch": 4, "accuracy": NaN, "sparsity": Infinity}\n{"kind": "unheard-of"}\n')
    with (folder / "layers.csv").open("a") as file:
        file.write("3,16,conv.weight,nan,huge,,nan,nan,nan,-\nx,y,conv.weight,1,1,1,1,1,1,1\n")
    run = read_run(folder)
    assert run.accuracy == pytest.approx(0.9)  # the last one that is known
    last = run.layers["conv.weight"][-1]
    assert last.epoch == 3 and all(map(math.isnan, (last.s, last.alpha, last.density, last.macs)))
    assert any("1 rows have no epoch or step" in problem for problem in run.problems)


def test_names_with_commas_quotes_and_line_separators_stay_whole(tmp_path: Path) -> None:
    names = ('a,"b"', "c\u2028d<script>")
    run = read_run(write_run(tmp_path / "a", tensors=names))
    assert tuple(run.layers) == names and run.problems == ()


@pytest.mark.parametrize(
    ("config", "label", "goal"),
    [
        ({"method": None, "goal": None}, "dense", ""),
        ({"goal": None}, "str", ""),
        ({"method": {"name": "gmp"}}, "gmp global", "90 % sparsity"),
        (
            {"method": {"name": "gmp"}, "goal": {"flops": 1234, "budget": "erk"}},
            "gmp erk, flops",
            "1,234 multiply-adds",
        ),
        ({"method": {"name": "str", "granularity": "filter"}}, "str goal, filter", "90 % sparsity"),
        ({"goal": {"budget": "resnet50/str-90.23"}}, "str str-90.23", "budget resnet50/str-90.23"),
        ({"goal": {"params": 5000, "scope": "all"}}, "str goal, all parameters", "5,000 parameters"),
        ({"goal": 0.95}, "str goal", "95 % sparsity"),
        ({"model": {"name": "a", "weights": "a.pt"}}, "str goal, fine-tuned", "90 % sparsity"),
    ],
)
def test_labels_say_what_distinguishes_a_run(tmp_path: Path, config: dict, label: str, goal: str) -> None:
    run = read_run(write_run(tmp_path / "a", **config))
    assert (run.label, run.goal) == (label, goal)


def test_runs_are_found_below_folders_once_and_sorted(tmp_path: Path) -> None:
    second, first = write_run(tmp_path / "sweep/trials/1"), write_run(tmp_path / "sweep/trials/0")
    alone = write_run(tmp_path / "alone")
    (first / "inside").mkdir()
    (first / "inside" / "config.yaml").write_text("a run holds no other run\n")
    assert find_runs([tmp_path / "sweep", alone, second]) == sorted([alone, first, second])


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_path_without_runs_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=name):
        find_runs([tmp_path / name])


def test_reports_need_no_torch(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "a"), tmp_path / "report.html"
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from softprune.reporting.report import write_report\n"
        f"write_report([Path({str(run)!r})], Path({str(out)!r}), against=['uniform', 'erk'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 10_000
