"""Sweeps that really train: what they leave, how workers share them, stop, die and go on."""

import json
import os
import signal
import sqlite3

import pytest
from sweep_parts import (
    PROCESSES,
    Pause,
    Signal,
    assert_same_run,
    put_to_sleep,
    read_best,
    read_table,
    wait_for,
    write_sweep,
)

from softprune.train.config import RunConfig
from softprune.train.load_run import evaluate_run
from softprune.train.run import train
from softprune.train.sweep.run import run_sweep
from softprune.train.sweep.sweep import Sweep

THREE_EPOCHS = {"epochs": 3, "data.subset": 320}


def test_a_grid_leaves_ordinary_run_folders_and_tables(tmp_path):
    search = {"optimizer.lr": [0.05, 0.1], "ema": [None, 0.5]}
    file = write_sweep(tmp_path, search=search, objectives=["accuracy"])
    results = run_sweep(Sweep.load(file, trust=True), tmp_path / "out")
    rows = read_table(tmp_path / "out")
    assert [(row["optimizer.lr"], row["ema"]) for row in rows] == [
        ("0.05", "null"), ("0.05", "0.5"), ("0.1", "null"), ("0.1", "0.5"),
    ]  # fmt: skip
    for row in rows:
        folder = tmp_path / "out" / row["folder"]
        assert row["state"] == "complete" and folder.name == f"{int(row['number']):04d}"
        config = RunConfig.load(folder / "config.yaml", trust=True)
        assert config.name == f"test-{folder.name}" and config.optimizer.lr == float(row["optimizer.lr"])
        last = json.loads((folder / "result.json").read_text())["last"]
        assert float(row["accuracy"]) == last.get("average_accuracy", last["accuracy"])
        assert evaluate_run(folder, trust=True)[0].samples == 517
    best = read_best(tmp_path / "out")
    highest = max(float(row["accuracy"]) for row in rows)
    assert best["best"][0]["objectives"] == {"accuracy": highest}
    assert best["best"][0]["number"] == results.best[0].number and best["trials"] == {"complete": 4}


def test_two_workers_run_every_combination_exactly_once(tmp_path, start_worker):
    file = write_sweep(tmp_path, search={"optimizer.lr": [0.05, 0.1], "seed": [0, 1, 2]})
    # Neither gets past the first step of its first trial before the other is there.
    together = PROCESSES.Barrier(2, timeout=120)
    workers = [start_worker(file, tmp_path / "out", step=1, act=together.wait) for _ in range(2)]
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    rows = read_table(tmp_path / "out")
    assert {(row["optimizer.lr"], row["seed"]) for row in rows} == {
        (lr, seed) for lr in ("0.05", "0.1") for seed in ("0", "1", "2")
    }
    assert [(row["state"], row["attempts"]) for row in rows] == [("complete", "1")] * 6
    assert sorted(path.name for path in (tmp_path / "out" / "trials").iterdir()) == [f"{n:04d}" for n in range(6)]


def test_the_pareto_set_is_that_of_the_table(tmp_path):
    changes = {"epochs": 2, "data.subset": 320}
    search = {"propose.push": {"low": 1.0, "high": 7.0, "step": 2}, "optimizer.lr": [0.05, 0.2]}
    run_sweep(
        Sweep.load(
            write_sweep(tmp_path, changes=changes, search=search, objectives=["accuracy", "params"]), trust=True
        ),
        tmp_path / "out",
    )
    points = {int(r["number"]): (float(r["accuracy"]), int(r["params"])) for r in read_table(tmp_path / "out")}
    assert len(points) == 8
    front = {
        number
        for number, (accuracy, params) in points.items()
        if not any((a > accuracy and p <= params) or (a >= accuracy and p < params) for a, p in points.values())
    }
    best = read_best(tmp_path / "out")["best"]
    assert {trial["number"] for trial in best} == front and 0 < len(front) < 8
    assert best == sorted(best, key=lambda trial: -trial["objectives"]["accuracy"])


def test_a_killed_worker_s_trial_goes_on_from_its_checkpoint_bit_for_bit(tmp_path, start_worker):
    file = write_sweep(tmp_path, search={"optimizer.lr": [0.1]}, changes=THREE_EPOCHS, grace_seconds=2)
    worker = start_worker(file, tmp_path / "out", step=7, act=Signal(signal.SIGKILL))
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    run = tmp_path / "out" / "trials" / "0000"
    assert not (run / "result.json").exists()
    results = run_sweep(Sweep.load(file, trust=True), tmp_path / "out")
    assert [(t.number, t.state, t.attempts, t.folder) for t in results.trials] == [(0, "complete", 2, "trials/0000")]
    assert "after step 5 of 15" in (run / "notes.txt").read_text()
    train(RunConfig.load(run / "config.yaml", trust=True), tmp_path / "whole")
    assert_same_run(run, tmp_path / "whole")


def test_a_worker_that_only_slept_never_writes_beside_the_one_that_took_over(tmp_path, start_worker):
    file = write_sweep(tmp_path, search={"optimizer.lr": [0.1]}, changes=THREE_EPOCHS, grace_seconds=2, retries=9)
    asleep = start_worker(file, tmp_path / "out", step=7, act=Pause(tmp_path / "paused"))
    wait_for(tmp_path / "paused")
    put_to_sleep(asleep, tmp_path / "out" / "study.db")
    (tmp_path / "paused").unlink()
    heir = start_worker(file, tmp_path / "out")
    # Written when the heir found the run folder still held, and put the trial back.
    wait_for(tmp_path / "out" / "trials.csv")
    assert read_table(tmp_path / "out")[0]["state"] == "waiting"
    os.kill(asleep.pid, signal.SIGCONT)
    for worker in (asleep, heir):
        worker.join()
        assert worker.exitcode == 0
    (row,) = read_table(tmp_path / "out")
    assert row["state"] == "complete" and int(row["attempts"]) >= 3
    run = tmp_path / "out" / "trials" / "0000"
    train(RunConfig.load(run / "config.yaml", trust=True), tmp_path / "whole")
    assert_same_run(run, tmp_path / "whole")


# In the middle of an epoch, and after its last step, where a run evaluates before it stops.
@pytest.mark.parametrize(("kind", "step"), [(signal.SIGTERM, 7), (signal.SIGINT, 10)], ids=["term-7", "int-10"])
def test_a_signal_puts_the_trial_back_and_a_later_start_goes_on(tmp_path, start_worker, kind, step):
    search = {"optimizer.lr": [0.1, 0.2]}
    file = write_sweep(tmp_path, search=search, changes=THREE_EPOCHS, retries=0)
    worker = start_worker(file, tmp_path / "out", step=step, act=Signal(kind))
    worker.join()
    assert worker.exitcode == 0
    first, second = read_table(tmp_path / "out")
    assert (first["state"], first["attempts"], first["folder"]) == ("waiting", "1", "trials/0000")
    assert (second["state"], second["attempts"]) == ("waiting", "0")
    results = run_sweep(Sweep.load(file, trust=True), tmp_path / "out")
    assert [(t.state, t.attempts) for t in results.trials] == [("complete", 2), ("complete", 1)]
    run = tmp_path / "out" / "trials" / "0000"
    assert f"after step {step} of 15" in (run / "notes.txt").read_text()
    train(RunConfig.load(run / "config.yaml", trust=True), tmp_path / "whole")
    assert_same_run(run, tmp_path / "whole")


def test_a_hopeless_trial_is_stopped_early_and_leaves_a_readable_run(tmp_path):
    # A learning rate of 1e-6 learns nothing: after each epoch it is below the median of the two before it.
    file = write_sweep(
        tmp_path,
        base="digits/dense",
        search={"optimizer.lr": [0.5, 0.3, 1e-6]},
        changes={"epochs": 4, "data.subset": 640, "propose.push": 8.2},
        pruner={"name": "median", "startup_trials": 2, "warmup_epochs": 2},
    )
    run_sweep(Sweep.load(file, trust=True), tmp_path / "out")
    rows = read_table(tmp_path / "out")
    assert [row["state"] for row in rows] == ["complete", "complete", "pruned"]
    assert rows[2]["accuracy"] == ""
    run = tmp_path / "out" / rows[2]["folder"]
    epochs = [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert epochs == [0, 1]
    assert evaluate_run(run, trust=True)[0].samples == 517
    assert not (run / "result.json").exists()


def test_a_failing_trial_is_recorded_and_the_sweep_goes_on(tmp_path):
    wild = {"optimizer.threshold_decay": 1e-30, "method.s_init": -100.0, "propose.push": 8.2}
    file = write_sweep(tmp_path, search={"optimizer.lr": [1e18, 0.1]}, changes={**wild, "data.subset": 320})
    results = run_sweep(Sweep.load(file, trust=True), tmp_path / "out")
    failed, complete = read_table(tmp_path / "out")
    assert (failed["state"], complete["state"]) == ("failed", "complete")
    assert failed["reason"].startswith("FloatingPointError: the loss is")
    assert "FloatingPointError" in (tmp_path / "out" / failed["folder"] / "error.txt").read_text()
    assert [trial.number for trial in results.best] == [1]
    assert run_sweep(Sweep.load(file, trust=True), tmp_path / "out").trials == results.trials


def test_a_signal_at_the_very_end_of_a_trial_stops_the_worker_after_it(tmp_path, start_worker):
    file = write_sweep(tmp_path, search={"seed": [0, 1]})
    start_worker(file, tmp_path / "out", step=2, act=Signal(signal.SIGTERM)).join()
    assert [row["state"] for row in read_table(tmp_path / "out")] == ["complete", "waiting"]


def test_a_worker_stops_with_the_process_that_started_it(tmp_path):
    # No process has this id, so the one that started this worker is gone.
    sweep = Sweep.load(write_sweep(tmp_path, search={"seed": [0, 1]}), trust=True)
    results = run_sweep(sweep, tmp_path / "out", parent=2**22 + 1)
    assert results.ended == 0 and not list((tmp_path / "out" / "trials").iterdir())


def test_random_trials_are_those_of_the_seed_whatever_was_stopped(tmp_path, start_worker):
    search = {"optimizer.lr": {"low": 0.01, "high": 0.3, "log": True}, "seed": {"low": 0, "high": 9}}
    tables = {}
    for name, seed, stop in (("one", 1, None), ("stopped", 1, 1), ("other", 2, None)):
        (tmp_path / name).mkdir()
        file = write_sweep(tmp_path / name, search=search, sampler="random", trials=3, seed=seed)
        if stop is not None:
            start_worker(file, tmp_path / name / "out", step=stop, act=Signal(signal.SIGTERM)).join()
        run_sweep(Sweep.load(file, trust=True), tmp_path / name / "out")
        tables[name] = [
            {k: v for k, v in row.items() if k != "attempts"} for row in read_table(tmp_path / name / "out")
        ]
    assert tables["one"] == tables["stopped"]
    assert [row["optimizer.lr"] for row in tables["one"]] != [row["optimizer.lr"] for row in tables["other"]]
    assert len({row["optimizer.lr"] for row in tables["one"]}) == 3
    assert all(0.01 <= float(row["optimizer.lr"]) <= 0.3 and 0 <= int(row["seed"]) <= 9 for row in tables["one"])


@pytest.mark.parametrize(
    ("changes", "missing"),
    [({"data": "mnist", "data.root": "/nowhere"}, "/nowhere"), ({"model": "not_here:net"}, "no module 'not_here'")],
    ids=["data", "model"],
)
def test_a_machine_that_lacks_something_stops_and_fails_no_trial(tmp_path, changes, missing):
    file = write_sweep(tmp_path, search={"seed": [0, 1]}, changes=changes)
    with pytest.raises((OSError, ValueError), match=missing):
        run_sweep(Sweep.load(file, trust=True), tmp_path / "out")
    assert not list((tmp_path / "out" / "trials").iterdir())


def test_a_full_disk_stops_the_worker_and_puts_the_trial_back(tmp_path, monkeypatch):
    import softprune.core.state_file as state_file

    real = state_file.save_file

    def full(tensors, path, metadata=None):
        raise OSError(28, "No space left on device")

    file = write_sweep(tmp_path, search={"seed": [0, 1]}, retries=1)
    monkeypatch.setattr(state_file, "save_file", full)
    with pytest.raises(OSError, match="No space left on device"):
        run_sweep(Sweep.load(file, trust=True), tmp_path / "out")
    monkeypatch.setattr(state_file, "save_file", real)
    results = run_sweep(Sweep.load(file, trust=True), tmp_path / "out")
    assert [(trial.state, trial.attempts) for trial in results.trials] == [("complete", 2), ("complete", 1)]


def test_a_database_that_cannot_be_written_is_said_in_one_sentence(tmp_path, monkeypatch):
    real = sqlite3.connect

    def full(*args, **words):
        raise sqlite3.OperationalError("disk I/O error")

    file = write_sweep(tmp_path, search={"seed": [0]})
    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(OSError, match=r"study\.db cannot be used: .*disk I/O error; start the same command again"):
        run_sweep(Sweep.load(file, trust=True), tmp_path / "out")
    monkeypatch.setattr(sqlite3, "connect", real)
    assert [trial.state for trial in run_sweep(Sweep.load(file, trust=True), tmp_path / "out").trials] == ["complete"]
