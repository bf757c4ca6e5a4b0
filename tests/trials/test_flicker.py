"""The trial itself, on units that take no time: it goes on where it was, and says what failed."""

import json

import flicker
import pytest


@pytest.fixture
def endings(monkeypatch):
    """Units that are not run: each takes its ending from a list."""
    queue = {name: [] for name in flicker.UNITS}

    def run_unit(name, *, patience, fork=False):
        ending = queue[name].pop(0) if queue[name] else "ended"
        return {"ending": ending, "seconds": 1.0} | ({} if ending == "ended" else {"last lines": [f"{name} broke"]})

    monkeypatch.setattr(flicker, "run_unit", run_unit)
    return queue


def known(path):
    return json.loads(path.read_text())


def test_units_take_turns_and_failures_are_told(endings, tmp_path):
    endings["ddp"] = ["ended", "code 1"]
    out = tmp_path / "found.json"
    assert flicker.main(["--out", str(out), "--runs", "3", "--load", "0"]) == 1
    found = known(out)
    assert {unit["runs"] for unit in found["units"].values()} == {3}
    assert found["complete"] and found["failed"] == 1
    (failure,) = found["units"]["ddp"]["failures"]
    assert failure["run"] == 2 and failure["last lines"] == ["ddp broke"]


def test_a_trial_goes_on_where_it_was(endings, tmp_path):
    out = tmp_path / "found.json"
    assert flicker.main(["--out", str(out), "--runs", "2", "--load", "0", "--only", "ddp"]) == 0
    assert not known(out)["complete"]
    assert flicker.main(["--out", str(out), "--runs", "3", "--load", "0"]) == 0
    assert known(out)["complete"] and known(out)["runs"] == 3 * len(flicker.UNITS)


def test_a_run_without_its_files_has_failed(monkeypatch):
    monkeypatch.setitem(flicker.UNITS, "ddp", (lambda folder: ["--no-python", "true"], ("a.json",)))
    found = flicker.run_unit("ddp", patience=300)
    assert found["ending"] == "without a.json"


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        flicker.parsed(["--help"])
    told = capsys.readouterr().out
    assert "goes on where it was" in told and "frameworks" in told
