"""Full disks, and files of a run folder that are devices, pipes, far too large or broken: one clear line, no hang."""

import os
import resource
import shutil
import tracemalloc

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

import warm
from softprune import STR, Budget, sparsify
from softprune.core.state_file import write_tensors
from softprune.records import read_text, write_text
from softprune.reporting.live_run import WatchedRun
from softprune.reporting.run import read_run
from softprune.train.config import RunConfig
from softprune.train.config.keys import parse_yaml
from softprune.train.load_run import evaluate_run
from softprune.train.run import resume, train
from softprune.train.run_folder import RunFolder

SHORT = ["epochs=2", "data.subset=128", "threads=1", "log.every_steps=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(RunConfig.load("digits/str-goal", SHORT), folder)
    return folder


def command(*words, largest_file=None):
    """The command in a process of its own, in which no file may grow beyond a size, as on a disk that is full."""
    return warm.run("-m", "softprune", *words, check=False, largest_file=largest_file)


def assert_one_line(result, *words):
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("error:"))
    assert all(word in line for word in words), line


def test_training_on_a_full_disk_ends_in_one_line_and_goes_on_later(tmp_path):
    folder = tmp_path / "run"
    result = command("train", "digits/str-goal", *SHORT, "--out", folder, "--quiet", largest_file=200_000)
    assert_one_line(result, "could not write", "safetensors", "intact")
    assert not list((folder / "checkpoints").iterdir())
    assert resume(folder).finished


def test_a_full_disk_while_logging_names_the_file_and_the_way_on(tmp_path):
    run = RunFolder.create(tmp_path / "run", "epochs: 1\n", seed=0, world=1)
    run.log({"step": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "run" / "metrics.jsonl").stat().st_size + 3, limits[1]))
    try:
        with pytest.raises(OSError, match=r"could not write .*metrics\.jsonl: File too large; .* train --resume .*run"):
            run.log({"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert run.metrics() == [{"step": 1}]


@pytest.mark.parametrize("words", [["bake", "RUN"], ["export", "RUN"], ["export", "RUN", "-f", "program"]])
def test_writing_weights_on_a_full_disk_leaves_the_old_file_whole(run, tmp_path, words):
    suffix = {"bake": "safetensors", "export": "spx"}[words[0]] if "program" not in words else "pt2"
    out = tmp_path / f"model.{suffix}"
    out.write_bytes(b"the old one")
    force = ["--force"] if words[0] == "export" else []
    words = [str(run) if word == "RUN" else word for word in words]
    result = command(*words, "-o", out, *force, largest_file=20_000)
    assert_one_line(result, "could not write", out.name, "what was there before is unchanged")
    assert out.read_bytes() == b"the old one" and [path.name for path in tmp_path.iterdir()] == [out.name]


def test_a_sparsifier_on_a_full_disk_keeps_what_it_saved_before(tmp_path, monkeypatch):
    model = nn.Sequential(nn.Linear(8, 8))
    sparsifier = sparsify(model, STR(s_init=-3.0))
    sparsifier.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(tensors, path, metadata=None):
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("softprune.core.state_file.save_file", full)
    with pytest.raises(OSError, match=r"could not write .*state\.safetensors: .*No space left .* unchanged"):
        sparsifier.save(tmp_path)
    with pytest.raises(OSError, match=r"could not write .*w\.safetensors"):
        write_tensors(tmp_path / "w.safetensors", {"w": torch.ones(2)})
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_other_errors_of_a_writer_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"could not write .*a\.txt: No such file"):
        write_text(tmp_path / "none" / "a.txt", "x")


def put(kind, path):
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "zeros", "folder"])
@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "layers.csv"])
def test_devices_and_pipes_in_a_run_folder_are_refused(run, tmp_path, kind, name):
    folder = shutil.copytree(run, tmp_path / "run")
    put(kind, folder / name)
    with pytest.raises(ValueError, match=r"is not a regular file|holds no run"):
        resume(folder)
    if name == "config.yaml":
        with pytest.raises(ValueError, match=r"config\.yaml is not a regular file"):
            RunConfig.load(folder / name)


@pytest.mark.parametrize("kind", ["pipe", "zeros", "folder"])
def test_a_checkpoint_that_is_no_file_is_passed_over(run, tmp_path, kind):
    folder = shutil.copytree(run, tmp_path / "run")
    newest = max((folder / "checkpoints").glob("step-*"))
    put(kind, newest)
    assert evaluate_run(folder)[0].samples > 0
    assert resume(folder).finished
    assert newest.is_file() and newest.with_name(f"{newest.name}.unreadable").exists()


@pytest.mark.parametrize("kind", ["pipe", "zeros"])
def test_reports_and_views_pass_over_devices_and_pipes(run, tmp_path, kind):
    folder = shutil.copytree(run, tmp_path / "run")
    for name in ("metrics.jsonl", "layers.csv", "environment.json", "budget.json", "result.json"):
        put(kind, folder / name)
    found = read_run(folder)
    assert found.epochs == () and found.budget is None and len(found.problems) >= 4
    watched = WatchedRun(folder)
    watched.look()
    assert not watched.layers and watched.step == 0


def test_a_file_is_read_up_to_a_size(tmp_path):
    path = tmp_path / "big.yaml"
    path.touch()
    os.truncate(path, 1 << 33)  # a hole: it takes no room on the disk
    tracemalloc.start()
    for act in (lambda: RunConfig.load(path), lambda: read_text(path)):
        with pytest.raises(ValueError, match=r"big\.yaml is larger than the (4|64) MB"):
            act()
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()


def aliases(levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 5000, "it is nested too deeply"),
        ("\n".join("  " * n + "a:" for n in range(2000)), "it is nested too deeply"),
        (aliases(12), "holds more than 1,000,000 values"),
        ("&a [*a]", "holds more than 1,000,000 values"),
        ("epochs: " + "9" * 5000, "is not valid YAML"),
    ],
    ids=["lists", "mappings", "aliases", "itself", "digits"],
)
def test_yaml_that_would_never_end_is_refused(tmp_path, text, message):
    (tmp_path / "deep.yaml").write_text(text)
    with pytest.raises(ValueError, match=rf"deep\.yaml.* {message}"):
        RunConfig.load(tmp_path / "deep.yaml")
    assert parse_yaml("a: &a [1, 2]\nb: *a", "it") == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("layers.csv", "epoch,name\n0,a\n", r"layers\.csv has the columns 'epoch,name', where epoch,step,name"),
        ("layers.csv", '"\n', r"layers\.csv has the columns"),
        ("layers.csv", "\x00\n", r"layers\.csv has the columns"),
        ("metrics.jsonl", "\udcff", r"metrics\.jsonl is not a text file"),
    ],
    ids=["columns", "quote", "nul", "no text"],
)
def test_a_broken_log_is_refused_before_anything_is_changed(run, tmp_path, name, text, message):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    other = "metrics.jsonl" if name == "layers.csv" else "layers.csv"
    before = (folder / other).read_bytes()
    with pytest.raises(ValueError, match=message):
        resume(folder)
    assert (folder / other).read_bytes() == before


def test_lines_of_a_log_that_are_none_are_left_out(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    rows = RunFolder(folder).metrics()
    strange = ["[" * 5000, '{"step": 1e999}', '{"step": null}', "[]", '{"kind": 3}']
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(f"{line}\n" for line in strange)
    with (folder / "layers.csv").open("a") as file:
        file.write(
            ",".join(["x"] * 20) + "\n" + ",".join("x" * len(RunFolder(folder)._lines("layers.csv")[0].split(",")))
        )
    assert RunFolder(folder).metrics() == rows
    assert resume(folder).finished
    assert RunFolder(folder).metrics() == rows


def test_thresholds_of_a_table_without_them(run, tmp_path):
    assert len(RunFolder(run).thresholds()) == 4
    for text in ("epoch,step\n0,1\n", "name,alpha\na,much\n", "name,alpha\na\n"):
        (tmp_path / "layers.csv").write_text(text)
        with pytest.raises(ValueError, match=r"layers\.csv has no columns name and alpha that can be read"):
            RunFolder(tmp_path).thresholds()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"name,density\n', r"b\.csv has no header that can be read"),
        ("name\na\n", r"b\.csv has columns name; needed are"),
        ("", r"b\.csv has columns none"),
        ("name,density\na\n", r"b\.csv, line 2 needs 2 cells"),
        ("name,density\na,x\n", r"b\.csv, line 2"),
    ],
)
def test_broken_tables_of_budgets(tmp_path, text, message):
    (tmp_path / "b.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        Budget.load(tmp_path / "b.csv")
    for kind in ("pipe", "zeros"):
        put(kind, tmp_path / "b.csv")
        with pytest.raises(ValueError, match=r"b\.csv is not a regular file"):
            Budget.load(tmp_path / "b.csv")


def test_a_finished_run_that_has_lost_its_log_is_named(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "metrics.jsonl").write_text("[" * 5000 + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl has lost its rows, .* use softprune evaluate"):
        resume(folder)
