"""Roofline: how fast this machine multiplies and adds when one operand comes from a cache."""

from __future__ import annotations

from dataclasses import dataclass

from softprune.deploy.runtime.library import Library

# Bytes that fit into the first and the second level of common processors, with room for everything else.
LEVELS = {"l1": 16 << 10, "l2": 256 << 10}
PASS_BYTES = 16 << 20


@dataclass(frozen=True)
class Roofline:
    """Billions of floating point operations per second of one thread: a nonzero on one vector is one such load."""

    l1: float
    l2: float


def measure_roofline(library: Library, *, repeats: int = 9) -> Roofline:
    """The best of several measurements; a multiply-add counts as two operations."""
    rates = {}
    for name, size in LEVELS.items():
        data = library.zeros(size // 4)
        passes = PASS_BYTES // size
        seconds = min(library.rate(data.ctypes.data, size, passes) for _ in range(repeats))
        rates[name] = 2 * (size // 4) * passes / seconds / 1e9
    return Roofline(**rates)
