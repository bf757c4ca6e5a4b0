"""A process that dies, hangs or fails ends in an error, never in a wait."""

import os
import signal
import sys

import pytest

from softprune.deploy.bench.contest import input_shapes, write_files
from softprune.deploy.bench.engine_process import EngineError, Worker
from softprune.deploy.bench.engines import Job, first_numbers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    spx = write_files("zoo:digits/uniform-80", tmp_path_factory.mktemp("bench"), onnx=False).spx
    return Job(spx, None, None, input_shapes(spx, 1), tune=False, layers=False)


def test_a_worker_that_dies_while_it_is_timed(job):
    with Worker("softprune", job) as worker:
        assert worker.start()["output"].shape == (10,)
        assert worker.burst(0.01).seconds > 0
        os.kill(worker.process.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="softprune ended with exit code -9 while it was timed"):
            worker.burst(0.01)


def test_a_worker_that_dies_while_it_loads(job):
    with Worker("softprune", job) as worker:
        os.kill(worker.process.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="ended with exit code -9 while loading"):
            worker.start()
    assert not worker.process.is_alive()


def test_a_worker_that_says_nothing(job):
    with pytest.raises(EngineError, match=r"said nothing for 0\.1 s"), Worker("softprune", job, patience=0.1) as worker:
        os.kill(worker.process.pid, signal.SIGSTOP)
        worker.start()
    assert not worker.process.is_alive()


def test_a_worker_that_fails_says_why(job, tmp_path):
    absent = Job(str(tmp_path / "absent.spx"), None, None, job.shapes)
    with (
        Worker("softprune", absent) as worker,
        pytest.raises(EngineError, match="cannot run the network: FileNotFound"),
    ):
        worker.start()


def test_a_worker_ends_with_its_pipe(job):
    with Worker("softprune", job) as worker:
        worker.start()
    assert worker.process.exitcode == 0


def test_outputs_of_all_kinds_are_compared(job):
    (x,) = job.inputs()
    assert first_numbers(x, 3).shape == (3,)
    for outputs in ([x], (x, x), {"y": x}):
        assert (first_numbers(outputs) == x.reshape(-1)).all()
