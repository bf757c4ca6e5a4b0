"""FastGRNN over a whole sequence as one operator of torch, compiled, with its backward.

The operator is ``torch.ops.softprune.fastgrnn``: torch.compile keeps it as one node, without a break of the graph. All
products are in the kernels. The results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softprune.ops.recurrence.library import Call, Library, library
from softprune.ops.recurrence.room import room


def _library() -> Library:
    found = library()
    if found is None:
        raise RuntimeError("the recurrences are not compiled: python -m softprune._native.compilation makes them")
    return found


def _call(x: Tensor, hidden: int, scales: Tensor, gate: int, update: int, **tensors: Tensor | None) -> Call:
    """The record of a call; what it points to must outlive it."""
    samples, steps, features = x.shape
    zeta, nu = scales.tolist()
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
    return Call(samples, steps, features, hidden, gate, update, zeta, nu, x=x.data_ptr(), **addresses)


def _size_of_sums(x: Tensor, hidden: int, *, keep: bool) -> int:
    """Room for the sums before the non-linearities, in an order that only the kernels know."""
    return x.shape[0] * x.shape[1] * (-hidden // Library.line * -Library.line) if keep else 0


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
    """All states, the last one, and what backward needs besides.

    Args:
        x: inputs [n, steps, features], float32 like all others.
        w: [hidden, features].
        u: [hidden, hidden].
        biases: [2, hidden], of the gate and of the update.
        scales: [2], zeta and nu.
        start: [n, hidden], or None for zeros.
        gate: number of the gate's non-linearity.
        update: number of the update's non-linearity.
        keep: whether there will be a backward.
    """
    x, w, u, biases = (tensor.contiguous() for tensor in (x, w, u, biases))
    start = None if start is None else start.contiguous()
    hidden = u.shape[0]
    states, sums = room(*x.shape[:2], hidden), room(_size_of_sums(x, hidden, keep=keep))
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

OPERATOR = torch.ops.softprune.fastgrnn
"""What a dispatch mode sees; its first arguments are x, w and u."""
