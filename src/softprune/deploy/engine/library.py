"""The compiled kernels, loaded with ctypes: the records that they are given, and the choices between them."""

from __future__ import annotations

import ctypes as c
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.engine.build import LIBRARY

# The compiled kernels, loaded with ctypes, and the records that they are given.

# The records of kernels/abi.h, field by field.


MAX_DIMS = 6

Dims = c.c_int64 * MAX_DIMS
Four = c.c_int64 * 4
Pointer = c.c_void_p


def _ints(names: str) -> list[tuple[str, type]]:
    return [(name, c.c_int32) for name in names.split()]


def _longs(names: str) -> list[tuple[str, type]]:
    return [(name, c.c_int64) for name in names.split()]


def _pointers(names: str) -> list[tuple[str, type]]:
    return [(name, Pointer) for name in names.split()]


def _floats(names: str) -> list[tuple[str, type]]:
    return [(name, c.c_float) for name in names.split()]


class Base(c.Structure):
    """An address, or bytes from the start of one of the caller's arrays."""

    _fields_ = (("data", Pointer), ("slot", c.c_int64))


class Walk(c.Structure):
    """Output positions of a convolution, and how they are stored."""

    _fields_ = (
        *_pointers("input tiles pieces piece_start out residual bias"),
        *_longs("out_plane residual_plane"),
        *_ints("tile_count channels direct by_channel"),
        *_floats("low high"),
    )


class Sparse(c.Structure):
    """A convolution as a stream of nonzeros."""

    _fields_ = (
        ("walk", Walk),
        *_pointers("stream start channel"),
        *_ints("sets shifted blocks unused"),
        *_pointers("scratch"),
        *_longs("scratch_stride"),
    )


class Dense(c.Structure):
    """A convolution with all its weights."""

    _fields_ = (("walk", Walk), *_pointers("taps weights"), *_ints("tap_count groups"))


class Depthwise(c.Structure):
    """A convolution of each channel by itself."""

    _fields_ = (
        *_pointers("input tiles spans stream start reach masks out bias"),
        *_longs("in_plane out_plane"),
        *_ints("vector_count tile_count channels multiplier step flat by_channel"),
        *_floats("low high"),
        *_ints("unused"),
    )


class Map(c.Structure):
    """A copy or an element-wise operation on strided views."""

    _fields_ = (
        *((name, Base) for name in ("out", "a", "b", "c")),
        *((name, Dims) for name in ("shape", "out_stride", "a_stride", "b_stride", "c_stride")),
        *_ints("dims kind activation"),
        *_floats("first second"),
        *_ints("unused"),
    )


class Maps(c.Structure):
    """Several of them that do not depend on each other."""

    _fields_ = (*_pointers("items"), *_longs("count"))


class Pool(c.Structure):
    """Pooling."""

    _fields_ = (
        ("out", Base),
        ("input", Base),
        ("out_stride", Four),
        ("in_stride", Four),
        *_ints("images channels height width out_height out_width"),
        *_ints("kernel_h kernel_w stride_h stride_w pad_h pad_w dilation_h dilation_w kind include_pad"),
    )


class Reduce(c.Structure):
    """Mean, softmax or layer norm."""

    _fields_ = (
        ("out", Base),
        ("input", Base),
        *_pointers("weight bias"),
        *((name, Dims) for name in ("shape", "out_stride", "in_stride", "inner", "inner_stride", "inner_out_stride")),
        *_ints("dims inner_dims kind"),
        *_floats("epsilon"),
    )


class Matmul(c.Structure):
    """A batch of matrix products."""

    _fields_ = (
        *((name, Base) for name in ("out", "a", "b")),
        *_pointers("scratch"),
        *_longs("scratch_stride"),
        *((name, Four) for name in ("batch", "out_batch", "a_batch", "b_batch")),
        *_longs("m n k out_m out_n a_m a_k b_k b_n"),
        *_floats("scale"),
        *_ints("unused"),
    )


class Linear(c.Structure):
    """A linear layer for few rows."""

    _fields_ = (
        *((name, Base) for name in ("out", "input", "residual")),
        *_pointers("bias values start index masks"),
        *_longs("rows out_row in_row residual_row"),
        *_ints("inputs outputs kind"),
        *_floats("low high"),
    )


class Resize(c.Structure):
    """Nearest or bilinear resizing."""

    _fields_ = (
        ("out", Base),
        ("input", Base),
        ("out_stride", Four),
        ("in_stride", Four),
        *_pointers("y0 y1 x0 x1 wy wx"),
        *_ints("images channels out_height out_width"),
    )


class Clear(c.Structure):
    """Zeros around the images of a grid."""

    _fields_ = (*_pointers("data written"), *_longs("margin plane image pitch channels planes images"))


class Band(c.Structure):
    """A range of tiles of one convolution."""

    _fields_ = (*_pointers("record"), *_ints("kind first last unused"))


class Group(c.Structure):
    """Convolutions that run band by band."""

    _fields_ = (*_pointers("bands"), *_longs("count"))


# In the order of the enumeration Kind.
KINDS: tuple[type[c.Structure], ...] = (
    Sparse,
    Dense,
    Maps,
    Pool,
    Reduce,
    Matmul,
    Linear,
    Resize,
    Depthwise,
    Clear,
    Group,
)


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


@dataclass(frozen=True, order=True)
class Choice:
    """A way to compute a layer.

    Attributes:
        kind: "sparse", "dense" or "depthwise"; of a linear layer with few rows "index", "masks" or "dense".
        vectors: vectors of pixels per tile; 0 where there are no tiles.
        shifted: whether misaligned taps are shifted in registers.
        by_channel: whether threads share the channels instead of the tiles.
        blocks: blocks of input channels; what a tile reads of one block should fit into the first-level cache.
    """

    kind: str
    vectors: int
    shifted: bool = False
    by_channel: bool = False
    blocks: int = 1

    @property
    def text(self) -> str:
        """In a few words, for tables."""
        parts = [self.kind, *[f"{self.vectors} vectors"] * (self.vectors > 0)]
        parts += ["shifted"] * self.shifted + ["by channel"] * self.by_channel
        return ", ".join(parts + [f"{self.blocks} blocks"] * (self.blocks > 1))


Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Progress:
    """How far a convolution is after each of its tiles, in rows of all images.

    Attributes:
        done: rows of the output that are complete.
        needed: rows of the input that were read.
    """

    done: Longs
    needed: Longs
