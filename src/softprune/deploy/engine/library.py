"""The compiled kernels, loaded with ctypes, and the records that they are given: those of kernels/abi.h."""

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

MAX_DIMS = 6
Dims = c.c_int64 * MAX_DIMS
Four = c.c_int64 * 4
Pointer, Long, Int, Float = c.c_void_p, c.c_int64, c.c_int32, c.c_float


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class Base(c.Structure):
    """An address, or bytes from the start of one of the caller's arrays."""

    _fields_ = (("data", Pointer), ("slot", Long))


class OutputTiles(c.Structure):
    """Output positions of a convolution, and how they are stored: Walk in kernels/abi.h."""

    _fields_ = (
        *_fields(Pointer, "input tiles pieces piece_start out residual bias"),
        *_fields(Long, "out_plane residual_plane"),
        *_fields(Int, "tile_count channels direct by_channel"),
        *_fields(Float, "low high"),
    )


class Sparse(c.Structure):
    """A convolution as a stream of nonzeros."""

    _fields_ = (
        ("output", OutputTiles),
        *_fields(Pointer, "stream start channel"),
        *_fields(Int, "sets shifted blocks unused"),
        *_fields(Pointer, "scratch"),
        *_fields(Long, "scratch_stride"),
    )


class Dense(c.Structure):
    """A convolution with all its weights."""

    _fields_ = (("output", OutputTiles), *_fields(Pointer, "taps weights"), *_fields(Int, "tap_count groups"))


class Depthwise(c.Structure):
    """A convolution of each channel by itself."""

    _fields_ = (
        *_fields(Pointer, "input tiles spans stream start reach masks out bias"),
        *_fields(Long, "in_plane out_plane"),
        *_fields(Int, "vector_count tile_count channels multiplier step flat by_channel"),
        *_fields(Float, "low high"),
        *_fields(Int, "unused"),
    )


class Map(c.Structure):
    """A copy or an element-wise operation on strided views."""

    _fields_ = (
        *_fields(Base, "out a b c"),
        *_fields(Dims, "shape out_stride a_stride b_stride c_stride"),
        *_fields(Int, "dims kind activation"),
        *_fields(Float, "first second"),
        *_fields(Int, "unused"),
    )


class Maps(c.Structure):
    _fields_ = (*_fields(Pointer, "items"), *_fields(Long, "count"))


class Pool(c.Structure):
    _fields_ = (
        *_fields(Base, "out input"),
        *_fields(Four, "out_stride in_stride"),
        *_fields(Int, "images channels height width out_height out_width"),
        *_fields(Int, "kernel_h kernel_w stride_h stride_w pad_h pad_w dilation_h dilation_w kind include_pad"),
    )


class Reduce(c.Structure):
    """Mean, softmax or layer norm."""

    _fields_ = (
        *_fields(Base, "out input"),
        *_fields(Pointer, "weight bias"),
        *_fields(Dims, "shape out_stride in_stride inner inner_stride inner_out_stride"),
        *_fields(Int, "dims inner_dims kind"),
        *_fields(Float, "epsilon"),
    )


class Matmul(c.Structure):
    """A batch of matrix products."""

    _fields_ = (
        *_fields(Base, "out a b"),
        *_fields(Pointer, "scratch"),
        *_fields(Long, "scratch_stride"),
        *_fields(Four, "batch out_batch a_batch b_batch"),
        *_fields(Long, "m n k out_m out_n a_m a_k b_k b_n"),
        *_fields(Float, "scale"),
        *_fields(Int, "unused"),
    )


class Linear(c.Structure):
    _fields_ = (
        *_fields(Base, "out input residual"),
        *_fields(Pointer, "bias values start index masks"),
        *_fields(Long, "rows out_row in_row residual_row"),
        *_fields(Int, "inputs outputs kind"),
        *_fields(Float, "low high"),
    )


class Resize(c.Structure):
    _fields_ = (
        *_fields(Base, "out input"),
        *_fields(Four, "out_stride in_stride"),
        *_fields(Pointer, "y0 y1 x0 x1 wy wx"),
        *_fields(Int, "images channels out_height out_width"),
    )


class Clear(c.Structure):
    """Zeros around the images of a grid."""

    _fields_ = (*_fields(Pointer, "data written"), *_fields(Long, "margin plane image pitch channels planes images"))


class Band(c.Structure):
    """A range of tiles of one convolution."""

    _fields_ = (*_fields(Pointer, "record"), *_fields(Int, "kind first last unused"))


class Wavefront(c.Structure):
    """Convolutions that run band by band."""

    _fields_ = (*_fields(Pointer, "bands"), *_fields(Long, "count"))


class Conv8(c.Structure):
    """A convolution of bytes as a stream of quads."""

    _fields_ = (
        *_fields(Pointer, "input taps quads start rows mask out residual real runs run_start scratch waiting"),
        *_fields(Long, "in_tile in_row out_channel out_tile residual_channel residual_tile real_channel"),
        *_fields(Long, "scratch_stride waiting_stride"),
        *_fields(Int, "row_count block blocks channels tiles vectors wide by_channel zero low high residual_zero"),
        *_fields(Float, "residual_factor"),
        *_fields(Int, "unused"),
    )


class Depthwise8(Conv8):
    """The same of each channel by itself."""


class Linear8(c.Structure):
    """A linear layer with few rows of bytes."""

    _fields_ = (
        *_fields(Pointer, "input weights bias factor out residual real"),
        *_fields(Long, "rows inputs outputs in_row out_row residual_row"),
        *_fields(Int, "zero low high residual_zero"),
        *_fields(Float, "residual_factor"),
        *_fields(Int, "unused"),
    )


class Side8(c.Structure):
    """One side of a move: strides in elements, or, with bytes from tile to tile, in places."""

    _fields_ = (("base", Base), *_fields(Long, "image channel row column tile first"))


class Move8(c.Structure):
    """Bytes copied, looked up, or made from or to floats."""

    _fields_ = (
        *_fields(Side8, "out input"),
        *_fields(Pointer, "table"),
        *_fields(Long, "images channels rows columns"),
        *_fields(Float, "scale"),
        *_fields(Int, "zero kind unused"),
    )


class Pool8(c.Structure):
    """The largest byte of each window."""

    _fields_ = (
        *_fields(Pointer, "input out scratch"),
        *_fields(Long, "in_image in_channel in_row out_image out_channel out_row scratch_stride"),
        *_fields(Long, "images channels rows columns out_rows out_columns"),
        *_fields(Long, "kernel_h kernel_w stride_h stride_w pad_h pad_w dilation_h dilation_w"),
    )


class Split8(c.Structure):
    """Images dealt out to the planes of a stride of two."""

    _fields_ = (
        *_fields(Pointer, "input even even_odd odd_even odd"),
        *_fields(Long, "in_image in_channel in_row out_image out_channel out_row images channels rows columns around"),
    )


class Mean8(c.Structure):
    """Means over the pixels of each channel."""

    _fields_ = (
        *_fields(Pointer, "input out tiles start masks"),
        *_fields(Long, "in_channel in_tile out_image out_channel images channels pixels"),
        *_fields(Int, "zero"),
        *_fields(Float, "factor"),
    )


Record = type[c.Structure]
# In the order of the enumeration Kind.
KINDS: tuple[Record, ...] = (
    *(Sparse, Dense, Maps, Pool, Reduce, Matmul, Linear, Resize, Depthwise, Clear, Wavefront),
    *(Conv8, Depthwise8, Linear8, Move8, Pool8, Split8, Mean8),
)
ABI = 5
# Results and arguments of the functions, whose names begin with spx_.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "abi": (Int, []),
    "level": (c.c_char_p, []),
    "level8": (c.c_char_p, []),
    "facts": (None, [Pointer]),
    "record_size": (Long, [Int]),
    "team_new": (Pointer, [Int]),
    "team_free": (None, [Pointer]),
    "plan_new": (Pointer, [Pointer]),
    "plan_free": (None, [Pointer]),
    "plan_set": (Long, [Pointer, Long, Int, Pointer, Long]),
    "plan_run": (None, [Pointer, Pointer]),
    "plan_time": (None, [Pointer, Pointer, Long, Pointer]),
    "alloc": (Pointer, [Long]),
    "free": (None, [Pointer]),
    "rate": (c.c_double, [Pointer, Long, Long]),
}


@dataclass(frozen=True)
class Facts:
    """What the chosen instruction set can do."""

    level: str  # "avx512", "avx2" or "portable"
    width: int  # floats per vector
    dense_channels: int  # output channels per block of the dense kernel
    dense_vectors: int  # vectors per tile of the dense kernel, at most
    expands: bool  # whether it spreads packed values over lanes
    shifts: bool  # whether it shifts two neighbouring vectors in registers
    integer_level: str  # "vnni512", "vnni256" or "portable"
    lanes: int  # pixels per vector of bytes

    @property
    def sparse_vectors(self) -> int:
        """Vectors per tile of the sparse kernel, at most."""
        return 16 if self.width == 16 else 12


class KernelLibrary:
    def __init__(self, path: Path) -> None:
        self._functions: Any = c.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self._functions, f"spx_{name}")
            function.restype, function.argtypes = result, arguments
        if self._functions.spx_abi() != ABI:
            raise OSError(f"{path} has version {self._functions.spx_abi()} of the kernels, this package needs {ABI}")
        for kind, record in enumerate(KINDS):
            if self._functions.spx_record_size(kind) != c.sizeof(record):
                raise OSError(f"{path} does not fit this package ({record.__name__}): build the kernels again")
        facts = (Int * 6)()
        self._functions.spx_facts(facts)
        level = self._functions.spx_level().decode()
        integer_level = self._functions.spx_level8().decode()
        width, channels, vectors, expands, shifts, lanes = facts
        self.facts = Facts(level, width, channels, vectors, bool(expands), bool(shifts), integer_level, lanes)

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


@cache
def library() -> KernelLibrary | None:
    """The kernels of this installation or of the file that SOFTPRUNE_KERNELS names; None if there are none."""
    wish = os.environ.get("SOFTPRUNE_KERNELS")
    if wish == "none":
        return None
    if wish:
        return KernelLibrary(Path(wish))
    try:
        return KernelLibrary(LIBRARY) if LIBRARY.is_file() else None
    except OSError:
        return None  # built for another system: the reference engine runs instead
