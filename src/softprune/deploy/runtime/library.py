"""The compiled kernels, loaded with ctypes."""

from __future__ import annotations

import ctypes as c
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.runtime.build import LIBRARY
from softprune.deploy.runtime.records import KINDS

ABI = 4


@dataclass(frozen=True)
class Facts:
    """What the chosen instruction set can do.

    Attributes:
        level: "avx512", "avx2" or "portable".
        width: floats per vector.
        dense_channels: output channels per block of the dense kernel.
        dense_vectors: vectors per tile of the dense kernel, at most.
        expands: whether it spreads packed values over lanes.
        shifts: whether it shifts two neighbouring vectors in registers.
    """

    level: str
    width: int
    dense_channels: int
    dense_vectors: int
    expands: bool
    shifts: bool

    @property
    def sparse_vectors(self) -> int:
        """Vectors per tile of the sparse kernel, at most."""
        return 16 if self.width == 16 else 12


class Library:
    """The functions of the shared library with their types."""

    def __init__(self, path: Path) -> None:
        self._functions: Any = c.CDLL(str(path))
        _declare(self._functions)
        if self._functions.spx_abi() != ABI:
            raise OSError(f"{path} has version {self._functions.spx_abi()} of the kernels, this package needs {ABI}")
        for kind, record in enumerate(KINDS):
            if self._functions.spx_record_size(kind) != c.sizeof(record):
                raise OSError(f"{path} does not fit this package ({record.__name__}): build the kernels again")
        facts = (c.c_int32 * 5)()
        self._functions.spx_facts(facts)
        level = self._functions.spx_level().decode()
        self.facts = Facts(level, facts[0], facts[1], facts[2], bool(facts[3]), bool(facts[4]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, f"spx_{name}")

    def zeros(self, count: int) -> NDArray[np.float32]:
        """An aligned array of zeros, freed with the last view of it."""
        address = self._functions.spx_alloc(max(count, 1) * 4)
        if not address:
            raise MemoryError(f"no memory for {count} numbers")
        return np.asarray(_Memory(self._functions, address, max(count, 1)))


class _Memory:
    """Owner of a block of memory; NumPy keeps it alive as the base of its views."""

    def __init__(self, functions: Any, address: int, count: int) -> None:
        self._functions, self._address = functions, address
        self.__array_interface__ = {"shape": (count,), "typestr": "<f4", "data": (address, False), "version": 3}

    def __del__(self) -> None:
        self._functions.spx_free(self._address)


def _declare(functions: Any) -> None:
    pointer, long, integer = c.c_void_p, c.c_int64, c.c_int32
    types: dict[str, tuple[Any, list[Any]]] = {
        "abi": (integer, []),
        "level": (c.c_char_p, []),
        "facts": (None, [pointer]),
        "record_size": (long, [integer]),
        "team_new": (pointer, [integer]),
        "team_free": (None, [pointer]),
        "plan_new": (pointer, [pointer]),
        "plan_free": (None, [pointer]),
        "plan_set": (long, [pointer, long, integer, pointer, long]),
        "plan_run": (None, [pointer, pointer]),
        "plan_time": (None, [pointer, pointer, long, pointer]),
        "alloc": (pointer, [long]),
        "free": (None, [pointer]),
        "rate": (c.c_double, [pointer, long, long]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(functions, f"spx_{name}")
        function.restype, function.argtypes = result, arguments


@cache
def library() -> Library | None:
    """The kernels of this installation or of the file that SOFTPRUNE_KERNELS names; None if there are none.

    Raises:
        OSError: if the file that SOFTPRUNE_KERNELS names cannot be used.
    """
    wish = os.environ.get("SOFTPRUNE_KERNELS")
    if wish == "none":
        return None
    if wish:
        return Library(Path(wish))
    try:
        return Library(LIBRARY) if LIBRARY.is_file() else None
    except OSError:
        return None  # built for another system: the reference engine runs instead
