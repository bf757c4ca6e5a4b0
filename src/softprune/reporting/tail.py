"""Following a text file that grows: each look reads only what is new."""

from __future__ import annotations

import os
from pathlib import Path

from softprune.budget.files import require_regular

# Read at once at most, so that a file of gigabytes does not fill the memory.
MOST_BYTES = 16 << 20


class Tail:
    """The whole lines of a file that may grow, appear later, or be replaced by a shorter one.

    Args:
        path: of the file.

    Attributes:
        behind: whether the last read has left something for the next one.

    Example:
        tail = Tail(Path("runs/a/metrics.jsonl"))
        lines, anew = tail.read()  # all of it
        lines, anew = tail.read()  # what was added since
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.behind = False
        self._place = 0
        self._file: tuple[int, int] | None = None
        self._part = b""

    def read(self) -> tuple[list[str], bool]:
        """New whole lines without their ends, and whether they begin the file anew because it was replaced."""
        try:
            require_regular(self.path)
            with self.path.open("rb") as file:
                facts = os.fstat(file.fileno())
                identity = (facts.st_dev, facts.st_ino)
                anew = self._file is not None and (identity != self._file or facts.st_size < self._place)
                if anew:
                    self._place, self._part = 0, b""
                self._file = identity
                file.seek(self._place)
                data = file.read(MOST_BYTES)
        except (OSError, ValueError):  # not there yet, just being replaced, or no file: the next look tells
            self.behind = False
            return [], False
        self.behind = len(data) == MOST_BYTES
        self._place += len(data)
        *lines, self._part = (self._part + data).split(b"\n")
        return [line.decode("utf-8", errors="replace").rstrip("\r") for line in lines], anew
