"""FastGRNN over a whole sequence: by one fused operator where it was compiled, else as a loop of torch operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from softprune.ops.recurrence.fused import fused, is_there

Curve: TypeAlias = Literal["sigmoid", "tanh", "relu", "quant_tanh", "quant_sigm", "quant_sigm4"]

# In the order of the kernels' own list. The piecewise linear ones suit integer arithmetic.
CURVES: Mapping[Curve, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "quant_tanh": F.hardtanh,
    "quant_sigm": lambda x: F.hardtanh((x + 1) / 2, 0.0, 1.0),
    "quant_sigm4": lambda x: F.hardtanh((x + 2) / 4, 0.0, 1.0),
}


def check_curve(name: str, of: str) -> None:
    """Raise for an unknown non-linearity; `of` says what it is for."""
    if name not in CURVES:
        raise ValueError(f"the non-linearity of the {of} is one of {', '.join(CURVES)}; got {name!r}")


def number(name: Curve) -> int:
    """The number of a non-linearity in the kernels."""
    return list(CURVES).index(name)


def fastgrnn_step(
    projected: Tensor,
    h: Tensor,
    *,
    u: Tensor,
    gate_bias: Tensor,
    update_bias: Tensor,
    zeta: Tensor,
    nu: Tensor,
    gate: Curve = "sigmoid",
    update: Curve = "tanh",
) -> Tensor:
    """One step, from the state h [n, hidden] to the next; arguments as `fastgrnn`, with projected = W x [n, hidden].

    ``pre = projected + U h``, ``h' = z * h + (zeta (1 - z) + nu) * c`` with ``z = gate(pre + gate_bias)`` and
    ``c = update(pre + update_bias)``.
    """
    pre = projected + F.linear(h, u)
    z = CURVES[gate](pre + gate_bias)
    c = CURVES[update](pre + update_bias)
    return z * h + (zeta * (1 - z) + nu) * c


def fastgrnn_loop(
    x: Tensor,
    *,
    w: Tensor,
    u: Tensor,
    gate_bias: Tensor,
    update_bias: Tensor,
    zeta: Tensor,
    nu: Tensor,
    start: Tensor | None = None,
    gate: Curve = "sigmoid",
    update: Curve = "tanh",
) -> tuple[Tensor, Tensor]:
    """A whole sequence in plain torch operations, on any device, in any precision: the reference of the fused operator.

    Arguments and result as `fastgrnn`.
    """
    projected = F.linear(x, w)
    h = projected.new_zeros(x.shape[0], u.shape[0]) if start is None else start
    states = []
    for t in range(x.shape[1]):
        h = fastgrnn_step(
            projected[:, t], h, u=u, gate_bias=gate_bias, update_bias=update_bias, zeta=zeta, nu=nu,
            gate=gate, update=update,
        )  # fmt: skip
        states.append(h)
    return torch.stack(states, 1), h


def fastgrnn(
    x: Tensor,
    *,
    w: Tensor,
    u: Tensor,
    gate_bias: Tensor,
    update_bias: Tensor,
    zeta: Tensor,
    nu: Tensor,
    start: Tensor | None = None,
    gate: Curve = "sigmoid",
    update: Curve = "tanh",
) -> tuple[Tensor, Tensor]:
    """FastGRNN over sequences of equal length.

        pre_t = W x_t + U h_{t-1}
        z_t   = gate(pre_t + gate_bias),    c_t = update(pre_t + update_bias)
        h_t   = z_t * h_{t-1} + (zeta * (1 - z_t) + nu) * c_t

    On a CPU in float32 one compiled operator runs all steps; elsewhere, where it is not compiled, and while a model is
    exported, the plain loop does. Both have the same gradients.

    Args:
        x: inputs [n, steps, features]; at least one step.
        w: [hidden, features].
        u: [hidden, hidden].
        gate_bias: [hidden].
        update_bias: [hidden].
        zeta: one number in (0, 1), shape () or (1,).
        nu: one number in (0, 1), likewise.
        start: the state before the first step, [n, hidden]; zeros by default.
        gate: non-linearity of the gate, one of `CURVES`.
        update: non-linearity of the update, one of `CURVES`.

    Returns:
        All states [n, steps, hidden] and the last one [n, hidden].

    >>> w, u, b = torch.ones(2, 3), torch.zeros(2, 2), torch.zeros(2)
    >>> states, last = fastgrnn(
    ...     torch.zeros(5, 7, 3), w=w, u=u, gate_bias=b, update_bias=b, zeta=torch.tensor(0.5), nu=torch.tensor(0.1)
    ... )
    >>> states.shape, last.shape
    (torch.Size([5, 7, 2]), torch.Size([5, 2]))

    Reference: A. Kusupati et al., "FastGRNN: a fast, accurate, stable and tiny kilobyte sized gated recurrent neural
    network", NeurIPS 2018, section 3.
    """
    check_curve(gate, "gate")
    check_curve(update, "update")
    _check_shapes(x, w, u, gate_bias, update_bias, start)
    tensors = [x, w, u, gate_bias, update_bias, zeta, nu, *([] if start is None else [start])]
    if _can_fuse(tensors):
        biases = torch.stack([gate_bias, update_bias])
        scales = torch.cat([zeta.reshape(1), nu.reshape(1)])
        keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        states, last, _ = fused(x, w, u, biases, scales, start, number(gate), number(update), keep=keep)
        return states, last
    return fastgrnn_loop(
        x, w=w, u=u, gate_bias=gate_bias, update_bias=update_bias, zeta=zeta, nu=nu, start=start,
        gate=gate, update=update,
    )  # fmt: skip


def _can_fuse(tensors: list[Tensor]) -> bool:
    # A compiler takes the operator as it is; an exporter wants operations that others know. Releases of torch that
    # cannot tell the two apart get the loop.
    exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    if exporting() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    if not all(tensor.is_cpu and tensor.dtype == torch.float32 for tensor in tensors):
        return False
    return is_there()


def _check_shapes(
    x: Tensor, w: Tensor, u: Tensor, gate_bias: Tensor, update_bias: Tensor, start: Tensor | None
) -> None:
    if x.dim() != 3 or x.shape[1] == 0:
        raise ValueError(f"a sequence is [n, steps, features] with at least one step; got {tuple(x.shape)}")
    hidden, features = u.shape[0], x.shape[2]
    wanted = {
        "w": (w, (hidden, features)),
        "u": (u, (hidden, hidden)),
        "gate_bias": (gate_bias, (hidden,)),
        "update_bias": (update_bias, (hidden,)),
    }
    if start is not None:
        wanted["start"] = (start, (x.shape[0], hidden))
    for name, (tensor, shape) in wanted.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} must be {shape} here; got {tuple(tensor.shape)}")
