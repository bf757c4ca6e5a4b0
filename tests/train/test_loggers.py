"""Loggers as observers: what they see, how they fail, which are refused."""

import csv
import json
import sys

import own_parts
import pytest
from logged import Crash, config

from softprune.train.config import ConfigError, MlflowConfig, WandbConfig
from softprune.train.loggers import open_loggers
from softprune.train.observer import Silent, StopRun
from softprune.train.run import resume, train


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def on_note(self, text):
        self.notes.append(text)


def recorded(*kinds):
    """What the newest recorder was told, of these kinds."""
    return [what for kind, what in own_parts.made[-1].told if kind in kinds]


def test_a_logger_of_ones_own_sees_what_the_run_folder_gets(tmp_path):
    settings = config("log.own=['own_parts:Recorder']")
    train(settings, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert recorded("metrics") == [json.loads(line) for line in lines]
    with (tmp_path / "run" / "layers.csv").open() as file:
        rows = [{key: str(value) for key, value in row.items()} for told in recorded("layers") for row in told]
        assert rows == list(csv.DictReader(file))
    assert recorded("step") == list(range(1, 16))
    order = [kind for kind, _ in own_parts.made[-1].told]
    assert order[0] == "begin" and order[-1] == "end" and order.count("begin") == order.count("end") == 1
    assert recorded("end") == ["finished"]
    assert any("forecast" in note for note in recorded("note"))
    (beginning,) = recorded("begin")
    assert beginning.config == settings and beginning.folder == tmp_path / "run"
    assert (beginning.step, beginning.kept, beginning.logged) == (0, 0, 0)


def test_a_continued_run_tells_where_it_goes_on(tmp_path):
    with pytest.raises(RuntimeError, match="pulled the plug"):
        train(config("log.own=['own_parts:Recorder']"), tmp_path / "run", observer=Crash(13))
    assert recorded("end") == ["failed"]
    resume(tmp_path / "run", trust=True)
    (beginning,) = recorded("begin")
    # Up to step 10 five lines of steps and two of epochs; one more, of step 12, is forgotten.
    assert (beginning.step, beginning.kept, beginning.logged) == (10, 7, 8)


def test_a_logger_that_fails_is_told_once_and_left_out(tmp_path):
    notes = Notes()
    outcome = train(config("log.own=['own_parts:Failing']"), tmp_path / "run", observer=notes)
    assert outcome.finished and outcome.result["last"]["step"] == 15
    (note,) = (note for note in notes.notes if "own_parts" in note)
    assert note == (
        "log.own_parts:Failing has failed and is left out; the run goes on (ConnectionError: the line is dead)"
    )
    assert recorded("step")[-1] == 5 and [row["step"] for row in recorded("metrics")] == [2, 4, 5]
    assert recorded("end") == ["finished"]


def test_a_logger_that_fails_changes_nothing_of_the_run(tmp_path):
    for name, changes in (("with", ["log.own=['own_parts:Failing']"]), ("without", [])):
        train(config(*changes), tmp_path / name)
    one, other = ((tmp_path / name / "layers.csv").read_text() for name in ("with", "without"))
    assert one == other


def test_the_others_go_on_when_one_fails(tmp_path):
    train(config("log.own=['own_parts:Failing', 'own_parts:Recorder']"), tmp_path / "run")
    assert recorded("step") == list(range(1, 16))


class Enough(Silent):
    def on_metrics(self, metrics):
        if metrics["step"] == 8:
            raise StopRun("the observer")


def test_loggers_see_the_line_at_which_an_observer_stops_the_run(tmp_path):
    outcome = train(config("log.own=['own_parts:Recorder']"), tmp_path / "run", observer=Enough())
    assert not outcome.finished
    assert [row["step"] for row in recorded("metrics")][-1] == 8
    assert recorded("end") == ["stopped"]


def test_a_logger_that_cannot_begin_is_refused_before_the_first_step(tmp_path):
    changes = "log.own=['own_parts:Recorder', 'own_parts:Unwilling']"
    with pytest.raises(ValueError, match=r"log\.own_parts:Unwilling could not begin: no key"):
        train(config(changes), tmp_path / "run", observer=Crash(1))
    assert recorded("end") == ["failed"] and recorded("step") == []


@pytest.mark.parametrize("package", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_refused_with_the_way_to_get_it(tmp_path, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf'log\.{package} needs .*pip install "softprune\[{package}\]"'):
        train(config(f"log.{package}=true"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_of_the_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ImportError, match=r"softprune\[wandb\]"):
        open_loggers(config("log.wandb=true").log)


@pytest.mark.parametrize(
    ("factory", "error", "sentence"),
    [
        ("own_parts:loaders", TypeError, "returned a tuple; return an object of a subclass of"),
        ("own_parts:nothing", ValueError, "has no callable 'nothing'"),
        ("nowhere:at_all", ValueError, "there is no module 'nowhere'"),
    ],
)
def test_factories_that_make_no_logger_are_refused(tmp_path, factory, error, sentence):
    with pytest.raises(error, match=sentence):
        train(config(f"log.own=['{factory}']"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_settings_have_a_short_form_and_defaults():
    assert config("log.wandb=true").log.wandb == WandbConfig() == config("log.wandb={}").log.wandb
    assert config("log.mlflow=true").log.mlflow == MlflowConfig(experiment="softprune", tracking_uri=None)
    assert config("log.wandb.project=x").log.wandb == WandbConfig(project="x")
    off = config("log.wandb=true", "log.wandb=false").log
    assert off.wandb is None and open_loggers(off) == {}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("log.wandb.mode=later", r"log\.wandb\.mode: 'later' is not one of online, offline"),
        ("log.wandb.projekt=x", r"did you mean log\.wandb\.project\?"),
        ("log.mlflow=3", r"log\.mlflow: 3 is not a section of keys"),
        ("log.own=[nonsense]", r"log\.own: 'nonsense' is not of the form package\.module:factory"),
    ],
)
def test_bad_settings_are_named(change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        config(change)
