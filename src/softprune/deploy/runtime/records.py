"""The records of kernels/abi.h, field by field."""

from __future__ import annotations

import ctypes as c

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
