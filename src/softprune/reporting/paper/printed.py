"""A number as it is printed: its value, and how exact its digits are."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
_NUMBER = re.compile(r"~?(-?\d+)(?:\.(\d+))?([KMG]?)")


@dataclass(frozen=True)
class Printed:
    """A printed number such as "4.47M", "~600M" or "95.03".

    Args:
        text: as printed.

    Example:
        >>> Printed("4.47M").fits(4.4712e6), Printed("4.47M").like(4.7759e6)
        (True, '4.776M')
    """

    text: str

    @property
    def value(self) -> float:
        """The number; NaN for a dash."""
        if self.text in ("", "-"):
            return math.nan
        whole, decimals, unit = self._parts()
        return float(f"{whole}.{decimals or 0}") * _UNITS[unit]

    @property
    def step(self) -> float:
        """What one unit of the last printed digit is worth."""
        _, decimals, unit = self._parts()
        return _UNITS[unit] / 10 ** len(decimals)

    def fits(self, value: float, *, slack: float = 0.0) -> bool:
        """Whether ``value``, known to within ``slack``, rounds to what is printed."""
        # A value on the edge, such as 0.535 printed as 0.54, may lie below it in binary by one bit.
        edge = 1e-9 * self.step
        return abs(value - self.value) <= self.step / 2 + slack + edge

    def cut(self, value: float) -> bool:
        """Whether ``value`` with its further digits cut off is what is printed."""
        return 0 <= value - self.value < self.step

    def like(self, value: float) -> str:
        """``value`` in the printed unit, with one digit more."""
        _, decimals, unit = self._parts()
        return f"{value / _UNITS[unit]:.{len(decimals) + 1}f}{unit}"

    def _parts(self) -> tuple[str, str, str]:
        found = _NUMBER.fullmatch(self.text)
        if found is None:
            raise ValueError(f"{self.text!r} is no printed number; one looks like 4.47M, ~600M or 95.03")
        return found[1], found[2] or "", found[3]
