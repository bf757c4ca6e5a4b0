"""FastGRNN as plain torch operations, one step after the other: what the fused operator is tested against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from softprune.ops.recurrence.curve import CURVES, Curve


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
    """One step: ``pre = projected + U h``, ``h' = z * h + (zeta (1 - z) + nu) * c``.

    Here ``z = gate(pre + gate_bias)`` and ``c = update(pre + update_bias)``.

    Args:
        projected: W x, [n, hidden].
        h: the state before, [n, hidden].
        u: [hidden, hidden].
        gate_bias: [hidden].
        update_bias: [hidden].
        zeta: one number in (0, 1).
        nu: one number in (0, 1).
        gate: non-linearity of the gate.
        update: non-linearity of the update.

    Returns:
        The state after, [n, hidden].
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
    """A whole sequence, step by step, on any device and in any precision; arguments as `fastgrnn`."""
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
