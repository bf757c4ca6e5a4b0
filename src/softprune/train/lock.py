"""A lock that a process holds on a folder as long as it lives, and no longer."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: there one process at a time must be enough
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
# Of a holder that is dead: data workers that it forked share its lock, and take some seconds to notice.
_AFTERLIFE = 15.0
_MOST_BYTES = 4096
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
# What this process holds: folder and thread. Taking it again, further in, is no conflict.
_held: set[tuple[Path, int]] = set()


@contextmanager
def locked(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes from writing to a folder, which is made if need be.

    The system lets go of the lock when its holder dies, however it dies. A worker that was asleep for so long that its
    trial was given to another one still holds it, so two never write to one run folder. File systems without locks,
    and systems without flock, have none of this.

    Args:
        folder: to hold.
        patience: seconds to wait for whoever holds it.

    Raises:
        BlockingIOError: if it is still held then, with who holds it since when. Nothing was changed.
        ValueError: if the lock is no regular file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mine = (folder.resolve(), threading.get_ident())
    if fcntl is None or mine in _held:
        yield
        return
    file = _open(folder / LOCK)
    try:
        _take(file, folder, patience)
        _held.add(mine)
        try:
            yield
        finally:
            _held.discard(mine)
    finally:
        os.close(file)


def _open(path: Path) -> int:
    # A link could lead to any file of the user's, and a pipe would be waited for.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is no regular file: remove it")
    return os.open(path, flags, 0o644)


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
                raise BlockingIOError(
                    f"{folder} is in use by {_words(holder)}: one process at a time may write to it. Wait for it, stop "
                    "it, or choose another folder"
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
    """What the holder has written about itself; empty if it has not yet."""
    try:
        found = json.loads(os.pread(file, _MOST_BYTES, 0))
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
        return False
    return False


def _words(holder: dict[str, Any]) -> str:
    if not holder:
        return "another process"
    return f"process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
