"""Compiling shared libraries with the system's C++ compiler; `python -m softprune._native.compilation` makes them all.

A library is made of sources that are compiled once for each instruction set, so that one file fits every processor.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
SUFFIX = "dylib" if sys.platform == "darwin" else "so"

# -ffp-contract lets a * b + c become one instruction; nothing else of "fast math", which would break NaN and infinity.
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-w")
SYSTEM = ("-pthread", "-ldl") if sys.platform == "linux" else ("-pthread",)
X86 = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mpopcnt"),
    "avx2": ("-mavx2", "-mfma"),
}
# Integer kernels give the same results on every processor: nothing is fused that their source does not fuse.
_EXACT = ("-ffp-contract=off",)


@dataclass(frozen=True)
class NativeLibrary:
    """One shared library of the package."""

    file: Path  # where it lies once it is made
    sources: Path  # the folder of its sources; on x86 avx512.cpp and avx2.cpp are among them
    units: tuple[str, ...]  # the sources for any processor, without their suffix
    headers: tuple[Path, ...] = ()  # folders of headers that it shares with other libraries
    # units of integer kernels: the instruction set of `X86` that each is for, None for any processor
    integer: Mapping[str, str | None] = field(default_factory=dict)

    def is_built(self) -> bool:
        """Whether the library is there and newer than everything that it is made of."""
        made_of = [Path(__file__)]
        for folder in (self.sources, *self.headers):
            made_of += [*folder.glob("*.h"), *folder.glob("*.cpp")]
        return self.file.is_file() and self.file.stat().st_mtime > max(path.stat().st_mtime for path in made_of)

    def build(self, target: Path | None = None, *, extra: Sequence[str] = ()) -> Path:
        """Compile the library into ``target``, by default its own place; the file appears complete or not at all.

        Args:
            extra: more flags for compiler and linker, such as ``-fsanitize=address``.

        Raises:
            RuntimeError: if there is no compiler (`NoCompilerError`), or with the message of one that fails.
        """
        program, target = _required_compiler(), target or self.file
        units = self.flags_of_units()
        extra = (*arch_flags(), *extra)
        with tempfile.TemporaryDirectory() as folder:
            objects = [f"{folder}/{name}.o" for name in units]
            _run_all(
                [*program, *FLAGS, *flags, *extra, "-c", str(self.sources / f"{name}.cpp"), "-o", made]
                for (name, flags), made in zip(units.items(), objects, strict=True)
            )
            scratch = target.with_name(f".{target.name}.{os.getpid()}")
            try:
                _run_all([[*program, "-shared", *extra, "-o", str(scratch), *objects, *SYSTEM]])
                scratch.replace(target)
            finally:
                scratch.unlink(missing_ok=True)
        return target

    def flags_of_units(self) -> dict[str, tuple[str, ...]]:
        """Each translation unit with the flags of its instruction set."""
        headers = tuple(f"-I{folder}" for folder in self.headers)
        x86 = X86 if machine() in ("x86_64", "amd64") else {}
        units: dict[str, tuple[str, ...]] = dict.fromkeys(self.units, ()) | x86
        for name, level in self.integer.items():
            if level is None or level in x86:
                units[name] = (*x86.get(level or "", ()), *_EXACT)
        return {name: headers + flags for name, flags in units.items()}


_ENGINE = PACKAGE / "deploy" / "engine"
_RECURRENCE = PACKAGE / "ops" / "recurrence"

ENGINE = NativeLibrary(
    _ENGINE / f"kernels.{SUFFIX}",
    _ENGINE / "kernels",
    ("cpu", "plan", "portable"),
    integer={"portable8": None, "vnni256": "avx2", "vnni512": "avx512"},
)
RECURRENCE = NativeLibrary(
    _RECURRENCE / f"recurrence.{SUFFIX}",
    _RECURRENCE / "kernels",
    ("entry", "portable", "team"),
    headers=(ENGINE.sources,),  # its vectors
)
LIBRARIES = (ENGINE, RECURRENCE)


def arch_flags() -> list[str]:
    """The processors that a build on macOS is for, if $ARCHFLAGS names any: ``-arch x86_64`` and the like."""
    return os.environ.get("ARCHFLAGS", "").split() if sys.platform == "darwin" else []


def machine() -> str:
    """The processor that is built for; $ARCHFLAGS may name one."""
    archs = {word for word in arch_flags() if word != "-arch"}
    if len(archs) > 1:
        raise RuntimeError(f"ARCHFLAGS names several processors ({', '.join(sorted(archs))}): build for one at a time")
    return archs.pop() if archs else platform.machine().lower()


class NoCompilerError(RuntimeError):
    """There is no C++ compiler, and nobody named one."""


def compiler() -> list[str] | None:
    """The command of the C++ compiler: the words of $CXX, such as ``ccache g++``, or what is on the path; or None.

    Another compiler than $CXX would be a surprise, so one that cannot be run is a RuntimeError.
    """
    wish = os.environ.get("CXX", "").strip()
    if not wish:
        found = next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
        return None if found is None else [found]
    advice = "name a C++ compiler that works, as in CXX='ccache g++', or unset CXX"
    try:
        words = shlex.split(wish)
    except ValueError as error:
        raise RuntimeError(f"CXX is {wish!r}, which is not a command ({error}): {advice}") from error
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise RuntimeError(f"CXX is {wish!r}, and there is no program {words[0] if words else ''!r}: {advice}")
    return [program, *words[1:]]


def _required_compiler() -> list[str]:
    program = compiler()
    if program is None:
        raise NoCompilerError("no C++ compiler found: install g++ or clang++, or name one in the variable CXX")
    return program


def _run_all(commands: Iterable[list[str]]) -> None:
    running = [(command, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)) for command in commands]
    for command, process in running:
        _, message = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{message.strip()[-2000:]}")


if __name__ == "__main__":
    for library in LIBRARIES:
        sys.stdout.write(f"{library.build()}\n")
