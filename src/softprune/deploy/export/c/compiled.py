"""A C program on this machine, called from Python: what it would say on a device, for as many windows as you like."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.export.c.writing import CFiles

FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic")


def c_compiler() -> str | None:
    """The C compiler: $CC, or the first of cc, gcc, clang on the path; None if there is none."""
    names = os.environ.get("CC", "").split()[:1] or ["cc", "gcc", "clang"]
    return next((found for name in names if (found := shutil.which(name))), None)


def compile_c(sources: Sequence[Path], target: Path, *flags: str) -> Path:
    """Compile C files with `FLAGS` and these to a program, library or object; a RuntimeError if that fails."""
    program = c_compiler()
    if program is None:
        raise RuntimeError("no C compiler found: install gcc or clang, or name one in the variable CC")
    command = [program, *FLAGS, *flags, *map(str, sources), "-o", str(target), *([] if "-c" in flags else ["-lm"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return target


class CompiledC:
    """The source that `export_c` wrote, compiled as a library; a RuntimeError if that fails."""

    def __init__(self, files: CFiles) -> None:
        name = files.source.stem
        # A name of its own each time: a library that is loaded must not change. What is loaded may lose its name.
        with TemporaryDirectory(prefix="softprune-", ignore_cleanup_errors=True) as folder:
            library = ctypes.CDLL(str(compile_c([files.source], Path(folder) / "program.so", "-shared", "-fPIC")))
        self._files = files
        self._window = getattr(library, f"{name}_window")
        self._window.argtypes = [ctypes.c_void_p] * 3

    def scores(self, windows: NDArray[np.float32]) -> NDArray[Any]:
        """Scores [n, classes] of windows [n, steps, features]: float32, or int32 of an int8 program."""
        if windows.dtype != np.float32 or windows.shape[1:] != self._files.shape:
            raise ValueError(f"windows must be float32 [n, {self._files.shape}]; got {windows.dtype} {windows.shape}")
        windows = np.ascontiguousarray(windows)
        found = np.empty((len(windows), self._files.classes), np.int32 if self._files.int8 else np.float32)
        # Double words, so that it is aligned for every type.
        state = np.empty(-(-self._files.state_bytes // 8), np.int64)
        for window, scores in zip(windows, found, strict=True):
            self._window(state.ctypes.data, window.ctypes.data, scores.ctypes.data)
        return found
