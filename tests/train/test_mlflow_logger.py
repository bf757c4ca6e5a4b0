"""MLflow with a data base of its own, read back through its client."""

import json
import shutil
import sqlite3

import pytest
from logged import Crash, config, expected, random_state, run_with_crashes, untimed
from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient

from softprune.train.observer import Silent, StopRun
from softprune.train.run import resume, train


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """An empty data base; making one takes seconds, copying it none."""
    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def base(empty, tmp_path):
    return shutil.copy(empty, tmp_path / "mlflow.db")


def settings(uri):
    return config(f"log.mlflow.tracking_uri={uri}", "log.mlflow.experiment=pruning")


def the_run(base):
    """The client of the data base, and the only run in it."""
    client = MlflowClient(f"sqlite:///{base}")
    (run,) = client.search_runs([client.get_experiment_by_name("pruning").experiment_id], run_view_type=ViewType.ALL)
    return client, run


def read(client, run):
    """Name and step -> value; one that is there twice is an error."""
    found = {}
    for key in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, key):
            assert (key, metric.step) not in found
            found[key, metric.step] = metric.value
    return found


def test_all_that_the_run_folder_has_is_in_mlflow(tmp_path, base):
    train(settings(f"sqlite:///{base}"), tmp_path / "run")
    client, run = the_run(base)
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert read(client, run) == expected(tmp_path / "run")
    assert run.data.params["optimizer.lr"] == "0.1" and run.data.params["model.args.classes"] == "10"
    assert run.data.params["rules"] == "[]" and run.data.params["log.mlflow.experiment"] == "pruning"


def test_logging_draws_no_random_numbers(tmp_path, base):
    train(settings(f"sqlite:///{base}"), tmp_path / "run")
    train(config(), tmp_path / "plain")
    assert random_state(tmp_path / "run") == random_state(tmp_path / "plain")


@pytest.mark.parametrize("crashes", [(12,), (14, 12), (3,)], ids=str)
def test_a_run_that_crashed_goes_on_in_the_same_run_and_sends_nothing_twice(tmp_path, base, crashes):
    run_with_crashes(settings(f"sqlite:///{base}"), tmp_path / "run", crashes)
    client, run = the_run(base)
    assert run.info.run_id == json.loads((tmp_path / "run" / "mlflow.json").read_text())["id"]
    assert run.info.status == "FINISHED"
    assert untimed(read(client, run)) == untimed(expected(tmp_path / "run"))


class Stop(Silent):
    def __init__(self, step):
        self._step = step

    def on_step(self, progress):
        if progress.step == self._step:
            raise StopRun("the test")


def test_what_ended_a_run_is_told(tmp_path, base):
    given = settings(f"sqlite:///{base}")
    with pytest.raises(RuntimeError, match="pulled the plug"):
        train(given, tmp_path / "run", observer=Crash(7))
    assert the_run(base)[1].info.status == "FAILED"
    assert not resume(tmp_path / "run", observer=Stop(8), trust=True).finished
    assert the_run(base)[1].info.status == "KILLED"


class Saboteur(Silent):
    """Breaks the data base after a step, and keeps the notes."""

    def __init__(self, step, file):
        self.notes, self._step, self._file = [], step, file

    def on_step(self, progress):
        if progress.step == self._step:
            with sqlite3.connect(self._file) as connection:
                connection.execute("ALTER TABLE metrics RENAME TO gone")

    def on_note(self, text):
        self.notes.append(text)


def test_a_service_that_fails_does_not_end_the_run(tmp_path, base):
    saboteur = Saboteur(7, base)
    outcome = train(settings(f"sqlite:///{base}"), tmp_path / "run", observer=saboteur)
    assert outcome.finished and outcome.result["last"]["step"] == 15
    (note,) = (note for note in saboteur.notes if "log.mlflow" in note)
    assert "has failed and is left out; the run goes on" in note
    with sqlite3.connect(base) as connection:
        steps = {step for (step,) in connection.execute("SELECT step FROM gone")}
        (status,) = connection.execute("SELECT status FROM runs").fetchone()
    assert steps == {2, 4, 5, 6} and status == "FINISHED"


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "nonsense://x"])
def test_a_service_that_is_not_there_is_refused_before_the_first_step(tmp_path, uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ValueError, match=r"log\.mlflow could not begin: "):
        train(settings(uri), tmp_path / "run", observer=Crash(1))
    assert not (tmp_path / "run" / "checkpoints").exists()
