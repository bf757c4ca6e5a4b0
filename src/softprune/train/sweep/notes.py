"""What a trial says while it runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOTES = "notes.txt"


@contextmanager
def notes_kept(folder: Path, notes: list[str]) -> Iterator[None]:
    """Write notes and warnings into the folder of a trial: those of many trials would bury the lines about results.

    Args:
        folder: of the run.
        notes: filled while the run goes on.
    """
    with warnings.catch_warnings(record=True) as caught:
        try:
            yield
        finally:
            lines = [*notes, *(f"{warning.category.__name__}: {warning.message}" for warning in caught)]
            with (folder / NOTES).open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
