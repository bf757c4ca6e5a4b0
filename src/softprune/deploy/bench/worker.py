"""Worker: a process that runs one engine when it is told to."""

from __future__ import annotations

import multiprocessing
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from softprune.deploy.bench.engines import ENGINES
from softprune.deploy.bench.job import Job, first_numbers
from softprune.deploy.runtime.race import Burst, run_burst

# Seconds after which a process that says nothing is given up; a large network is tuned in a fraction of it.
PATIENCE = 900.0


class EngineError(OSError):
    """An engine could not run the network; the others could."""


class Worker:
    """The near end of a process with one engine.

    The process ends when the pipe does, so it outlives nothing.

    Args:
        engine: name of the engine.
        job: what it runs.
        patience: seconds to wait for each answer.

    Example:
        with Worker("onnxruntime", job) as worker:
            facts = worker.start()
            burst = worker.burst(0.5)
    """

    def __init__(self, engine: str, job: Job, *, patience: float = PATIENCE) -> None:
        self.engine, self._patience = engine, patience
        context = multiprocessing.get_context("spawn")
        self._pipe, self._there = context.Pipe()
        self.process = context.Process(target=work, args=(self._there, engine, job), daemon=True)

    def __enter__(self) -> Worker:
        self.process.start()
        self._there.close()  # so that the pipe ends with the process
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self.process.join(5 if kind is None else 0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def start(self) -> dict[str, Any]:
        """Wait until the engine has run the network once.

        Returns:
            Facts about the engine, with the first numbers of its result as "output".

        Raises:
            EngineError: if it cannot run it, dies or says nothing.
        """
        facts = self._answer("loading the network")
        if "error" in facts:
            raise EngineError(f"{self.engine} cannot run the network: {facts['error']}")
        return dict(facts)

    def burst(self, seconds: float) -> Burst:
        """Let the engine run for some time.

        Raises:
            EngineError: if the process dies or says nothing.
        """
        with suppress(OSError):  # the answer tells that it is dead
            self._pipe.send(seconds)
        burst = self._answer("it was timed")
        assert isinstance(burst, Burst)
        return burst

    def _answer(self, what: str) -> Any:
        if not self._pipe.poll(self._patience):
            raise EngineError(f"the process of {self.engine} said nothing for {self._patience:g} s while {what}")
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join(5)
            code = self.process.exitcode
            raise EngineError(f"the process of {self.engine} ended with exit code {code} while {what}") from error


def work(pipe: Connection, engine: str, job: Job) -> None:
    """What the process does: load the network, say so, then one burst for every number of seconds that it is sent."""
    try:
        call, facts = ENGINES[engine](job, job.inputs())
        pipe.send({**facts, "output": first_numbers(call())})
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})
        return
    # The other end is closed when nothing more is wanted.
    with suppress(EOFError, OSError):
        while True:
            pipe.send(run_burst(call, pipe.recv()))
