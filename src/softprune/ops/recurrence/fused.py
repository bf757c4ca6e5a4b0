"""FastGRNN over a whole sequence as one operator of torch, compiled, with its backward.

The operator is ``torch.ops.softprune.fastgrnn``: torch.compile keeps it as one node, without a break of the graph. All
products are in the kernels. The results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes as c
import math
import os
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from softprune._native.compilation import RECURRENCE

# The compiled recurrences, loaded with ctypes.
ABI = 2


class RecurrenceCall(c.Structure):
    """One run over a batch of sequences; the layout of ``Call`` in kernels/abi.h, which describes the fields."""

    _fields_ = (
        *((name, c.c_int64) for name in ("samples", "steps", "features", "hidden")),
        *((name, c.c_int32) for name in ("gate", "update")),
        *((name, c.c_float) for name in ("zeta", "nu")),
        *((name, c.c_void_p) for name in ("x", "w", "u", "biases", "start", "states", "sums")),
        *((name, c.c_void_p) for name in ("grad_states", "grad_last", "grad_x", "grad_w", "grad_u")),
        *((name, c.c_void_p) for name in ("grad_biases", "grad_scales", "grad_start")),
    )


class RecurrenceLibrary:
    """The functions of the shared library with their types.

    Raises:
        OSError: if the file cannot be loaded or is of another version.
    """

    line = 16  # rows of the sums are padded to a multiple of it

    def __init__(self, path: Path) -> None:
        functions: Any = c.CDLL(str(path))
        functions.spr_abi.restype = c.c_int32
        functions.spr_record_size.restype = c.c_int64
        functions.spr_level.restype = c.c_char_p
        if functions.spr_abi() != ABI or functions.spr_record_size() != c.sizeof(RecurrenceCall):
            raise OSError(f"{path} does not fit this package: python -m softprune._native.compilation makes it again")
        for run in (functions.spr_forward, functions.spr_backward):
            run.restype, run.argtypes = None, [c.POINTER(RecurrenceCall), c.c_int64]
        self.level: str = functions.spr_level().decode()
        self._functions = functions

    def forward(self, call: RecurrenceCall, *, threads: int) -> None:
        """Fill ``states`` and ``sums``."""
        self._functions.spr_forward(c.byref(call), threads)

    def backward(self, call: RecurrenceCall, *, threads: int) -> None:
        """Fill the gradients."""
        self._functions.spr_backward(c.byref(call), threads)


@cache
def library() -> RecurrenceLibrary | None:
    """The compiled recurrences of this installation; None if there are none or SOFTPRUNE_KERNELS is "none"."""
    if os.environ.get("SOFTPRUNE_KERNELS") == "none":
        return None
    try:
        return RecurrenceLibrary(RECURRENCE.file) if RECURRENCE.file.is_file() else None
    except OSError:
        return None  # built for another system: the loop runs instead


def is_there() -> bool:
    """Whether there is a library; a constant to the compiler of torch."""
    return library() is not None


# What torch.compiler.assume_constant_result sets; calling that would import the whole compiler.
is_there._dynamo_marked_constant = True  # type: ignore[attr-defined]


# Memory for arrays over all steps, used again.
# Such an array takes megabytes, which the system hands out anew, page by page, whenever they were given back: that
# can take as long as the recurrence itself.


Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"

KEPT = 4  # arrays that wait to be used again, at most
LARGEST = 1 << 25  # bytes of such an array
LINE = 16  # numbers of a cache line: tensors begin with one

_waiting: deque[Array] = deque(maxlen=KEPT)


class _Lent(np.ndarray[Any, np.dtype[np.float32]]):
    """A view that lasts as long as the tensor that is made of it."""

    def __del__(self) -> None:
        if isinstance(self.base, np.ndarray) and self.base.nbytes <= LARGEST:
            _waiting.append(self.base)


def reused_tensor(*shape: int) -> Tensor:
    """A tensor of float32 that is not filled; its memory is used again once nobody needs the tensor.

    >>> reused_tensor(2, 3).shape
    torch.Size([2, 3])
    """
    count = math.prod(shape)
    return torch.from_numpy(_array(count).view(_Lent))[:count].view(shape)


def _array(count: int) -> Array:
    """A free array of about that size, or a new one."""
    for _ in range(KEPT):
        try:
            found = _waiting.popleft()
        except IndexError:
            break
        if count <= found.size <= 2 * count:
            return found
        _waiting.append(found)
    made = np.empty(count + LINE, np.float32)
    first = -made.ctypes.data // made.itemsize % LINE
    return made[first : first + count]


def _library() -> RecurrenceLibrary:
    found = library()
    if found is None:
        raise RuntimeError("the recurrences are not compiled: python -m softprune._native.compilation makes them")
    return found


def _call(x: Tensor, hidden: int, scales: Tensor, gate: int, update: int, **tensors: Tensor | None) -> RecurrenceCall:
    """The record of a call; what it points to must outlive it."""
    samples, steps, features = x.shape
    zeta, nu = scales.tolist()
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
    return RecurrenceCall(samples, steps, features, hidden, gate, update, zeta, nu, x=x.data_ptr(), **addresses)


def _size_of_sums(x: Tensor, hidden: int, *, keep: bool) -> int:
    """Room for the sums before the non-linearities, in an order that only the kernels know."""
    return x.shape[0] * x.shape[1] * (-hidden // RecurrenceLibrary.line * -RecurrenceLibrary.line) if keep else 0


@torch.library.custom_op("softprune::fastgrnn", mutates_args=(), device_types="cpu")
def fused(
    x: Tensor,
    w: Tensor,
    u: Tensor,
    biases: Tensor,
    scales: Tensor,
    start: Tensor | None,
    gate: int,
    update: int,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """All states, the last one, and the sums that backward needs, empty unless `keep`. All tensors are float32.

    As `fastgrnn`, with `biases` [2, hidden] of gate and update, `scales` [2] zeta and nu, and the numbers of the
    non-linearities.
    """
    x, w, u, biases = (tensor.contiguous() for tensor in (x, w, u, biases))
    start = None if start is None else start.contiguous()
    hidden = u.shape[0]
    states, sums = reused_tensor(*x.shape[:2], hidden), reused_tensor(_size_of_sums(x, hidden, keep=keep))
    call = _call(
        x, hidden, scales, gate, update, w=w, u=u, biases=biases, start=start, states=states,
        sums=sums if keep else None,
    )  # fmt: skip
    _library().forward(call, threads=torch.get_num_threads())
    return states, states[:, -1].clone(), sums


@fused.register_fake
def _(
    x: Tensor,
    w: Tensor,
    u: Tensor,
    biases: Tensor,
    scales: Tensor,
    start: Tensor | None,
    gate: int,
    update: int,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    hidden = u.shape[0]
    sums = x.new_empty(_size_of_sums(x, hidden, keep=keep))
    return x.new_empty(*x.shape[:2], hidden), x.new_empty(x.shape[0], hidden), sums


@torch.library.custom_op("softprune::fastgrnn_backward", mutates_args=(), device_types="cpu")
def fused_backward(
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    states: Tensor,
    sums: Tensor,
    x: Tensor,
    w: Tensor,
    u: Tensor,
    biases: Tensor,
    scales: Tensor,
    start: Tensor | None,
    gate: int,
    update: int,
    *,
    wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (empty unless wanted), w, u, biases, scales and start; arguments as in `fused`."""
    given = (grad_states, grad_last, start)
    grad_states, grad_last, start = (None if tensor is None else tensor.contiguous() for tensor in given)
    x, w, u, biases, states = (tensor.contiguous() for tensor in (x, w, u, biases, states))
    made = _gradients(x, w, u, biases, scales, wants_x=wants_x)
    grad_x, grad_w, grad_u, grad_biases, grad_scales, grad_start = made
    call = _call(
        x, u.shape[0], scales, gate, update, w=w, u=u, biases=biases, start=start, states=states, sums=sums,
        grad_states=grad_states, grad_last=grad_last, grad_x=grad_x if wants_x else None, grad_w=grad_w, grad_u=grad_u,
        grad_biases=grad_biases, grad_scales=grad_scales, grad_start=grad_start,
    )  # fmt: skip
    _library().backward(call, threads=torch.get_num_threads())
    return made


@fused_backward.register_fake
def _(
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    states: Tensor,
    sums: Tensor,
    x: Tensor,
    w: Tensor,
    u: Tensor,
    biases: Tensor,
    scales: Tensor,
    start: Tensor | None,
    gate: int,
    update: int,
    *,
    wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _gradients(x, w, u, biases, scales, wants_x=wants_x)


def _gradients(
    x: Tensor, w: Tensor, u: Tensor, biases: Tensor, scales: Tensor, *, wants_x: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_x = x.new_empty(x.shape if wants_x else 0)
    alike = (tensor.new_empty(tensor.shape) for tensor in (w, u, biases, scales))
    grad_w, grad_u, grad_biases, grad_scales = alike
    return grad_x, grad_w, grad_u, grad_biases, grad_scales, x.new_empty(x.shape[0], u.shape[0])


def _setup(
    ctx: Any,
    inputs: tuple[Any, ...],
    keyword_only_inputs: dict[str, Any],  # the name is torch's
    output: tuple[Tensor, Tensor, Tensor],
) -> None:
    x, w, u, biases, scales, start, ctx.gate, ctx.update = inputs
    states, _, sums = output
    ctx.set_materialize_grads(False)  # an output that nobody uses costs nothing
    ctx.mark_non_differentiable(sums)
    ctx.save_for_backward(states, sums, x, w, u, biases, scales, start)


def _backward(ctx: Any, grad_states: Tensor | None, grad_last: Tensor | None, _: object) -> tuple[Tensor | None, ...]:
    if grad_states is None and grad_last is None:
        return (None,) * 8
    wants_x = ctx.needs_input_grad[0]
    grad_x, *grads, grad_start = fused_backward(
        grad_states, grad_last, *ctx.saved_tensors, ctx.gate, ctx.update, wants_x=wants_x
    )
    return grad_x if wants_x else None, *grads, grad_start if ctx.needs_input_grad[5] else None, None, None


fused.register_autograd(_backward, setup_context=_setup)

# What a dispatch mode sees; its first arguments are x, w and u.
OPERATOR = torch.ops.softprune.fastgrnn
