"""Workers that do not outlive their test."""

import pytest
from sweep_parts import PROCESSES, work


@pytest.fixture
def start_worker():
    """Start a worker that does something after a step of its first trial; whatever is left is killed in the end."""
    workers = []

    def start(file, folder, *, step=None, act=None):
        worker = PROCESSES.Process(target=work, args=(file, folder, step, act))
        worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.kill()
        worker.join()
