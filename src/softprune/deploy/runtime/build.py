"""Compiling the kernels with the system's C++ compiler; `python -m softprune.deploy.runtime.build` does it in place."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "kernels"
LIBRARY = HERE / ("kernels.dylib" if sys.platform == "darwin" else "kernels.so")

# -ffp-contract lets a * b + c become one instruction; nothing else of "fast math", which would break NaN and infinity.
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-w")
X86 = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mpopcnt"),
    "avx2": ("-mavx2", "-mfma"),
}


def compiler() -> str | None:
    """The C++ compiler: $CXX, or the first of c++, g++, clang++ on the path; None if there is none."""
    wish = os.environ.get("CXX", "").split()
    names = wish[:1] or ["c++", "g++", "clang++"]
    return next((found for name in names if (found := shutil.which(name))), None)


def arch_flags() -> list[str]:
    """The processors that a build on macOS is for, if $ARCHFLAGS names any: ``-arch x86_64`` and the like."""
    return os.environ.get("ARCHFLAGS", "").split() if sys.platform == "darwin" else []


def machine() -> str:
    """The processor that is built for.

    Raises:
        RuntimeError: if $ARCHFLAGS names several.
    """
    archs = {word for word in arch_flags() if word != "-arch"}
    if len(archs) > 1:
        raise RuntimeError(f"ARCHFLAGS names several processors ({', '.join(sorted(archs))}): build for one at a time")
    return archs.pop() if archs else platform.machine().lower()


def units() -> dict[str, tuple[str, ...]]:
    """Each translation unit with the flags of its instruction set."""
    x86 = machine() in ("x86_64", "amd64")
    names: dict[str, tuple[str, ...]] = {"cpu": (), "plan": (), "portable": ()}
    return {**names, **X86} if x86 else names


def is_built() -> bool:
    """Whether the library is there and newer than everything that it is made of."""
    sources = [*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"), Path(__file__)]
    return LIBRARY.is_file() and LIBRARY.stat().st_mtime > max(path.stat().st_mtime for path in sources)


def build(target: Path = LIBRARY, *, extra: Sequence[str] = ()) -> Path:
    """Compile the kernels into one shared library.

    Args:
        target: the file to write; it appears complete or not at all.
        extra: more flags for compiler and linker, such as ``-fsanitize=address``.

    Returns:
        The library.

    Raises:
        RuntimeError: if there is no compiler, or it fails; with its message.
    """
    program = compiler()
    if program is None:
        raise RuntimeError("no C++ compiler found: install g++ or clang++, or name one in the variable CXX")
    extra = (*arch_flags(), *extra)
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for name, flags in units().items():
            command = [program, *FLAGS, *flags, *extra, "-c", str(SOURCES / f"{name}.cpp"), "-o", f"{folder}/{name}.o"]
            running.append((command, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
        for command, process in running:
            _finish(command, process)
        scratch = target.with_name(f".{target.name}.{os.getpid()}")
        link = [program, "-shared", *extra, "-o", str(scratch), *(f"{folder}/{name}.o" for name in units()), "-pthread"]
        _finish(link, subprocess.Popen(link, stderr=subprocess.PIPE, text=True))
    scratch.replace(target)
    return target


def _finish(command: list[str], process: subprocess.Popen[str]) -> None:
    _, message = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{message.strip()[-2000:]}")


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
