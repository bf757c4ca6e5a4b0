"""FastGRNN over a whole sequence as one operator of torch, compiled, with its backward.

The operator is ``torch.ops.softprune.fastgrnn``: torch.compile keeps it as one node, without a break of the graph. It
computes W x for all steps in one product, then the recurrence in the kernels; backward is the same in reverse. The
results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softprune.ops.recurrence.library import Call, Library, library


def _library() -> Library:
    found = library()
    if found is None:
        raise RuntimeError("the recurrences are not compiled: python -m softprune._native.compilation makes them")
    return found


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _call(states: Tensor, u: Tensor, biases: Tensor, scales: Tensor, gate: int, update: int, **more: Any) -> Call:
    """The record of a call; what it points to must outlive it."""
    samples, steps, hidden = states.shape
    zeta, nu = scales.tolist()
    addresses = {name: _address(tensor) for name, tensor in more.items()}
    return Call(
        samples, steps, hidden, gate, update, zeta, nu, u=u.data_ptr(), states=states.data_ptr(),
        gate_bias=biases[0].data_ptr(), update_bias=biases[1].data_ptr(), **addresses,
    )  # fmt: skip


@torch.library.custom_op("softprune::fastgrnn", mutates_args=(), device_types="cpu")
def fused(
    x: Tensor, w: Tensor, u: Tensor, biases: Tensor, scales: Tensor, start: Tensor | None, gate: int, update: int
) -> tuple[Tensor, Tensor, Tensor]:
    """All states, the last one, and the sums before the non-linearities.

    Args:
        x: inputs [n, steps, features], float32 like all others, contiguous like all others.
        w: [hidden, features].
        u: [hidden, hidden].
        biases: [2, hidden], of the gate and of the update.
        scales: [2], zeta and nu.
        start: [n, hidden], or None for zeros.
        gate: number of the gate's non-linearity.
        update: number of the update's non-linearity.
    """
    x, w, u, biases = (tensor.contiguous() for tensor in (x, w, u, biases))
    start = None if start is None else start.contiguous()
    with torch.autocast("cpu", enabled=False):
        pre = torch.nn.functional.linear(x, w)
    states = torch.empty_like(pre)
    call = _call(states, u, biases, scales, gate, update, pre=pre, start=start)
    _library().forward(call, threads=torch.get_num_threads())
    return states, states[:, -1].clone(), pre


@fused.register_fake
def _(
    x: Tensor, w: Tensor, u: Tensor, biases: Tensor, scales: Tensor, start: Tensor | None, gate: int, update: int
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (x.shape[0], x.shape[1], w.shape[0])
    return x.new_empty(shape), x.new_empty((shape[0], shape[2])), x.new_empty(shape)


@torch.library.custom_op("softprune::fastgrnn_backward", mutates_args=(), device_types="cpu")
def fused_backward(
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    states: Tensor,
    pre: Tensor,
    u: Tensor,
    biases: Tensor,
    scales: Tensor,
    start: Tensor | None,
    gate: int,
    update: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of pre, u, biases, scales and start; arguments as in `fused`."""
    given = (grad_states, grad_last, start)
    grad_states, grad_last, start = (None if tensor is None else tensor.contiguous() for tensor in given)
    states, pre, u, biases = (tensor.contiguous() for tensor in (states, pre, u, biases))
    samples, _, hidden = states.shape
    found = _library()
    grad_pre = torch.empty_like(pre)
    grad_start = states.new_empty(samples, hidden)
    small = states.new_empty(-(-samples // found.group), 4, hidden)
    call = _call(
        states, u, biases, scales, gate, update, pre=pre, start=start, grad_states=grad_states, grad_last=grad_last,
        grad_pre=grad_pre, grad_start=grad_start, grad_small=small,
    )  # fmt: skip
    found.backward(call, threads=torch.get_num_threads())
    total = small.sum(0)
    return grad_pre, _grad_u(grad_pre, states, start), total[:2].clone(), total[2:].sum(1), grad_start


def _grad_u(grad_pre: Tensor, states: Tensor, start: Tensor | None) -> Tensor:
    """The sum over samples and steps of dL/dpre times the state before it."""
    with torch.autocast("cpu", enabled=False):
        hidden = states.shape[2]
        first = states.new_zeros(hidden, hidden) if start is None else grad_pre[:, 0].T @ start
        return torch.addbmm(first, grad_pre[:, 1:].transpose(1, 2), states[:, :-1])


@fused_backward.register_fake
def _(
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    states: Tensor,
    pre: Tensor,
    u: Tensor,
    biases: Tensor,
    scales: Tensor,
    start: Tensor | None,
    gate: int,
    update: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_start = states.new_empty((states.shape[0], states.shape[2]))
    return torch.empty_like(pre), torch.empty_like(u), torch.empty_like(biases), torch.empty_like(scales), grad_start


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, w, u, biases, scales, start, ctx.gate, ctx.update = inputs
    states, _, pre = output
    ctx.set_materialize_grads(False)  # an output that nobody uses costs nothing
    ctx.mark_non_differentiable(pre)
    ctx.save_for_backward(x, w, u, biases, scales, start, states, pre)


def _backward(ctx: Any, grad_states: Tensor | None, grad_last: Tensor | None, _: object) -> tuple[Tensor | None, ...]:
    x, w, u, biases, scales, start, states, pre = ctx.saved_tensors
    if grad_states is None and grad_last is None:
        return (None,) * 8
    grad_pre, grad_u, grad_biases, grad_scales, grad_start = fused_backward(
        grad_states, grad_last, states, pre, u, biases, scales, start, ctx.gate, ctx.update
    )
    grad_x = grad_pre @ w if ctx.needs_input_grad[0] else None
    # The thin matrix first: BLAS is several times faster that way round.
    grad_w = (x.flatten(0, 1).T @ grad_pre.flatten(0, 1)).T if ctx.needs_input_grad[1] else None
    return grad_x, grad_w, grad_u, grad_biases, grad_scales, None if start is None else grad_start, None, None


fused.register_autograd(_backward, setup_context=_setup)

OPERATOR = torch.ops.softprune.fastgrnn
"""What a dispatch mode sees; its first arguments are x, w and u."""
