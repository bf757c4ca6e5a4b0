"""Several workers of one command, with programs that are quicker to start than ours."""

import os
import signal
import subprocess
import sys
import threading

from softprune.train.sweep.run import run_workers

# Waits for a signal, and writes down which one came.
PATIENT = """
import pathlib, signal, sys, os
mark = pathlib.Path(sys.argv[1]) / str(os.getpid())
def hear(number, frame):
    mark.write_text(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, hear)
signal.signal(signal.SIGINT, hear)
mark.touch()
while True:
    signal.pause()
"""


def started(folder, count):
    """The ids of the programs that are ready."""
    return [int(path.name) for path in folder.iterdir()] if len(list(folder.iterdir())) == count else None


def run(folder, act, count=2):
    """Run the programs, and act on their ids once all are there; what was noted."""
    notes = []

    def when_ready():
        while (ids := started(folder, count)) is None:
            threading.Event().wait(0.02)
        act(ids)

    thread = threading.Thread(target=when_ready)
    thread.start()
    run_workers([sys.executable, "-c", PATIENT, str(folder)], count, environment=os.environ, on_note=notes.append)
    thread.join()
    return notes


def test_a_signal_is_passed_on_once_to_every_worker(tmp_path):
    notes = run(tmp_path, lambda ids: os.kill(os.getpid(), signal.SIGINT))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["SIGTERM", "SIGTERM"] and notes == []


def test_a_worker_that_dies_is_noted_and_the_others_go_on(tmp_path):
    def act(ids):
        os.kill(ids[0], signal.SIGKILL)
        os.kill(ids[1], signal.SIGTERM)

    (note,) = run(tmp_path, act)
    assert "ended by SIGKILL; its trial goes on" in note
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["", "SIGTERM"]


def test_workers_hear_no_ctrl_c_of_the_terminal(tmp_path):
    # Everything in the foreground of a terminal gets its signal; what is left of it here is the group of the caller.
    script = (
        "import os, sys; from softprune.train.sweep.run import run_workers\n"
        "run_workers([sys.executable, '-c', sys.argv[1], sys.argv[2]], 1, environment=os.environ, on_note=print)"
    )
    (tmp_path / "marks").mkdir()
    parent = subprocess.Popen([sys.executable, "-c", script, PATIENT, str(tmp_path / "marks")], start_new_session=True)
    while started(tmp_path / "marks", 1) is None:
        threading.Event().wait(0.02)
    (worker,) = started(tmp_path / "marks", 1)
    assert os.getpgid(worker) != os.getpgid(parent.pid)
    os.killpg(os.getpgid(parent.pid), signal.SIGINT)
    assert parent.wait(timeout=60) == 0
    assert (tmp_path / "marks" / str(worker)).read_text() == "SIGTERM"
