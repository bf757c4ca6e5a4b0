"""The study that workers share: made once, joined by the same sweep only, every trial taken once."""

import os
import sqlite3
import time
from contextlib import closing

import optuna
import pytest
from optuna.trial import TrialState
from sweep_parts import PROCESSES, write_sweep

from softprune.train.observer import Progress, StopRun
from softprune.train.sweep.folder import READY, Results, enter
from softprune.train.sweep.study import open_url, without_password
from softprune.train.sweep.sweep import Sweep
from softprune.train.sweep.worker import TrialWatcher

TPE = {"search": {"optimizer.lr": {"low": 0.01, "high": 1.0, "log": True}}, "sampler": "tpe", "trials": 16}


def take_all(file, folder, together, taken):
    study = enter(Sweep.load(file, trust=True), folder)
    together.wait()
    mine = []
    while (claim := study.claim()) is not None:
        mine.append(claim.slot.number)
    taken.put(mine)


def test_two_processes_that_begin_at_once_share_the_trials_of_one_study(tmp_path):
    file = write_sweep(tmp_path, search={"seed": {"low": 0, "high": 29}})
    together, taken = PROCESSES.Barrier(2, timeout=120), PROCESSES.Queue()
    workers = [PROCESSES.Process(target=take_all, args=(file, tmp_path / "out", together, taken)) for _ in range(2)]
    for worker in workers:
        worker.start()
    claimed = sorted(taken.get(timeout=120) + taken.get(timeout=120))
    for worker in workers:
        worker.join()
    assert claimed == list(range(30))


def searched(folder, **keys):
    """The values that a sweep chooses when the best learning rate is 0.1; nothing is trained."""
    folder.mkdir()
    sweep = Sweep.load(write_sweep(folder, **keys), trust=True)
    study, found = enter(sweep, folder / "out"), []
    while (claim := study.claim()) is not None:
        values = sweep.space.suggest(claim.trial)
        found.append(values["optimizer.lr"])
        study.complete(claim, [-abs(values["optimizer.lr"] - 0.1)])
    return found


def test_tpe_chooses_the_same_again_and_learns(tmp_path):
    first, again, other = (searched(tmp_path / str(n), **TPE, seed=seed) for n, seed in enumerate((0, 0, 1)))
    assert first == again != other
    assert len(set(first)) == 16
    # The first ten are drawn at random; those after them crowd around the best.
    assert min(abs(lr - 0.1) for lr in first[10:]) <= min(abs(lr - 0.1) for lr in first[:10])


def test_the_same_folder_with_another_sweep_is_refused(tmp_path):
    enter(Sweep.load(write_sweep(tmp_path, search={"seed": [0, 1]}), trust=True), tmp_path / "out").close()
    before = {path.name for path in (tmp_path / "out").iterdir()}
    for changed, key in (
        ({"search": {"seed": [0, 2]}}, "search.seed"),
        ({"search": {"seed": [0, 1]}, "retries": 5}, "retries"),
        ({"search": {"seed": [0, 1]}, "changes": {"batch": 32}}, "base.batch"),
        ({"search": {"seed": [0, 1]}, "storage": f"sqlite:///{tmp_path}/other.db"}, "storage"),
    ):
        with pytest.raises(ValueError, match=rf"holds another sweep: {key} differ\. .*--out"):
            enter(Sweep.load(write_sweep(tmp_path, **changed), trust=True), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == before
    assert not (tmp_path / "other.db").exists()


def test_what_the_folder_keeps_joins_it(tmp_path):
    sweep = Sweep.load(write_sweep(tmp_path, search={"seed": [0, 1]}, changes={"batch": 32}), trust=True)
    enter(sweep, tmp_path / "out")
    again = Sweep.load(tmp_path / "out" / "sweep.yaml", trust=True)
    assert again.base == sweep.base and again.config.changes == {}
    assert len(enter(again, tmp_path / "out").slots()) == 2


def test_a_folder_that_holds_a_run_is_refused(tmp_path):
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ValueError, match="holds a run, not a sweep"):
        enter(Sweep.load(write_sweep(tmp_path, search={"seed": [0]}), trust=True), tmp_path)


def test_a_database_shared_by_url_holds_folders_of_several_machines_together(tmp_path):
    storage = f"sqlite:///{tmp_path}/shared.db"
    file = write_sweep(tmp_path, search={"seed": [0, 1]}, storage=storage)
    here = enter(Sweep.load(file, trust=True), tmp_path / "here")
    claim = here.claim()
    here.note_folder(claim, tmp_path / "here" / "trials" / "0000")
    there = enter(Sweep.load(file, trust=True), tmp_path / "there")
    assert [slot.state for slot in there.slots()] == ["running", "waiting"]
    seen = Results.of(there.sweep, there.slots(), tmp_path / "there")
    assert [trial.folder for trial in seen.trials] == [str(tmp_path / "here" / "trials" / "0000"), ""]
    with pytest.raises(ValueError, match=r"the study 'test' in sqlite:.* searches something else: search.seed differ"):
        enter(Sweep.load(write_sweep(tmp_path, search={"seed": [7]}, storage=storage), trust=True), tmp_path / "third")


def test_a_study_that_was_never_filled_is_reported(tmp_path):
    storage = f"sqlite:///{tmp_path}/shared.db"
    sweep = Sweep.load(write_sweep(tmp_path, search={"seed": [0]}, storage=storage, grace_seconds=2), trust=True)
    optuna.create_study(study_name="test", storage=open_url(storage, grace_seconds=2))
    with pytest.raises(ValueError, match="was never filled: whoever made it stopped half way"):
        enter(sweep, tmp_path / "out")
    optuna.load_study(study_name="test", storage=storage).enqueue_trial({})
    with pytest.raises(ValueError, match="is not a study of a sweep"):
        enter(sweep, tmp_path / "out")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://ann:***@host/studies", "the password of .* is not kept"),
        ("nosuch://ann:secret@host/studies", r"the storage nosuch://ann:\*\*\*@host/studies cannot be used"),
        ("sqlite:////nowhere/at/all/study.db", "cannot be used: .*unable to open database file"),
    ],
    ids=["hidden", "unknown", "nowhere"],
)
def test_a_storage_that_cannot_be_reached(tmp_path, url, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        open_url(url, grace_seconds=60)
    assert "secret" not in str(error.value)


def test_no_password_is_written_down():
    assert without_password("mysql://ann:secret@host/s") == "mysql://ann:***@host/s"


def test_the_database_is_one_whole_file_in_any_folder(tmp_path):
    folder = tmp_path / "what? {100%}"
    study = enter(Sweep.load(write_sweep(tmp_path, search={"seed": [0, 1, 2]}), trust=True), folder)
    study.close()
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "base.yaml", "study.db", "sweep.yaml", "trials"]
    with sqlite3.connect(folder / "study.db") as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("SELECT COUNT(*) FROM trials").fetchone() == (3,)
        marks = database.execute("SELECT value_json FROM study_user_attributes WHERE key = ?", [READY]).fetchall()
    assert marks == [("true",)]


@pytest.mark.parametrize("name", ["median", "halving", "hyperband"])
def test_every_pruner_stops_the_worse_of_many_courses(tmp_path, name):
    settings = {"median": {"startup_trials": 3}, "halving": {"factor": 2}, "hyperband": {"factor": 2}}[name]
    pruner = {"name": name, "warmup_epochs": 2, **settings}
    file = write_sweep(tmp_path, search={"seed": {"low": 0, "high": 11}}, changes={"epochs": 8}, pruner=pruner)
    study, done = enter(Sweep.load(file, trust=True), tmp_path / "out"), {}
    while (claim := study.claim()) is not None:
        number = claim.slot.number
        watcher = TrialWatcher(claim.trial, judged_by="accuracy", reported=set(), reason_to_stop=lambda: None)
        # Every second trial is good, and the others get worse and worse.
        level = 0.9 + number / 1000 if number % 2 == 0 else 0.5 - number / 100
        for epoch in range(8):
            done[number] = epoch + 1
            watcher.on_step(Progress(epoch + 1, 8, epoch + 1, 8, 0.0, None, None, None))
            try:
                watcher.on_metrics({"kind": "epoch", "epoch": epoch, "accuracy": level})
            except StopRun:
                assert watcher.pruned
                break
        study.prune(claim) if watcher.pruned else study.complete(claim, [level])
    stopped = [number for number, epochs in done.items() if epochs < 8]
    assert min(done[number] for number in stopped) == 2
    assert any(number % 2 == 1 for number in stopped)
    assert {slot.number for slot in study.slots() if slot.state == "pruned"} == set(stopped)


def test_an_epoch_seen_twice_is_reported_once(tmp_path, recwarn):
    file = write_sweep(tmp_path, search={"seed": [0]}, changes={"epochs": 4}, pruner="median")
    study = enter(Sweep.load(file, trust=True), tmp_path / "out")
    claim = study.claim()
    claim.trial.report(0.5, 1)
    watcher = TrialWatcher(claim.trial, judged_by="accuracy", reported={1}, reason_to_stop=lambda: None)
    for epoch in (0, 1):
        watcher.on_metrics({"kind": "epoch", "epoch": epoch, "accuracy": 0.6})
    assert study.storage.get_trial(claim.id).intermediate_values == {1: 0.5, 2: 0.6}
    assert [str(warning.message) for warning in recwarn if "reported" in str(warning.message)] == []


def test_a_worker_that_died_right_after_it_took_a_trial_is_missed(tmp_path):
    study = enter(
        Sweep.load(write_sweep(tmp_path, search={"seed": [0]}, grace_seconds=2), trust=True), tmp_path / "out"
    )
    lost = study.claim()
    assert study.claim() is None
    until = time.monotonic() + 60
    while study.slots()[0].state == "running" and time.monotonic() < until:
        study.revive()
    found = study.claim()
    assert found.slot.number == lost.slot.number and found.id != lost.id


def test_a_trial_that_was_given_to_another_is_not_told_twice(tmp_path):
    study = enter(Sweep.load(write_sweep(tmp_path, search={"seed": [0]}), trust=True), tmp_path / "out")
    claim = study.claim()
    study.storage.set_trial_state_values(claim.id, state=TrialState.FAIL)
    study.revive()
    study.complete(claim, [0.5])
    study.fail(claim, "too late")
    study.give_back(claim, asked=True)
    (slot,) = study.slots()
    assert slot.state == "waiting" and slot.deaths == 1 and len(slot.attempts) == 2


def change_database(path, words):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(words)
        connection.commit()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.write_bytes(b"no database" * 100), "file is not a database"),
        (lambda path: path.write_bytes(b""), "is damaged, or not a study of this sweep"),
        (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "malformed"),
        (lambda path: change_database(path, "delete from trials"), "it has lost the trials 0, 1"),
        (lambda path: change_database(path, "update study_user_attributes set value_json='{'"), "is damaged"),
        (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "is not a regular file"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "is not a regular file"),
    ],
    ids=["garbage", "empty", "half", "lost trials", "no json", "device", "pipe"],
)
def test_a_damaged_study_is_named(tmp_path, harm, message):
    sweep = Sweep.load(write_sweep(tmp_path, search={"seed": [0, 1]}), trust=True)
    enter(sweep, tmp_path / "out").close()
    harm(tmp_path / "out" / "study.db")
    with pytest.raises(ValueError, match=rf"study\.db is .*{message}" if message[:2] != "is" else message):
        enter(sweep, tmp_path / "out")
