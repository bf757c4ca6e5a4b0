"""Weights & Biases, offline: what its files hold and `wandb sync` would send."""

import json
import struct

import pytest
import wandb
from logged import config, expected, random_state, run_with_crashes, untimed
from wandb.proto.wandb_internal_pb2 import Record

from softprune.train.run import train

OFFLINE = ["log.wandb.mode=offline", "log.wandb.project=pruning"]
BLOCK, HEADER = 32768, 7


@pytest.fixture(autouse=True)
def _by_itself(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_RUN_ID", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_X_DISABLE_STATS", "true")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


def records(file):
    """The records of a .wandb file: a log in the manner of LevelDB, in blocks, each piece with a header."""
    data = file.read_bytes()
    position, record = HEADER, b""
    while position + HEADER <= len(data):
        if (left := BLOCK - position % BLOCK) < HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + HEADER])
        record += data[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (1, 4):  # a whole one, or the last piece
            yield Record.FromString(record)
            record = b""


def parts(folder):
    """For each life of the run, oldest first: the records by their kind."""
    wandb.teardown()  # it writes in a process of its own, which may not be done yet
    found = []
    files = folder.glob("wandb/offline-run-*/run-*.wandb")
    for file in sorted(files, key=lambda file: file.parent.name):
        kinds = {}
        for record in records(file):
            kind = record.WhichOneof("record_type")
            kinds.setdefault(kind, []).append(getattr(record, kind))
        found.append(kinds)
    return found


def lines(kinds):
    """The logged lines, as dicts."""
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in line.item}
        for line in kinds.get("history", [])
    ]


def by_step(lines):
    """Name and step -> value; one that is there twice is an error."""
    found = {}
    for line in lines:
        for key, value in line.items():
            if "/" in key:
                assert (key, line["step"]) not in found
                found[key, line["step"]] = value
    return found


def test_all_that_the_run_folder_has_is_in_wandb(tmp_path):
    settings = config(*OFFLINE)
    train(settings, tmp_path / "run")
    (kinds,) = parts(tmp_path / "run")
    (run,) = kinds["run"]
    assert (run.project, run.display_name) == ("pruning", "run")
    written = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert written["optimizer"] == settings.model_dump(mode="json")["optimizer"]
    logged = lines(kinds)
    assert by_step(logged) == pytest.approx(expected(tmp_path / "run"), rel=1e-15)
    assert [line["_step"] for line in logged] == list(range(1, len(logged) + 1))
    assert {(line["step"], line["epoch"]) for line in logged} >= {(5, 0), (10, 1), (15, 2)}
    axes = {metric.glob_name or metric.name: metric.step_metric for metric in kinds["metric"]}
    assert axes["*"] == "step"
    assert [end.exit_code for end in kinds["exit"]] == [0]


def test_logging_draws_no_random_numbers(tmp_path):
    train(config(*OFFLINE), tmp_path / "run")
    train(config(), tmp_path / "plain")
    assert random_state(tmp_path / "run") == random_state(tmp_path / "plain")


@pytest.mark.parametrize("crashes", [(12,), (14, 12), (3,)], ids=str)
def test_a_run_that_crashed_goes_on_in_the_same_run_and_sends_nothing_twice(tmp_path, crashes):
    run_with_crashes(config(*OFFLINE), tmp_path / "run", crashes)
    lives = parts(tmp_path / "run")
    known = json.loads((tmp_path / "run" / "wandb.json").read_text())["id"]
    assert [life["run"][0].run_id for life in lives] == [known] * (1 + len(crashes))
    assert [life["exit"][0].exit_code for life in lives] == [1] * len(crashes) + [0]
    logged = [line for life in lives for line in lines(life)]
    assert [line["_step"] for line in logged] == list(range(1, len(logged) + 1))
    found, wanted = untimed(by_step(logged)), untimed(expected(tmp_path / "run"))
    assert found == pytest.approx(wanted, rel=1e-15)


def test_a_run_of_the_program_around_stays_as_it_is(tmp_path):
    around = wandb.init(project="other", mode="offline", dir=str(tmp_path))
    train(config(*OFFLINE, "epochs=1"), tmp_path / "run")
    assert wandb.run is around
    around.log({"mine": 1})
    around.finish()
    assert lines(parts(tmp_path)[0])[0]["mine"] == 1
