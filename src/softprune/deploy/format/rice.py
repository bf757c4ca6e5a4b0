"""Rice codes of the gaps between nonzeros: for zeros that fall at random, within a few percent of the entropy.

The code of a gap g is g >> k ones and a zero, and the k lower bits; k fits the mean gap.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Gaps = NDArray[np.int64]
MOST_BITS = 32  # of k


def best_bits(gaps: Gaps) -> int:
    """The k with which the codes of gaps are shortest."""
    if not len(gaps):
        return 0
    guess = int(np.log2(max(float(gaps.mean()), 1.0)))
    near = range(max(0, guess - 2), min(guess + 2, MOST_BITS) + 1)
    return min(near, key=lambda k: int((gaps >> k).sum()) + len(gaps) * (k + 1))


def rice_encode(gaps: Gaps, bits: int) -> Bytes:
    """The codes with k = ``bits`` of gaps from 0 on: first the ones and zeros of all, then the lower bits of all."""
    ends = np.cumsum((gaps >> bits) + 1) - 1
    ones = np.ones(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    ones[ends] = 0
    rest = np.empty((len(gaps), bits), np.uint8)
    for bit in range(bits):
        rest[:, bit] = (gaps >> bit) & 1
    return np.concatenate([np.packbits(part, axis=None, bitorder="little") for part in (ones, rest)])


def rice_decode(code: Bytes, count: int, bits: int) -> Gaps:
    """The gaps that `rice_encode` was given; a ValueError if the code does not hold exactly ``count`` of them."""
    tail = -(-count * bits // 8)
    if not 0 <= bits <= MOST_BITS or count < 0 or tail > len(code):
        raise ValueError(f"{len(code)} bytes cannot hold {count} gaps of {bits} bits and more")
    head = np.unpackbits(code[: len(code) - tail], bitorder="little")
    ends = np.flatnonzero(head == 0)[:count]
    used = int(ends[-1]) + 1 if len(ends) else 0
    # What follows the last end fills its byte, with zeros.
    if len(ends) < count or -(-used // 8) != len(code) - tail or head[used:].any():
        raise ValueError(f"the code does not hold {count} gaps")
    if (used - count) << bits >= 1 << 62:
        raise ValueError(f"the code holds gaps of {used - count} times 2^{bits} in all, too many for any tensor")
    gaps = (np.diff(ends, prepend=-1) - 1) << bits
    rest = np.unpackbits(code[len(code) - tail :], bitorder="little")
    if rest[count * bits :].any():
        raise ValueError(f"the code holds more than {count} gaps")
    lower = rest[: count * bits].reshape(count, bits)
    for bit in range(bits):
        gaps += lower[:, bit].astype(np.int64) << bit
    return gaps
