"""Arithmetic of the integer program in NumPy: every function here has a twin in C that gives the same numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from softprune.ops.recurrence import Curve

Integers = NDArray[np.int64]

# Sums before the curves, what the curves give, and zeta and nu: bits behind the binary point.
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


def rounded(value: Integers, bits: int) -> Integers:
    """Value over 2 ** bits, halves away from zero.

    >>> rounded(np.array([5, -5, 6, -6]), 2).tolist()
    [1, -1, 2, -2]
    """
    half = 1 << (bits - 1) if bits else 0
    size = (np.abs(value) + half) >> bits
    return np.where(value < 0, -size, size)


def clamped(value: Integers, limit: int) -> Integers:
    """Value within -limit to limit."""
    return np.clip(value, -limit, limit)


def multiplier(scale: float) -> tuple[int, int]:
    """A factor as a whole number of 31 bits and a shift: scale is about number / 2 ** shift.

    Raises:
        ValueError: if it is too large for that.

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

    Raises:
        ValueError: if no such number of bits is there.

    >>> fraction_bits(3.0, "the state")
    12
    """
    if not 2 * largest <= LIMIT16:
        raise ValueError(f"{what} reaches {largest:.4g} on the example, which is too large for integers of 16 bits")
    if largest == 0:
        return 15
    return min(15, math.floor(math.log2(LIMIT16 / (2 * largest))))


def quantised_inputs(values: NDArray[np.float32], bits: int) -> Integers:
    """Floats as whole numbers of 16 bits, halves away from zero; NaN becomes zero."""
    # Halves are counted in integers, so that no compiler can fuse a product and a sum and round otherwise.
    with np.errstate(invalid="ignore", over="ignore"):
        doubled = np.nan_to_num(values * np.float32(2 << bits), nan=0.0)
        halves = np.clip(doubled, -2 * LIMIT16, 2 * LIMIT16).astype(np.int64)
    size = (np.abs(halves) + 1) >> 1
    return np.where(halves < 0, -size, size)


def curve(name: Curve, x: Integers) -> Integers:
    """A non-linearity of sums with SUM_BITS; the result has CURVE_BITS, or SUM_BITS for relu."""
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
