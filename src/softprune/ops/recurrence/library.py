"""The compiled recurrences, loaded with ctypes."""

from __future__ import annotations

import ctypes as c
import os
from functools import cache
from pathlib import Path
from typing import Any

from softprune._native.compilation import RECURRENCE

ABI = 2


class Call(c.Structure):
    """One run over a batch of sequences; the layout of ``Call`` in kernels/abi.h, which describes the fields."""

    _fields_ = (
        *((name, c.c_int64) for name in ("samples", "steps", "features", "hidden")),
        *((name, c.c_int32) for name in ("gate", "update")),
        *((name, c.c_float) for name in ("zeta", "nu")),
        *((name, c.c_void_p) for name in ("x", "w", "u", "biases", "start", "states", "sums")),
        *((name, c.c_void_p) for name in ("grad_states", "grad_last", "grad_x", "grad_w", "grad_u")),
        *((name, c.c_void_p) for name in ("grad_biases", "grad_scales", "grad_start")),
    )


class Library:
    """The functions of the shared library with their types.

    Args:
        path: the file.

    Raises:
        OSError: if it cannot be loaded or is of another version.
    """

    line = 16
    """Rows of the sums are padded to a multiple of it."""

    def __init__(self, path: Path) -> None:
        functions: Any = c.CDLL(str(path))
        functions.spr_abi.restype = c.c_int32
        functions.spr_record_size.restype = c.c_int64
        functions.spr_level.restype = c.c_char_p
        if functions.spr_abi() != ABI or functions.spr_record_size() != c.sizeof(Call):
            raise OSError(f"{path} does not fit this package: python -m softprune._native.compilation makes it again")
        for run in (functions.spr_forward, functions.spr_backward):
            run.restype, run.argtypes = None, [c.POINTER(Call), c.c_int64]
        self.level: str = functions.spr_level().decode()
        self._functions = functions

    def forward(self, call: Call, *, threads: int) -> None:
        """Fill ``states`` and ``sums``."""
        self._functions.spr_forward(c.byref(call), threads)

    def backward(self, call: Call, *, threads: int) -> None:
        """Fill the gradients."""
        self._functions.spr_backward(c.byref(call), threads)


@cache
def library() -> Library | None:
    """The compiled recurrences of this installation; None if there are none or SOFTPRUNE_KERNELS is "none"."""
    if os.environ.get("SOFTPRUNE_KERNELS") == "none":
        return None
    try:
        return Library(RECURRENCE.file) if RECURRENCE.file.is_file() else None
    except OSError:
        return None  # built for another system: the loop runs instead


def is_there() -> bool:
    """Whether `library` has something to give; a constant to the compiler of torch."""
    return library() is not None


# What torch.compiler.assume_constant_result sets; calling that would import the whole compiler.
is_there._dynamo_marked_constant = True  # type: ignore[attr-defined]
