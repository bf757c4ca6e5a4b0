"""A classifier in integers (int8 weights, int16 activations, int32 sums), measured from floats: the C program in NumPy.

Every function of its arithmetic has a twin in C that gives the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softprune.deploy.export.c.float_network import Matrix, Normaliser, read_network
from softprune.nn import FastGRNNClassifier
from softprune.ops.recurrence import Curve

Integers = NDArray[np.int64]
Doubles = NDArray[np.float64]

# Bits behind the binary point: of sums before the curves, of what the curves give, of zeta and nu.
SUM_BITS = 12
CURVE_BITS = 14
MIX_BITS = 20
LIMIT16 = 32767
SUM_LIMIT = 1 << 28
RELU_LIMIT = 1 << 20

# The sigmoid from 0 to 12 in steps of 1/16, with 15 bits; at 12 it is one.
TABLE_BITS = 15
TABLE_STEP_BITS = 8
TABLE_END = 12 << SUM_BITS
_POINTS = np.arange((TABLE_END >> TABLE_STEP_BITS) + 1) / (1 << (SUM_BITS - TABLE_STEP_BITS))
TABLE: Integers = np.rint((1 << TABLE_BITS) / (1 + np.exp(-_POINTS))).astype(np.int64)

LARGEST_WEIGHT = 127
# A sum of products with int16 stays below 2 ** 30, which leaves as much again for a bias.
LARGEST_ROW = 32_000
LARGEST_BIAS = 1 << 30


def rounded(value: Integers, bits: int) -> Integers:
    """Value over 2 ** bits, halves away from zero.

    >>> rounded(np.array([5, -5, 6, -6]), 2).tolist()
    [1, -1, 2, -2]
    """
    half = 1 << (bits - 1) if bits else 0
    size = (np.abs(value) + half) >> bits
    return np.where(value < 0, -size, size)


def clamped(value: Integers, limit: int) -> Integers:
    return np.clip(value, -limit, limit)


def quantised_inputs(values: NDArray[np.float32], bits: int) -> Integers:
    """Floats as whole numbers of 16 bits, halves away from zero; NaN becomes zero."""
    # Halves are counted in integers, so that no compiler can fuse a product and a sum and round otherwise.
    with np.errstate(invalid="ignore", over="ignore"):
        doubled = np.nan_to_num(values * np.float32(2 << bits), nan=0.0)
        halves = np.clip(doubled, -2 * LIMIT16, 2 * LIMIT16).astype(np.int64)
    return rounded(halves, 1)


def curve(name: Curve, x: Integers) -> Integers:
    """A non-linearity of sums with SUM_BITS; the result has `curve_bits`."""
    one = 1 << CURVE_BITS
    if name == "sigmoid":
        return rounded(_sigmoid(x), TABLE_BITS - CURVE_BITS)
    if name == "tanh":  # 2 sigmoid(2 x) - 1
        return _sigmoid(2 * x) - one
    if name == "relu":
        return np.clip(x, 0, RELU_LIMIT)
    # The piecewise linear ones are exact.
    if name == "quant_tanh":
        return np.clip(4 * x, -one, one)
    if name == "quant_sigm":
        return np.clip(2 * x + one // 2, 0, one)
    return np.clip(x + one // 2, 0, one)


def curve_bits(name: Curve) -> int:
    """Bits behind the binary point of what `curve` gives."""
    return SUM_BITS if name == "relu" else CURVE_BITS


def _sigmoid(x: Integers) -> Integers:
    """With TABLE_BITS, from the table, with straight lines between its points."""
    size = np.minimum(np.abs(x), TABLE_END - 1)
    at, rest = size >> TABLE_STEP_BITS, size & ((1 << TABLE_STEP_BITS) - 1)
    step = (TABLE[at + 1] - TABLE[at]) * rest
    found = TABLE[at] + ((step + (1 << (TABLE_STEP_BITS - 1))) >> TABLE_STEP_BITS)
    return np.where(x < 0, (1 << TABLE_BITS) - found, found)


# The network.


@dataclass(frozen=True)
class Product:
    """A matrix of int8 and what makes its sums numbers of another scale."""

    weights: Integers  # [out, in], -127 to 127
    multiplier: int  # of 31 bits
    shift: int  # right, after the multiplication
    limit: int  # the largest result

    def __call__(self, x: Integers) -> Integers:
        """Rows [n, in] to [n, out]."""
        return clamped(rounded(x @ self.weights.T * self.multiplier, self.shift), self.limit)


@dataclass(frozen=True)
class IntegerMatrix:
    """What `Matrix` is, in integers: ``up`` gives sums with SUM_BITS, ``down`` int16."""

    up: Product
    down: Product | None = None

    def __call__(self, x: Integers) -> Integers:
        """Rows [n, in] to [n, out]."""
        return self.up(x if self.down is None else self.down(x))


@dataclass(frozen=True)
class IntegerNetwork:
    """A classifier in integers."""

    w: IntegerMatrix  # from the inputs to the state
    u: IntegerMatrix  # from the state to the state
    gate_bias: Integers  # with SUM_BITS
    update_bias: Integers  # with SUM_BITS
    zeta: int  # with MIX_BITS
    nu: int  # with MIX_BITS
    gate: Curve
    update: Curve
    head: Integers  # int8, [classes, hidden]
    head_bias: Integers  # in units of the scores
    score_scale: float  # what one unit of a score is
    input_bits: int  # behind the binary point of the inputs
    state_bits: int  # behind the binary point of the state
    normaliser: Normaliser | None  # of the inputs, in float32

    def quantise(self, windows: NDArray[np.float32]) -> Integers:
        """Windows [n, steps, features] as the program is given them, to int16."""
        values = windows if self.normaliser is None else self.normaliser(windows)
        return quantised_inputs(values, self.input_bits)

    def step(self, x: Integers, h: Integers) -> Integers:
        """The state after inputs [n, features], from the state before, [n, hidden]."""
        both = self.w(x) + self.u(h)
        z = curve(self.gate, clamped(both + self.gate_bias, SUM_LIMIT))
        c = curve(self.update, clamped(both + self.update_bias, SUM_LIMIT))
        kept, new, down = self.mixing
        mix = rounded(self.zeta * ((1 << curve_bits(self.gate)) - z), curve_bits(self.gate)) + self.nu
        return clamped(rounded(z * h * (1 << kept) + mix * c * (1 << new), down), LIMIT16)

    @property
    def mixing(self) -> tuple[int, int, int]:
        """Shifts left of z h and of the new part to the same bits, and right to those of the state."""
        kept = curve_bits(self.gate) + self.state_bits
        new = MIX_BITS + curve_bits(self.update)
        most = max(kept, new)
        return most - kept, most - new, most - self.state_bits

    def scores(self, windows: NDArray[np.float32]) -> NDArray[np.int32]:
        """Scores [n, classes] of windows [n, steps, features], bit for bit those of the C program.

        >>> from softprune.deploy.export.c.float_network import plain_classifier
        >>> network = quantised(plain_classifier(FastGRNNClassifier(2, 3, classes=4)), torch.ones(1, 5, 2))
        >>> network.scores(np.ones((1, 5, 2), np.float32)).shape
        (1, 4)
        """
        inputs = self.quantise(windows)
        h: Integers = np.zeros((len(windows), len(self.gate_bias)), np.int64)
        for step in range(inputs.shape[1]):
            h = self.step(inputs[:, step], h)
        return (h @ self.head.T + self.head_bias).astype(np.int32)


# From a classifier in float32 to one in integers, with ranges measured on example windows.


def quantised(model: FastGRNNClassifier, example: Tensor, *, normaliser: Normaliser | None = None) -> IntegerNetwork:
    """The classifier of `plain_classifier` in integers; a ValueError if a value is too large for 16 bits.

    The example is windows [n, steps, features] as the model takes them. Each kind of activation gets 16 bits for twice
    its largest value in them; what is larger than that later is cut there. The integer program applies the normaliser.
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
    head, scale = _scaled(network.head.astype(np.float64), least=least)
    score_scale = scale * 2.0**-state_bits
    return IntegerNetwork(
        w=_matrix(network.w, x, input_bits, "W x"),
        u=_matrix(network.u, states, state_bits, "U h"),
        gate_bias=_bias(network.gate_bias),
        update_bias=_bias(network.update_bias),
        zeta=round(network.zeta * (1 << MIX_BITS)),
        nu=round(network.nu * (1 << MIX_BITS)),
        gate=network.gate,
        update=network.update,
        head=head,
        head_bias=np.rint(head_bias / score_scale).astype(np.int64),
        score_scale=score_scale,
        input_bits=input_bits,
        state_bits=state_bits,
        normaliser=normaliser,
    )


def multiplier(scale: float) -> tuple[int, int]:
    """A factor as a whole number of 31 bits and a shift: scale is about number / 2 ** shift.

    >>> multiplier(0.75)
    (1610612736, 31)
    """
    if scale == 0:
        return 0, 0
    fraction, exponent = math.frexp(scale)
    number, shift = round(fraction * (1 << 31)), 31 - exponent
    if number == 1 << 31:
        number, shift = number >> 1, shift - 1
    if shift < 0:
        raise ValueError(f"weights or inputs are too large for integers of 16 bits (a factor of {scale:.3g})")
    if shift > 62:
        number, shift = number >> min(shift - 62, 32), 62
    return number, shift


def fraction_bits(largest: float, what: str) -> int:
    """Bits behind the binary point, so that twice the largest value fits into 16 bits.

    >>> fraction_bits(3.0, "the state")
    12
    """
    if not 2 * largest <= LIMIT16:
        raise ValueError(f"{what} reaches {largest:.4g} on the example, which is too large for integers of 16 bits")
    if largest == 0:
        return 15
    return min(15, math.floor(math.log2(LIMIT16 / (2 * largest))))


def _matrix(matrix: Matrix, inputs: Doubles, bits: int, what: str) -> IntegerMatrix:
    up = matrix.up.astype(np.float64)
    if matrix.down is None:
        return IntegerMatrix(_product(up, bits, SUM_BITS, SUM_LIMIT))
    up, down = _balanced(up, matrix.down.astype(np.float64))
    inner_bits = fraction_bits(float(np.abs(inputs @ down.T).max()), f"{what}, between its factors,")
    return IntegerMatrix(_product(up, inner_bits, SUM_BITS, SUM_LIMIT), _product(down, bits, inner_bits, LIMIT16))


def _balanced(up: Doubles, down: Doubles) -> tuple[Doubles, Doubles]:
    """The same product with each direction equally large in both factors: one scale suits all directions better."""
    sizes = np.abs(up).max(0), np.abs(down).max(1)
    alive = (sizes[0] > 0) & (sizes[1] > 0)
    root = np.sqrt(np.where(alive, sizes[1], 1.0) / np.where(alive, sizes[0], 1.0))
    return up * root * alive, down / root[:, None] * alive[:, None]


def _scaled(weights: Doubles, *, least: float = 0.0) -> tuple[Integers, float]:
    """Whole numbers, and what one unit of them stands for."""
    row = float(np.abs(weights).sum(1).max()) / (LARGEST_ROW - weights.shape[1] / 2)
    scale = max(float(np.abs(weights).max()) / LARGEST_WEIGHT, row, least) or 1.0
    return np.rint(weights / scale).astype(np.int64), scale


def _product(matrix: Doubles, bits: int, out_bits: int, limit: int) -> Product:
    weights, scale = _scaled(matrix)
    return Product(weights, *multiplier(scale * 2.0 ** (out_bits - bits)), limit)


def _bias(bias: NDArray[np.float32]) -> Integers:
    return clamped(np.rint(bias.astype(np.float64) * (1 << SUM_BITS)).astype(np.int64), SUM_LIMIT)
