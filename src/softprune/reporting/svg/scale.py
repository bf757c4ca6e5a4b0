"""Scales: where a value is drawn, and which values are written along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from softprune.reporting.chart import Axis

NAN = float("nan")
# Free room between the outermost value and the end of an axis that fits its values, as a share of its length.
_PADDING = 0.04
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels.

    Args:
        low: the value at ``start``.
        high: the value at ``end``.
        log: logarithmic; both ends are positive then.
        start: pixel.
        end: pixel; before ``start`` on an axis that goes up.
    """

    low: float
    high: float
    log: bool
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value; NaN where it cannot be drawn."""
        if not math.isfinite(value) or (self.log and value <= 0):
            return NAN
        share = (self._bent(value) - self._bent(self.low)) / (self._bent(self.high) - self._bent(self.low))
        # Far outside a given range: no number that a renderer might choke on.
        return self.start + min(max(share, -10.0), 10.0) * (self.end - self.start)

    def _bent(self, value: float) -> float:
        # Halved: the difference of two huge numbers may not be a number.
        return math.log10(value) if self.log else value / 2


def fitted(axis: Axis, values: Iterable[float], *, zero: bool = False) -> tuple[float, float]:
    """The range of an axis: as given, and else around the values.

    Args:
        axis: with ends that are given or not.
        values: all that is to be seen.
        zero: whether 0 must be seen, as under bars.
    """
    log = axis.scale == "log"
    if axis.categories:
        return -0.5, len(axis.categories) - 0.5
    seen = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    low, high = (min(seen), max(seen)) if seen else ((1.0, 10.0) if log else (0.0, 1.0))
    if zero and not log:
        low, high = min(low, 0.0), max(high, 0.0)
    # No axis begins where numbers lose their digits.
    wide_low, wide_high = (max(low, 1e-300) / 1.15, max(high, 1e-300) * 1.15) if log else _padded(low, high)
    if not log and low >= 0 > wide_low:
        wide_low = 0.0
    if axis.percent and not log and high <= 1 < wide_high:
        wide_high = 1.0
    bottom = wide_low if axis.low is None or (log and axis.low <= 0) else axis.low
    top = wide_high if axis.high is None or (log and axis.high <= 0) else axis.high
    if bottom < top:
        return bottom, top
    return (top / 2, bottom * 2) if log else _padded(top, bottom)


def _padded(low: float, high: float) -> tuple[float, float]:
    room = (high / 2 - low / 2) * 2 * _PADDING
    if low + room == low or not math.isfinite(room):
        room = abs(low) * 0.1 or 0.5
    return max(low - room, -1e300), min(high + room, 1e300)


def ticks(axis: Axis, scale: Scale, *, count: int) -> list[tuple[float, str]]:
    """Round values inside the range, about ``count`` of them, with their labels."""
    if scale.log:
        values = _decades(scale.low, scale.high, count=count)
        return [(value, short(value, percent=axis.percent)) for value in values]
    step = _step((scale.high - scale.low) / max(count, 1))
    if not math.isfinite(step) or step <= 0:
        return []
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    if last - first > 4 * count:
        return []
    return [(k * step, _label(k * step, step, percent=axis.percent)) for k in range(first, last + 1)]


def whole_ticks(scale: Scale, *, count: int) -> list[tuple[float, str]]:
    """As :func:`ticks`, of whole numbers alone: epochs and steps have no halves."""
    step = max(1.0, _step((scale.high - scale.low) / max(count, 1)))
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return [(k * step, _label(k * step, step, percent=False)) for k in range(first, min(last, first + 100) + 1)]


def _step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5, 10 times a power of ten that is not below ``rough``."""
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next((m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9)), 10 * power)


def _decades(low: float, high: float, *, count: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / max(count, 1)))
    tens = [10.0**k for k in range(first, last + 1, every)]
    if len(tens) >= 3:
        return tens
    finer = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5)]
    return [value for value in finer if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def _label(value: float, step: float, *, percent: bool) -> str:
    if percent:
        places = max(0, -math.floor(math.log10(step * 100) + 1e-9))
        if round(step * 100, places) != round(step * 100, places + 1):
            places += 1  # steps of 2.5
        return f"{value * 100 + 0.0:.{min(places, 6)}f} %"
    return short(round(value / step * 4) * step / 4)


def short(value: float, *, percent: bool = False) -> str:
    """A number as briefly as an axis needs it.

    Example:
        >>> short(1_500_000), short(0.25), short(2e-7), short(0.001, percent=True)
        ('1.5 M', '0.25', '2e-07', '0.1 %')
    """
    if percent:
        return f"{value * 100:.6g} %"
    for size, unit in _UNITS:
        if size <= abs(value) < 1e15 and (size > 1e3 or abs(value) >= 1e4):
            return f"{value / size:.6g} {unit}"
    return f"{value:.6g}"


def spread_out(number: int, *, room: int) -> Sequence[int]:
    """Which of so many names to write where there is room for some: every second, third, ..., the first always."""
    return range(0, number, max(1, math.ceil(number / max(room, 1))))
