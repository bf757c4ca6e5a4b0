"""TensorBoard files as TensorBoard reads them."""

import pytest
import torch
from logged import Crash, config, expected, random_state, run_with_crashes, untimed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from softprune.train.loggers import TensorBoardLogger
from softprune.train.run import resume, train


@pytest.fixture(autouse=True)
def _first_writers_of_the_process(monkeypatch):
    """Files of one second and one process are told apart by a counter, and read in the order of their names.

    A run is never continued ten times in one second, except here.
    """
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


def read(folder):
    """Name and step -> value; a step that is there twice is an error."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            assert (tag, event.step) not in found
            found[tag, event.step] = event.value
    return found, events


def in_single_precision(values):
    return {where: torch.tensor(value, dtype=torch.float32).item() for where, value in values.items()}


def test_all_that_the_run_folder_has_is_in_tensorboard(tmp_path):
    settings = config("log.tensorboard=true")
    train(settings, tmp_path / "run")
    found, events = read(tmp_path / "run")
    assert found == in_single_precision(expected(tmp_path / "run"))
    assert {"train/loss", "train/lr", "epoch/accuracy", "density/1.weight", "alpha/1.weight"} <= {t for t, _ in found}
    (text,) = events.Tensors("config/text_summary")
    shown = text.tensor_proto.string_val[0].decode()
    assert "".join(f"    {line}\n" for line in settings.dump().splitlines()) == shown


def test_logging_draws_no_random_numbers(tmp_path):
    train(config("log.tensorboard=true"), tmp_path / "run")
    train(config(), tmp_path / "plain")
    assert random_state(tmp_path / "run") == random_state(tmp_path / "plain")


@pytest.mark.parametrize("crashes", [(12,), (14, 12), (3,), (5, 5, 9)], ids=str)
def test_a_run_that_crashed_shows_every_step_once(tmp_path, crashes):
    run_with_crashes(config("log.tensorboard=true"), tmp_path / "run", crashes)
    found, _ = read(tmp_path / "run")
    assert untimed(found) == untimed(in_single_precision(expected(tmp_path / "run")))
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1 + len(crashes)


def test_nothing_is_written_unless_asked_for(tmp_path):
    train(config("epochs=1"), tmp_path / "run")
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_run_that_was_killed_has_lost_nothing_from_before_its_checkpoint(tmp_path, monkeypatch):
    settings = config("log.tensorboard=true")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="pulled the plug"):
        patch.setattr(TensorBoardLogger, "on_end", lambda self, ending: None)  # no time to close a file
        train(settings, tmp_path / "run", observer=Crash(12))
    resume(tmp_path / "run", trust=True)
    found, _ = read(tmp_path / "run")
    assert untimed(found) == untimed(in_single_precision(expected(tmp_path / "run")))
