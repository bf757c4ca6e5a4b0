"""A classifier in integers: int8 weights, int16 activations, int32 sums; and the same program in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.export.c.fixed_point import (
    LIMIT16,
    MIX_BITS,
    SUM_LIMIT,
    Integers,
    clamped,
    curve,
    curve_bits,
    quantised_inputs,
    rounded,
)
from softprune.deploy.export.c.normalisation import Normalisation
from softprune.ops.recurrence import Curve


@dataclass(frozen=True)
class Product:
    """A matrix of int8 and what makes its sums numbers of another scale.

    Attributes:
        weights: [out, in], -127 to 127.
        multiplier: of 31 bits.
        shift: right, after the multiplication.
        limit: the largest result.
    """

    weights: Integers
    multiplier: int
    shift: int
    limit: int

    def __call__(self, x: Integers) -> Integers:
        """Rows [n, in] to [n, out]."""
        return clamped(rounded(x @ self.weights.T * self.multiplier, self.shift), self.limit)


@dataclass(frozen=True)
class IntegerMatrix:
    """What `Matrix` is, in integers.

    Attributes:
        up: gives sums with SUM_BITS.
        down: gives int16; None if the matrix is whole.
    """

    up: Product
    down: Product | None = None

    def __call__(self, x: Integers) -> Integers:
        """Rows [n, in] to [n, out]."""
        return self.up(x if self.down is None else self.down(x))


@dataclass(frozen=True)
class IntegerNetwork:
    """A classifier in integers.

    Attributes:
        w: from the inputs to the state.
        u: from the state to the state.
        gate_bias: with SUM_BITS.
        update_bias: likewise.
        zeta: with MIX_BITS.
        nu: likewise.
        gate: non-linearity of the gate.
        update: non-linearity of the update.
        head: int8, [classes, hidden].
        head_bias: in units of the scores.
        score_scale: what one unit of a score is.
        input_bits: bits behind the binary point of the inputs.
        state_bits: likewise of the state.
        normalisation: of the inputs, in float32.
    """

    w: IntegerMatrix
    u: IntegerMatrix
    gate_bias: Integers
    update_bias: Integers
    zeta: int
    nu: int
    gate: Curve
    update: Curve
    head: Integers
    head_bias: Integers
    score_scale: float
    input_bits: int
    state_bits: int
    normalisation: Normalisation | None

    def quantise(self, windows: NDArray[np.float32]) -> Integers:
        """Windows [n, steps, features] as the program is given them, to int16."""
        values = windows if self.normalisation is None else self.normalisation(windows)
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

        >>> import torch
        >>> from softprune.nn import FastGRNNClassifier
        >>> from softprune.deploy.export.c.network import plain_classifier
        >>> from softprune.deploy.export.c.quantisation import quantised
        >>> network = quantised(plain_classifier(FastGRNNClassifier(2, 3, classes=4)), torch.ones(1, 5, 2))
        >>> network.scores(np.ones((1, 5, 2), np.float32)).shape
        (1, 4)
        """
        inputs = self.quantise(windows)
        h: Integers = np.zeros((len(windows), len(self.gate_bias)), np.int64)
        for step in range(inputs.shape[1]):
            h = self.step(inputs[:, step], h)
        return (h @ self.head.T + self.head_bias).astype(np.int32)
