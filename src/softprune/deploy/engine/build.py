"""Compiling the kernels of the engine; `python -m softprune.deploy.engine.build` does it in place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from softprune._native.compilation import ENGINE, compiler

__all__ = ["LIBRARY", "build", "compiler"]

LIBRARY = ENGINE.file


def build(target: Path = LIBRARY, *, extra: Sequence[str] = ()) -> Path:
    """Compile the kernels into one shared library, complete or not at all: `NativeLibrary.build`."""
    return ENGINE.build(target, extra=extra)


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
