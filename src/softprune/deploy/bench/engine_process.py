"""A process for each engine, so that none disturbs another, and what it answers."""

from __future__ import annotations

import multiprocessing
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from softprune.deploy.bench.engines import ENGINES, Job, first_numbers
from softprune.deploy.bench.race import Burst, run_burst

PATIENCE = 900.0  # seconds until a silent process is given up; a large network is tuned in a fraction of it


class EngineError(OSError):
    """An engine could not run the network; the others could."""


class Worker:
    """A process with one engine, which ends when the pipe to it does; ``patience`` seconds are waited for an answer."""

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
        """Facts about the engine after it has run the network once, the first numbers of its result as "output".

        An EngineError says that it cannot run it, died or is silent; so in `burst`.
        """
        facts = self._answer("loading the network")
        if "error" in facts:
            raise EngineError(f"{self.engine} cannot run the network: {facts['error']}")
        return dict(facts)

    def burst(self, seconds: float) -> Burst:
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
    """The process of a `Worker`: sends facts once the network has run, then a burst for every duration received."""
    try:
        call, facts = ENGINES[engine](job, job.inputs())
        pipe.send({**facts, "output": first_numbers(call())})
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})
        return
    with suppress(EOFError, OSError):  # the other end is closed when nothing more is wanted
        while True:
            pipe.send(run_burst(call, pipe.recv()))
