"""One process at a time writes to a run folder; the others are told who does."""

import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from test_run import Watcher, config, metrics

import warm
from softprune.train.run import resume, train
from softprune.train.run_folder import LOCK, locked

HOLD = """
import sys
from pathlib import Path
from softprune.train.run_folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder():
    """Starts processes that hold a folder until they are told to let go."""
    started = []

    def hold(folder):
        words = [sys.executable, "-c", HOLD, str(folder)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_second_writer_is_told_who_holds_the_folder_and_changes_nothing(tmp_path, holder):
    run = tmp_path / "run"
    stop = Watcher(at_step=7, act=lambda: (_ for _ in ()).throw(RuntimeError("stop")))
    with pytest.raises(RuntimeError, match="stop"):
        train(config(), run, observer=stop)
    first = holder(run)
    before = files(run)
    second = warm.run("-m", "softprune", "train", "--resume", run, check=False)
    assert second.returncode == 1 and "Traceback" not in second.stderr
    assert f"is in use by process {first.pid} on {socket.gethostname()} since 2" in second.stderr
    assert files(run) == before
    first.kill()  # whose lock the system takes away
    first.wait()
    assert resume(run).finished
    steps = [row["step"] for row in metrics(run) if row["kind"] == "step"]
    assert steps == sorted(set(steps))


def test_two_new_runs_for_one_folder(tmp_path, holder):
    holder(tmp_path / "run")
    with pytest.raises(BlockingIOError, match="choose another folder"):
        train(config(), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]


def test_a_process_holds_a_folder_as_often_as_it_likes_but_a_thread_is_another_writer(tmp_path):
    refused = []

    def another():
        try:
            with locked(tmp_path):
                pass
        except BlockingIOError as error:
            refused.append(str(error))

    with locked(tmp_path), locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        thread = threading.Thread(target=another)
        thread.start()
        thread.join()
    assert len(refused) == 1 and f"process {os.getpid()}" in refused[0]
    another()
    assert len(refused) == 1


def test_a_lock_that_is_a_link_or_a_pipe_is_refused(tmp_path):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"\.lock is not a regular file: remove it"), locked(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "precious"
    (tmp_path / LOCK).unlink()
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(ValueError, match="not a regular file"), locked(tmp_path):
        pass


def test_what_the_lock_says_may_be_anything(tmp_path, holder):
    holder(tmp_path)
    for text in ("", "{", "[1]", '{"pid": -1, "host": 3}', "[" * 5000, '{"pid": 1e400}'):
        (tmp_path / LOCK).write_text(text)
        with pytest.raises(BlockingIOError, match="is in use by"), locked(tmp_path):
            pass
