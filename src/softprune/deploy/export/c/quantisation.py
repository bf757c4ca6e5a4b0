"""From a classifier in float32 to one in integers, with ranges measured on example windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softprune.deploy.export.c.fixed_point import (
    LIMIT16,
    MIX_BITS,
    SUM_BITS,
    SUM_LIMIT,
    Integers,
    clamped,
    fraction_bits,
    multiplier,
)
from softprune.deploy.export.c.integer_network import IntegerMatrix, IntegerNetwork, Product
from softprune.deploy.export.c.network import Matrix, read_network
from softprune.deploy.export.c.normalisation import Normalisation
from softprune.nn import FastGRNNClassifier

Doubles = NDArray[np.float64]

LARGEST_WEIGHT = 127
# A sum of products with int16 stays below 2 ** 30, which leaves as much again for a bias.
LARGEST_ROW = 32_000
LARGEST_BIAS = 1 << 30


@dataclass(frozen=True)
class _Scaled:
    """Whole numbers that stand for ``scale`` times themselves."""

    weights: Integers
    scale: float


def quantised(
    model: FastGRNNClassifier, example: Tensor, *, normalisation: Normalisation | None = None
) -> IntegerNetwork:
    """The classifier in integers.

    Args:
        model: from `plain_classifier`.
        example: windows [n, steps, features] as the model takes them. Each kind of activation gets 16 bits for twice
            its largest value in them; what is larger than that later is cut there.
        normalisation: what the integer program does to its inputs.

    Raises:
        ValueError: if a value is too large for 16 bits.
    """
    network = read_network(model)
    with torch.no_grad():
        states = model.rnn(example)[0].double().numpy()
    x = example.double().numpy()
    input_bits = fraction_bits(float(np.abs(x).max()), "an input")
    state_bits = fraction_bits(float(np.abs(states).max()), "the state")
    head_bias = network.head_bias.astype(np.float64)
    # One unit of a score must not be so small that the bias has no room.
    least = float(np.abs(head_bias).max()) * 2.0**state_bits / LARGEST_BIAS
    head = _scaled(network.head.astype(np.float64), least=least)
    score_scale = head.scale * 2.0**-state_bits
    return IntegerNetwork(
        w=_matrix(network.w, x, input_bits, "W x"),
        u=_matrix(network.u, states, state_bits, "U h"),
        gate_bias=_bias(network.gate_bias),
        update_bias=_bias(network.update_bias),
        zeta=round(network.zeta * (1 << MIX_BITS)),
        nu=round(network.nu * (1 << MIX_BITS)),
        gate=network.gate,
        update=network.update,
        head=head.weights,
        head_bias=np.rint(head_bias / score_scale).astype(np.int64),
        score_scale=score_scale,
        input_bits=input_bits,
        state_bits=state_bits,
        normalisation=normalisation,
    )


def _matrix(matrix: Matrix, inputs: Doubles, bits: int, what: str) -> IntegerMatrix:
    up = matrix.up.astype(np.float64)
    if matrix.down is None:
        return IntegerMatrix(_product(_scaled(up), bits, SUM_BITS, SUM_LIMIT))
    up, down = _balanced(up, matrix.down.astype(np.float64))
    inner_bits = fraction_bits(float(np.abs(inputs @ down.T).max()), f"{what}, between its factors,")
    return IntegerMatrix(
        _product(_scaled(up), inner_bits, SUM_BITS, SUM_LIMIT), _product(_scaled(down), bits, inner_bits, LIMIT16)
    )


def _balanced(up: Doubles, down: Doubles) -> tuple[Doubles, Doubles]:
    """The same product with each direction equally large in both factors: one scale suits all directions better."""
    sizes = np.abs(up).max(0), np.abs(down).max(1)
    alive = (sizes[0] > 0) & (sizes[1] > 0)
    root = np.sqrt(np.where(alive, sizes[1], 1.0) / np.where(alive, sizes[0], 1.0))
    return up * root * alive, down / root[:, None] * alive[:, None]


def _scaled(weights: Doubles, *, least: float = 0.0) -> _Scaled:
    rows = np.abs(weights).sum(1).max()
    scale = max(
        float(np.abs(weights).max()) / LARGEST_WEIGHT, float(rows) / (LARGEST_ROW - weights.shape[1] / 2), least
    )
    scale = scale or 1.0
    return _Scaled(np.rint(weights / scale).astype(np.int64), scale)


def _product(matrix: _Scaled, bits: int, out_bits: int, limit: int) -> Product:
    return Product(matrix.weights, *multiplier(matrix.scale * 2.0 ** (out_bits - bits)), limit)


def _bias(bias: NDArray[np.float32]) -> Integers:
    return clamped(np.rint(bias.astype(np.float64) * (1 << SUM_BITS)).astype(np.int64), SUM_LIMIT)
