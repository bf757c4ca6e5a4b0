"""Rice codes: gaps between nonzeros in about as many bits as they carry information.

A gap g is g >> k ones and a zero, and k bits of what is left; k fits the mean gap. For zeros that fall at random, gaps
are geometric, and the best k is within a few percent of the entropy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Gaps = NDArray[np.int64]
MOST_BITS = 32  # of k


def best_bits(gaps: Gaps) -> int:
    """The k that needs the fewest bits."""
    if not len(gaps):
        return 0
    guess = int(np.log2(max(float(gaps.mean()), 1.0)))
    near = range(max(0, guess - 2), min(guess + 2, MOST_BITS) + 1)
    return min(near, key=lambda k: int((gaps >> k).sum()) + len(gaps) * (k + 1))


def encode(gaps: Gaps, bits: int) -> Bytes:
    """The codes of all gaps: first the ones and zeros of all, then the bits that are left of all.

    Args:
        gaps: not negative.
        bits: the k of the code.
    """
    ends = np.cumsum((gaps >> bits) + 1) - 1
    ones = np.ones(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    ones[ends] = 0
    rest = (gaps[:, None] >> np.arange(bits)) & 1
    return np.concatenate([_packed(ones), _packed(rest.astype(np.uint8).reshape(-1))])


def decode(code: Bytes, count: int, bits: int) -> Gaps:
    """The gaps of a code.

    Args:
        code: what :func:`encode` gave.
        count: of gaps.
        bits: the k of the code.

    Raises:
        ValueError: if the code does not hold exactly so many gaps.
    """
    tail = -(-count * bits // 8)
    if not 0 <= bits <= MOST_BITS or count < 0 or tail > len(code):
        raise ValueError(f"{len(code)} bytes cannot hold {count} gaps of {bits} bits and more")
    head = np.unpackbits(code[: len(code) - tail], bitorder="little")
    ends = np.flatnonzero(head == 0)[:count]
    used = int(ends[-1]) + 1 if len(ends) else 0
    # What follows the last end fills its byte, with zeros.
    if len(ends) < count or -(-used // 8) != len(code) - tail or head[used:].any():
        raise ValueError(f"the code does not hold {count} gaps")
    quotients = np.diff(ends, prepend=-1) - 1
    rest = np.unpackbits(code[len(code) - tail :], bitorder="little")
    if rest[count * bits :].any():
        raise ValueError(f"the code holds more than {count} gaps")
    weights = np.left_shift(1, np.arange(bits, dtype=np.int64))
    lower: Any = rest[: count * bits].reshape(count, bits).astype(np.int64) @ weights
    return (quotients << bits) + lower


def _packed(bits: Bytes) -> Bytes:
    return np.packbits(bits, bitorder="little")
