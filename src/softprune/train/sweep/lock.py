"""A lock that a process holds as long as it lives, and no longer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: there one process at a time must be enough
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def locked(folder: Path, *, patience: float) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if need be.

    The system lets go of the lock when its holder dies, however it dies. A worker that was asleep for so long that its
    trial was given to another one still holds it, so two never write to one run folder.

    Args:
        folder: to hold.
        patience: seconds to wait for whoever holds it.

    Raises:
        BlockingIOError: if it is still held then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + patience
    with (folder / LOCK).open("a") as file:
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise BlockingIOError(f"{folder} is in use by another process") from None
                time.sleep(0.1)
        yield
