"""Scales, ticks and the frame of a plot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

from softprune.reporting.charts import Axis, Chart

# Free room between the outermost value and the end of an axis that fits its values, as a share of its length.
_PADDING = 0.04
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# Pixels of a character at the font size of the style sheet, 12; a little more than most are.
_CHARACTER = 6.4
_LONGEST = 22  # characters of a category
_SLANT = 0.72  # sine of the angle of slanted labels


@dataclass(frozen=True)
class Scale:
    """Maps the values from ``low`` to ``high`` to the pixels from ``start`` to ``end``."""

    low: float
    high: float
    log: bool  # both ends are positive then
    start: float
    end: float  # smaller than start on an axis that goes up

    def __call__(self, value: float) -> float:
        """The pixel of a value; NaN where it cannot be drawn."""
        if not math.isfinite(value) or (self.log and value <= 0):
            return math.nan
        share = (self._bent(value) - self._bent(self.low)) / (self._bent(self.high) - self._bent(self.low))
        # Values far outside a given range become pixels that every renderer can take.
        return self.start + min(max(share, -10.0), 10.0) * (self.end - self.start)

    def _bent(self, value: float) -> float:
        # Halved: the difference of two huge numbers may not be a number.
        return math.log10(value) if self.log else value / 2


def fitted(axis: Axis, values: Iterable[float], *, zero: bool = False) -> tuple[float, float]:
    """The range of an axis: as given, else around the values, and 0 where that must be seen, as under bars."""
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


def ticks(axis: Axis, scale: Scale, *, count: int, whole: bool = False) -> list[tuple[float, str]]:
    """Round values inside the range, about ``count`` of them, with their labels; ``whole``: epochs have no halves."""
    if scale.log:
        values = _decades(scale.low, scale.high, count=count)
        return [(value, short(value, percent=axis.percent)) for value in values]
    step = max(1.0 if whole else 0.0, _step((scale.high - scale.low) / max(count, 1)))
    if not math.isfinite(step) or step <= 0:
        return []
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    if last - first > 4 * count:
        return []
    return [(k * step, _label(k * step, step, percent=axis.percent)) for k in range(first, last + 1)]


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


@dataclass(frozen=True)
class Frame:
    """The place and scales of a chart in a picture."""

    width: int  # of the whole picture
    height: int
    x: Scale
    y: Scale
    x_ticks: Sequence[tuple[float, str]]  # values and labels
    y_ticks: Sequence[tuple[float, str]]
    slanted: bool  # whether the labels below are


def framed(chart: Chart, width: int, height: int) -> Frame:
    """Fit scales and labels of a chart into a picture of this size."""
    x_low, x_high = fitted(chart.x, (v for s in chart.series for v in s.x))
    heights = [v for s in chart.series for v in s.y]
    for s in chart.series:  # the ends of error bars are to be seen too
        heights += [end for y, spread in zip(s.y, s.spread, strict=False) for end in (y - spread, y + spread)]
    y_low, y_high = fitted(chart.y, heights, zero=any(s.mark == "bars" for s in chart.series))
    y = Scale(y_low, y_high, chart.y.scale == "log", height - 60, 14)
    y_ticks = ticks(chart.y, y, count=max(3, height // 48))
    left = 33 + _CHARACTER * max((len(label) for _, label in y_ticks), default=1)
    x = Scale(x_low, x_high, chart.x.scale == "log", left, width - 14)
    x_ticks, slanted = _below(x, chart)
    tallest = max((len(label) for _, label in x_ticks), default=0) * _CHARACTER * _SLANT
    bottom = 40 + (min(tallest + 8, height * 0.42) if slanted else 10)
    return Frame(width, height, x, replace(y, start=height - bottom), x_ticks, y_ticks, slanted)


def _below(scale: Scale, chart: Chart) -> tuple[list[tuple[float, str]], bool]:
    """Ticks and labels below a chart, and whether the labels are slanted."""
    axis, length = chart.x, scale.end - scale.start
    if not axis.categories:
        whole = not axis.percent and all(float(v).is_integer() for s in chart.series for v in s.x if abs(v) < 1e15)
        return ticks(axis, scale, count=max(2, int(length / 90)), whole=whole), False
    names = short_names(axis.categories)
    slanted = max(map(len, names)) * _CHARACTER + 8 > length / len(names)
    # As close as slanted lines of text can be; names of which some are left out anyway have more room.
    closest, loose = int(length / 15), int(length / 30)
    room = max(closest if len(names) <= closest else loose, 1)
    every = max(1, math.ceil(len(names) / room)) if slanted else 1
    return [(float(at), names[at]) for at in range(0, len(names), every)], slanted


def short_names(names: Sequence[str]) -> list[str]:
    """Names for the axis: without an ending that all share, and the end of those that are too long."""
    ending = ".weight" if all(name.endswith(".weight") and name != ".weight" for name in names) else ""
    bare = [name.removesuffix(ending) for name in names]
    return [name if len(name) <= _LONGEST else "\u2026" + name[1 - _LONGEST :] for name in bare]


def draw(frame: Frame, chart: Chart) -> list[str]:
    """Grid, ticks and titles as SVG elements."""
    left, right = pixel(frame.x.start), pixel(frame.x.end)
    top, bottom = pixel(frame.y.end), pixel(frame.y.start)
    parts = ['<g class="axes" aria-hidden="true">']
    for value, label in frame.y_ticks:
        at = pixel(frame.y(value))
        parts.append(f'<path class="rule" d="M{left},{at}H{right}"/>')
        parts.append(f'<text class="tick end" x="{pixel(frame.x.start - 7)}" y="{at}" dy="4">{escape(label)}</text>')
    for value, label in frame.x_ticks:
        at = pixel(frame.x(value))
        where = f'class="tick mid" x="{at}" y="{pixel(frame.y.start + 18)}"'
        if frame.slanted:
            turned = f'transform="translate({at},{pixel(frame.y.start + 10)}) rotate(-46)"'
            where = f'class="tick end" dx="2" dy="5" {turned}'
        parts.append(f'<path class="axis" d="M{at},{bottom}v4"/><text {where}>{escape(label)}</text>')
    parts.append(f'<path class="axis" d="M{left},{top}V{bottom}H{right}"/>')
    middle, centre = (pixel((scale.start + scale.end) / 2) for scale in (frame.y, frame.x))
    turned = f'transform="translate(13,{middle}) rotate(-90)"'
    parts.append(f'<text class="title mid" {turned}>{escape(chart.y.label)}</text>')
    parts.append(f'<text class="title mid" x="{centre}" y="{frame.height - 6}">{escape(chart.x.label)}</text></g>')
    return parts


def pixel(value: float) -> str:
    """A coordinate with one decimal, in as few characters as it takes."""
    text = f"{value:.1f}"
    return "0" if text == "-0.0" else text.removesuffix(".0")
