"""How one of several processes ends: with its own code and words, not taken down by threads it leaves behind."""

import json
import os
import signal
import subprocess
import sys

import pytest
from launch import SEVERAL_PROCESSES, WORKERS, torchrun

from warm import run_on_two

pytestmark = SEVERAL_PROCESSES


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """A process that ends in the usual way, after it has tried the others out in FOLDER."""
    folder = tmp_path_factory.mktemp("leaving")
    command = [sys.executable, WORKERS / "leaving.py", folder]
    # A buffer that nobody flushes must be seen to be lost.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return folder, subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)


@pytest.fixture(scope="module")
def cases(usual):
    folder, done = usual
    assert (folder / "cases.json").is_file(), done.stderr
    return json.loads((folder / "cases.json").read_text())


def test_the_usual_end_takes_the_interpreter_down(usual):
    """The control: where the interpreter is taken down, the trap ends the process."""
    assert usual[1].returncode == -signal.SIGABRT


def test_a_process_ends_with_its_words_and_without_taking_the_interpreter_down(cases):
    assert cases["ends"]["codes"] == [0]
    assert cases["ends"]["words"] == ["all results written\nthe exit handler ran\n"]


def test_an_exit_handler_that_fails_is_reported_and_no_more(cases):
    assert cases["handler fails"]["codes"] == [0]
    assert "ZeroDivisionError" in cases["handler fails"]["words"][0]


def test_failures_keep_their_code_and_their_words(cases):
    assert cases["says three"] == {"codes": [3], "words": [""]}
    assert cases["says a sentence"] == {"codes": [1], "words": ["this cannot work\n"]}
    assert cases["fails"]["codes"] == [1]
    assert cases["fails"]["words"][0].startswith("Traceback")
    assert "LookupError: nothing of that name" in cases["fails"]["words"][0]


def test_two_processes_end_together(cases):
    assert cases["both end"] == {"codes": [0, 0], "words": ["", ""]}


@pytest.mark.parametrize(
    ("case", "code"),
    [("second fails", 1), ("second is killed", -signal.SIGKILL), ("second never ends", -signal.SIGTERM)],
)
def test_nobody_waits_for_a_process_that_does_not_come(cases, case, code):
    assert cases[case]["codes"] == [0, code]
    assert "the other processes did not come to the end" in cases[case]["words"][0]


def test_every_worker_ends_in_this_way():
    workers = [path for path in WORKERS.glob("*.py") if "torchrun" in path.read_text()]
    assert len(workers) >= 5
    assert [path.name for path in workers if "run_and_leave(" not in path.read_text()] == []


def test_torchrun_hears_of_a_failure_in_the_middle_of_training(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(WORKERS), prepend=os.pathsep)
    words = ("digits/str", "model=stumbling:Stumbling", "epochs=1", "data.subset=320", "--quiet")
    done = torchrun(2, "-m", "softprune", "train", *words, "--out", tmp_path / "run", check=False)
    assert done.returncode == 1
    assert "LookupError: the second process stumbles" in done.stderr
    assert "Signal 6" not in done.stderr
    assert not (tmp_path / "run" / "result.json").exists()


def test_two_processes_end_at_a_mistake_with_its_words():
    done = run_on_two("-m", "softprune", "train", "digits/str", "optimizer.momentun=0.9", check=False)
    assert done.returncode == 1
    assert "did you mean optimizer.momentum?" in " ".join(done.stderr.split())
