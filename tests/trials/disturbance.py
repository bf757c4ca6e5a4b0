"""Commands in forked children that are killed, or whose files fail, at a chosen moment.

Only calls that touch the folder of the case count: what Python imports and what a data set is read from stay whole.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAULTS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES}
# Seconds after which a command hangs.
PATIENCE = 60.0


@dataclass(frozen=True)
class Disturbance:
    """What happens to a command.

    Args:
        kind: "none", "moment" (killed after some seconds), "call" (killed at a call), "limit" (no file may grow beyond
            some bytes, which also stops writers that are no Python), or a name of `FAULTS`.
        at: seconds, number of the call, or bytes.
        after: for "call", whether the call is made before the kill.
        lasting: whether the calls after it fail, too, as on a full disk.
    """

    kind: str = "none"
    at: float = 0
    after: bool = False
    lasting: bool = False

    @property
    def kills(self) -> bool:
        return self.kind in ("moment", "call")

    def __str__(self) -> str:
        words = {"moment": f"killed after {self.at:.3f} s", "call": f"killed at call {self.at:.0f}"}
        words["limit"] = f"no file beyond {self.at:.0f} bytes"
        lasting = " and after it" if self.lasting else ""
        return words.get(self.kind, f"{self.kind} at call {self.at:.0f}{lasting}")


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Attributes:
        code: exit code; negative for a signal.
        said: what it wrote to the error stream.
        calls: how many calls could have failed.
        seconds: how long it took.
    """

    code: int
    said: str
    calls: int
    seconds: float


def any_disturbance(dice: random.Random, *, calls: int, seconds: float, largest: int) -> Disturbance:
    """One by chance: a third kills, the rest faults."""
    kind = dice.choice(("moment", "call", "call", "limit", *FAULTS, *FAULTS))
    if kind == "moment":
        return Disturbance(kind, dice.uniform(0, seconds))
    if kind == "limit":
        return Disturbance(kind, dice.choice((0, 100, dice.randrange(1, max(2, largest)))))
    return Disturbance(kind, dice.randint(1, max(1, calls)), after=dice.random() < 0.5, lasting=dice.random() < 0.3)


def run(action: Callable[[], object], folder: Path, disturbance: Disturbance | None = None) -> Ending:
    """Run something in a child, with its output in ``folder.out`` and ``folder.err``, disturbed in this way."""
    disturbance = disturbance or Disturbance()
    out, err, count = (folder.with_name(f"{folder.name}.{end}") for end in ("out", "err", "calls"))
    count.write_bytes(b"0")
    err.write_bytes(b"")  # a child may be killed before it has opened it
    begun = time.perf_counter()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            for stream, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
            # Whoever has put something else in their place, such as pytest, has done so for the parent.
            sys.stdout, sys.stderr = (os.fdopen(stream, "w", closefd=False) for stream in (1, 2))
            calls = Calls(folder, disturbance, os.open(count, os.O_WRONLY))
            calls.watch()
            code = _ended(action)
        finally:
            os._exit(code)
    code = _waited(child, disturbance, begun)
    said = err.read_text(errors="replace")
    return Ending(code, said, int(count.read_bytes() or b"0"), time.perf_counter() - begun)


def _ended(action: Callable[[], object]) -> int:
    code = 0
    # Forecasts of a run of a second warn; what a fault leaves to say is one line of its own.
    warnings.simplefilter("ignore")
    try:
        action()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _waited(child: int, disturbance: Disturbance, begun: float) -> int:
    due = begun + disturbance.at if disturbance.kind == "moment" else None
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        now = time.perf_counter()
        if (due is not None and now >= due) or now - begun > PATIENCE:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            # One that was killed for its slowness is told apart by a code that no signal has.
            return -99 if due is None or now < due else os.waitstatus_to_exitcode(status)
        time.sleep(0.001)


class Calls:
    """Counts the calls of this process that open, write, sync and rename below a folder, and spoils some.

    Args:
        folder: of the case.
        disturbance: what to do.
        count: file descriptor where the number of calls is kept.
    """

    def __init__(self, folder: Path, disturbance: Disturbance, count: int) -> None:
        self._folder, self._disturbance, self._count = os.fspath(folder), disturbance, count
        self._calls = 0

    def watch(self) -> None:
        """From now on."""
        if self._disturbance.kind == "limit":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing fails with EFBIG
            # What the case prints goes to files, too, and must not be what fails.
            limit = max(4096, int(self._disturbance.at))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        opened = io.open

        def watched_open(file: Any, mode: str = "r", *more: Any, **words: Any) -> Any:
            if not self._below(file):
                return opened(file, mode, *more, **words)
            made = self._call(opened, file, mode, *more, **words)
            return _Written(made, self._call) if set(mode) & set("wax+") else made

        builtins.open = io.open = watched_open  # type: ignore[assignment]
        for name in ("replace", "rename", "fsync", "mkdir"):
            setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *more: Any, **words: Any) -> Any:
            if isinstance(first, int) or self._below(first):
                return self._call(function, first, *more, **words)
            return function(first, *more, **words)

        return call

    def _below(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        return str(Path(os.fsdecode(path)).absolute()).startswith(self._folder)

    def _call(self, function: Callable[..., Any], *values: Any, **words: Any) -> Any:
        self._calls += 1
        os.pwrite(self._count, str(self._calls).encode(), 0)
        wish = self._disturbance
        due = self._calls == wish.at or (wish.lasting and self._calls > wish.at)
        if due and wish.kind in FAULTS:
            raise OSError(FAULTS[wish.kind], os.strerror(FAULTS[wish.kind]))
        if due and wish.kind == "call":
            if wish.after:
                function(*values, **words)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*values, **words)


class _Written:
    """A file that is written to, each write counted."""

    def __init__(self, file: Any, call: Callable[..., Any]) -> None:
        self._file, self._call = file, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Written:
        self._file.__enter__()
        return self

    def __exit__(self, *details: Any) -> Any:
        return self._file.__exit__(*details)

    def __iter__(self) -> Any:
        return iter(self._file)

    def write(self, content: Any) -> Any:
        return self._call(self._file.write, content)
