"""The three files of a C program, written together."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CFiles:
    """A C program on the disk.

    Attributes:
        header: with the functions and the type of a state.
        source: everything the program needs.
        main: a program that checks it with one window.
        constant_bytes: of all constant arrays.
        state_bytes: of a state, the working memory.
        shape: steps and features of a window.
        classes: how many scores there are.
        int8: whether scores are integers.
    """

    header: Path
    source: Path
    main: Path
    constant_bytes: int
    state_bytes: int
    shape: tuple[int, int]
    classes: int
    int8: bool

    def __str__(self) -> str:
        return (
            f"{self.constant_bytes:,} bytes of constants, {self.state_bytes:,} bytes of state; check with: "
            f"cc -std=c99 -O2 {self.source} {self.main} -lm && ./a.out"
        )


def write_together(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files so that none is ever half there; a new folder appears with all of them.

    Args:
        folder: where; made if it is not there. Other files in it stay.
        texts: content by file name.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, text in texts.items():
            with (scratch / name).open("w", encoding="ascii", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        if not folder.exists():
            scratch.chmod(0o755)
            scratch.rename(folder)
            return
        for name in texts:
            (scratch / name).replace(folder / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
