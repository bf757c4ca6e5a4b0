"""The run folder: everything about a run, in files that can be read while it goes on; and a lock on folders."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import softprune
from softprune import records
from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.core.collapse import Diagnosis
from softprune.records import read_text, require_regular, write_error, write_text
from softprune.train.observer import Row

try:
    import fcntl
except ImportError:  # Windows: there one process at a time must be enough
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
MOST_BYTES = 512 << 20  # of a log that is read
# Seconds to wait for a holder that is dead: data workers that it forked share its lock, and take a while to notice.
_AFTERLIFE = 15.0
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
# What this process holds: folder and thread. Taking it again, further in, is not a conflict.
_held: set[tuple[Path, int]] = set()


@contextmanager
def locked(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes from writing to a folder, which is made if need be.

    The system lets go of the lock when its holder dies, however it dies. A worker that was asleep for so long that its
    trial was given to another one still holds it, so two never write to one run folder. File systems without locks,
    and systems without flock, have none of this.

    Raises:
        BlockingIOError: if it is still held after `patience` seconds, with who holds it since when.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mine = (folder.resolve(), threading.get_ident())
    if fcntl is None or mine in _held:
        yield
        return
    path = folder / LOCK
    # A link could lead to any file of the user's, and a pipe would be waited for.
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is not a regular file: remove it")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        _take(file, folder, patience)
        _held.add(mine)
        try:
            yield
        finally:
            _held.discard(mine)
    finally:
        os.close(file)


def _take(file: int, folder: Path, patience: float) -> None:
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = _holder(file)
            wait = max(patience, _AFTERLIFE) if _is_dead(holder) else patience
            if time.monotonic() - began >= wait:
                who = f"process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
                raise BlockingIOError(
                    f"{folder} is in use by {who if holder else 'another process'}: one process at a time may write to "
                    "it. Wait for it, stop it, or choose another folder"
                ) from None
            time.sleep(0.1)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return
            raise
    me = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with suppress(OSError):  # a full disk: it is held all the same
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(me).encode(), 0)


def _holder(file: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(file, 4096, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_dead(holder: dict[str, Any]) -> bool:
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)  # which only asks
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass
    return False


class RunFolder:
    """The files of a run; every one is appended to line by line, or replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config_text: str, *, seed: int, world: int) -> RunFolder:
        cls.refuse_taken(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        # Of a start that was killed in here. The folder may hold files of others, so only our own names.
        for name in (records.ENVIRONMENT, records.LAYERS, records.METRICS, records.CONFIG):
            for part in path.glob(f".{name}.*.part"):
                part.unlink(missing_ok=True)
        write_text(path / records.ENVIRONMENT, json.dumps(_environment(seed, world), indent=2) + "\n")
        write_text(path / records.LAYERS, ",".join(records.LAYER_COLUMNS) + "\n")
        write_text(path / records.METRICS, "")
        # Last: a folder with a configuration is a run that can be continued.
        write_text(path / records.CONFIG, config_text)
        return run

    @staticmethod
    def refuse_taken(path: Path) -> None:
        if (path / records.CONFIG).exists():
            raise ValueError(
                f"{path} already holds a run: continue it with --resume {path}, or choose another folder with --out"
            )
        # Older ones of later steps would count as the newest of the new run, and push out its own.
        if next((path / records.CHECKPOINTS).glob("step-*.safetensors"), None) is not None:
            raise ValueError(
                f"{path / records.CHECKPOINTS} holds checkpoints of a run whose {records.CONFIG} is missing: move them "
                "away, or choose another folder with --out"
            )

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        if not (path / records.CONFIG).is_file():
            raise ValueError(f"{path} holds no run: it has no {records.CONFIG}")
        return cls(path)

    @property
    def checkpoints(self) -> Path:
        return self.path / records.CHECKPOINTS

    def log(self, metrics: Row) -> None:
        self._append(records.METRICS, json.dumps(dict(metrics)) + "\n")

    def log_layers(self, epoch: int, step: int, diagnoses: Sequence[Diagnosis], profile: Profile) -> list[Row]:
        """Append one row per tensor to layers.csv, and return them."""
        rows: list[Row] = [
            {"epoch": epoch, "step": step, **asdict(d), "macs": round(profile[d.name].macs * d.density)}
            for d in diagnoses
        ]
        text = io.StringIO()
        csv.DictWriter(text, records.LAYER_COLUMNS, lineterminator="\n").writerows(rows)
        self._append(records.LAYERS, text.getvalue())
        return rows

    def write_budget(self, budget: Budget) -> None:
        budget.save(self.path / records.BUDGET)

    def write_result(self, result: Mapping[str, Any]) -> None:
        content = {"version": records.RUN_VERSION, **result}
        write_text(self.path / records.RESULT, json.dumps(content, indent=2) + "\n")

    def remove_parts(self) -> None:
        """Delete what a process left behind that was killed while it wrote; whole files never have such names."""
        # The second is what safetensors writes to before it renames.
        for pattern in (".*.part", ".tmp??????"):
            for part in self.path.rglob(pattern):
                part.unlink(missing_ok=True)

    def cut_back(self, step: int) -> None:
        """Forget what was logged after this step, and a line that was cut off while it was written.

        A file that is not such a log is refused before any is changed.
        """
        lines = self._lines(records.METRICS)
        kept = [line for line in lines if (at := _step_of(line)) is not None and at <= step]
        columns = ",".join(records.LAYER_COLUMNS)
        header, *lines = self._lines(records.LAYERS) or [columns]
        if header != columns:
            raise ValueError(
                f"{self.path / records.LAYERS} has the columns {header[:200]!r}, where {columns} are needed; put the "
                "file back, or an empty one"
            )
        whole = [cells for cells in (line.split(",") for line in lines) if len(cells) == len(records.LAYER_COLUMNS)]
        rows = [",".join(cells) for cells in whole if cells[1].isdecimal() and int(cells[1]) <= step]
        write_text(self.path / records.METRICS, "".join(f"{line}\n" for line in kept))
        write_text(self.path / records.LAYERS, "".join(f"{line}\n" for line in [header, *rows]))

    def metrics(self) -> list[dict[str, Any]]:
        """All whole lines of metrics.jsonl."""
        return [json.loads(line) for line in self._lines(records.METRICS) if _step_of(line) is not None]

    def thresholds(self) -> dict[str, float]:
        """The threshold of every tensor in the last epoch of layers.csv."""
        try:
            return {row["name"]: float(row["alpha"]) for row in csv.DictReader(self._lines(records.LAYERS))}
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            problem = f"{self.path / records.LAYERS} has no columns name and alpha that can be read: {error}"
            raise ValueError(problem) from error

    def _lines(self, name: str) -> list[str]:
        # Not splitlines: it also splits at characters that a layer's name may have.
        return read_text(self.path / name, most=MOST_BYTES).split("\n")[:-1]

    def _append(self, name: str, text: str) -> None:
        path = self.path / name
        try:
            require_regular(path)
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            again = f"the checkpoints are intact, go on from them with softprune train --resume {self.path}"
            raise write_error(path, error, kept=again) or error from error


def _step_of(line: str) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _environment(seed: int, world: int) -> dict[str, Any]:
    return {
        "version": records.RUN_VERSION,
        "softprune": softprune.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "processes": world,
        "seed": seed,
        "command": sys.argv,
        "git": _git_state(),
    }


def _git_state() -> str | None:
    """The commit of the folder that the run was started in, with a mark if files differ from it."""
    if shutil.which("git") is None:
        return None
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
