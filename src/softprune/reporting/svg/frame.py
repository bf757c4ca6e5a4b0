"""The frame of a plot: room for labels, grid, ticks and axis titles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from softprune.reporting.chart import Axis, Chart
from softprune.reporting.svg.paths import pixel
from softprune.reporting.svg.scale import Scale, fitted, spread_out, ticks, whole_ticks

# Pixels of a character at the font size of the style sheet, 12; a little more than most are.
_CHARACTER = 6.4
_LONGEST = 22  # characters of a category
_SLANT = 0.72  # sine of the angle of slanted labels


@dataclass(frozen=True)
class Frame:
    """Where a chart is drawn.

    Args:
        width: of the whole picture.
        height: of the whole picture.
        x: the horizontal scale.
        y: the vertical scale.
        x_ticks: values and labels.
        y_ticks: values and labels.
        slanted: whether the labels below are.
    """

    width: int
    height: int
    x: Scale
    y: Scale
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    slanted: bool


def framed(chart: Chart, width: int, height: int) -> Frame:
    """Fit scales and labels of a chart into a picture of this size."""
    x_low, x_high = fitted(chart.x, (v for s in chart.series for v in s.x))
    bars = any(s.mark == "bars" for s in chart.series)
    y_low, y_high = fitted(chart.y, _reach(chart), zero=bars)
    y_probe = Scale(y_low, y_high, chart.y.scale == "log", height - 60, 14)
    y_ticks = ticks(chart.y, y_probe, count=max(3, height // 48))
    left = 33 + _CHARACTER * max((len(label) for _, label in y_ticks), default=1)
    x_probe = Scale(x_low, x_high, chart.x.scale == "log", left, width - 14)
    x_ticks, slanted = _below(chart.x, x_probe, chart)
    tallest = max((len(label) for _, label in x_ticks), default=0) * _CHARACTER * _SLANT
    bottom = 40 + (min(tallest + 8, height * 0.42) if slanted else 10)
    return Frame(
        width=width,
        height=height,
        x=x_probe,
        y=Scale(y_low, y_high, chart.y.scale == "log", height - bottom, 14),
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        slanted=slanted,
    )


def _reach(chart: Chart) -> list[float]:
    """All heights that are to be seen, ends of error bars included."""
    values = [v for s in chart.series for v in s.y]
    for series in chart.series:
        for y, spread in zip(series.y, series.spread, strict=False):
            values += [y - spread, y + spread]
    return values


def _below(axis: Axis, scale: Scale, chart: Chart) -> tuple[list[tuple[float, str]], bool]:
    length = scale.end - scale.start
    if not axis.categories:
        whole = axis.scale == "linear" and not axis.percent and _all_whole(chart)
        count = max(2, int(length / 90))
        return (whole_ticks(scale, count=count) if whole else ticks(axis, scale, count=count)), False
    names = short_names(axis.categories)
    if max(map(len, names)) * _CHARACTER + 8 <= length / len(names):
        return [(float(at), name) for at, name in enumerate(names)], False
    # As close as slanted lines of text can be; names of which some are left out anyway have more room.
    closest, loose = int(length / 15), int(length / 30)
    chosen = spread_out(len(names), room=closest if len(names) <= closest else loose)
    return [(float(at), names[at]) for at in chosen], True


def _all_whole(chart: Chart) -> bool:
    return all(float(v).is_integer() for s in chart.series for v in s.x if abs(v) < 1e15)


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
        parts += _tick_below(frame, pixel(frame.x(value)), label)
    parts.append(f'<path class="axis" d="M{left},{top}V{bottom}H{right}"/>')
    middle = pixel((frame.y.start + frame.y.end) / 2)
    parts.append(
        f'<text class="title mid" transform="translate(13,{middle}) rotate(-90)">{escape(chart.y.label)}</text>'
    )
    centre = pixel((frame.x.start + frame.x.end) / 2)
    parts.append(f'<text class="title mid" x="{centre}" y="{frame.height - 6}">{escape(chart.x.label)}</text>')
    parts.append("</g>")
    return parts


def _tick_below(frame: Frame, at: str, label: str) -> list[str]:
    bottom = frame.y.start
    mark = f'<path class="axis" d="M{at},{pixel(bottom)}v4"/>'
    if frame.slanted:
        where = f'transform="translate({at},{pixel(bottom + 10)}) rotate(-46)"'
        return [mark, f'<text class="tick end" dx="2" dy="5" {where}>{escape(label)}</text>']
    return [mark, f'<text class="tick mid" x="{at}" y="{pixel(bottom + 18)}">{escape(label)}</text>']
