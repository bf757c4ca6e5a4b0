"""Several workers on this machine, each a process of its own."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from softprune.train.interruption import Interruption


def run_fleet(
    command: Sequence[str], count: int, *, environment: Mapping[str, str], on_note: Callable[[str], None]
) -> None:
    """Start a command several times and wait for all of them; SIGINT and SIGTERM are passed on.

    Each is in a session of its own: a terminal sends Ctrl-C to everyone in front of it, so that workers would hear
    it twice, and twice means at once. A second Ctrl-C kills them; their trials go on with the next start.

    Args:
        command: of one worker.
        count: how many.
        environment: of the workers.
        on_note: for a worker that died.
    """
    with Interruption() as interruption:
        workers = [subprocess.Popen(command, env=dict(environment), start_new_session=True) for _ in range(count)]
        alive, told = list(workers), False
        try:
            while alive:
                if interruption.asked_by is not None and not told:
                    told = True
                    for worker in alive:
                        worker.send_signal(signal.SIGTERM)
                for worker in [w for w in alive if w.poll() is not None]:
                    alive.remove(worker)
                    if worker.returncode < 0:
                        name = signal.Signals(-worker.returncode).name
                        on_note(f"a worker was ended by {name}; its trial goes on in another, or with the next start")
                time.sleep(0.1)
        finally:
            for worker in alive:
                worker.kill()
                worker.wait()
