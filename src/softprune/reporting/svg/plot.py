"""One chart as one SVG picture."""

from __future__ import annotations

import math
from html import escape

from softprune.reporting.chart import Chart, Series
from softprune.reporting.svg.frame import Frame, draw, framed
from softprune.reporting.svg.look import Look, looks
from softprune.reporting.svg.paths import Point, bars, line, markers, pixel, whiskers
from softprune.reporting.svg.scale import short

# A line of more points than this shows no markers: they would hide it.
_MARKED = 40
# Bars narrower than this are drawn as a line.
_NARROWEST = 1.5


def plot(chart: Chart, *, width: int = 560, height: int = 340, key: str = "") -> str:
    """A chart as an SVG element.

    Args:
        chart: what to draw.
        width: of the picture, in pixels of its own; pages scale it.
        height: likewise.
        key: makes the ids of several pictures of one chart on a page different.

    Example:
        >>> from softprune.reporting.chart import Axis, Series
        >>> chart = Chart("loss", "Loss", "", Axis("epoch"), Axis("loss"), (Series("a", (0, 1), (2.0, 1.0)),))
        >>> plot(chart).startswith('<svg class="plot"')
        True
    """
    frame = framed(chart, width, height)
    ident = escape(f"{chart.name}{key}")
    ends = (frame.x.low, frame.x.high, frame.y.low, frame.y.high)
    box = (frame.x.start, frame.x.end, frame.y.start, frame.y.end)
    parts = [
        f'<svg class="plot" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{ident}-t {ident}-d"'
        f' data-box="{" ".join(map(pixel, box))}" data-ends="{" ".join(map(repr, map(float, ends)))}">',
        f'<title id="{ident}-t">{escape(chart.title)}</title><desc id="{ident}-d">{escape(description(chart))}</desc>',
        *draw(frame, chart),
        # Nothing is drawn outside the axes: series are cut there, markers on the edge are whole.
        f'<clipPath id="{ident}-c"><rect x="{pixel(box[0] - 5)}" y="{pixel(box[3] - 6)}"'
        f' width="{pixel(box[1] - box[0] + 10)}" height="{pixel(box[2] - box[3] + 12)}"/></clipPath>',
        f'<g clip-path="url(#{ident}-c)">',
    ]
    drawn = [(one.faint, _series(frame, chart, at, look)) for at, (one, look) in enumerate(_looked(chart))]
    parts += [text for faint, text in drawn if faint] + [text for faint, text in drawn if not faint]
    parts.append('</g><circle class="cursor" r="6" cx="-99" cy="-99"/>')
    if not any(math.isfinite(y) for s in chart.series for y in s.y):
        parts.append(f'<text class="empty mid" x="{width // 2}" y="{height // 2}">no values yet</text>')
    return "".join(parts) + "</svg>"


def description(chart: Chart) -> str:
    """What a reader who cannot see the picture is told: the axes, and the range of every series."""
    words = [chart.caption, f"{chart.y.label} against {chart.x.label}."]
    shown = chart.series[:12]
    for series in shown:
        values = [y for y in series.y if math.isfinite(y)]
        if values:
            low, high, last = (short(v, percent=chart.y.percent) for v in (min(values), max(values), values[-1]))
            words.append(f"{series.name}: {low} to {high}, last {last}.")
        else:
            words.append(f"{series.name}: no values.")
    if len(chart.series) > len(shown):
        words.append(f"And {len(chart.series) - len(shown)} more series.")
    return " ".join(word for word in words if word)


def _looked(chart: Chart) -> list[tuple[Series, Look]]:
    return list(zip(chart.series, looks(chart.series), strict=True))


def offsets(chart: Chart) -> dict[int, float]:
    """How far the bars of each series stand beside their place, so that all of them are seen."""
    together = [at for at, series in enumerate(chart.series) if series.mark == "bars"]
    return {at: (turn - (len(together) - 1) / 2) * 0.8 / len(together) for turn, at in enumerate(together)}


def _series(frame: Frame, chart: Chart, at: int, look: Look) -> str:
    series = chart.series[at]
    beside = offsets(chart)
    points: list[Point] = [
        (frame.x(x + beside.get(at, 0.0)), frame.y(y)) for x, y in zip(series.x, series.y, strict=True)
    ]
    place = abs(frame.x(frame.x.low + 1) - frame.x(frame.x.low)) if not frame.x.log else 8.0
    room = 0.8 * place / max(len(beside), 1)
    parts = [f'<g class="series {look.classes}" data-series="{at}">']
    if series.mark == "bars" and room >= _NARROWEST:
        base = frame.y(max(frame.y.low, 0.0)) if not frame.y.log else frame.y.start
        parts.append(f'<path class="bars" d="{bars(points, base=base, width=max(room - 1, 1))}"/>')
    elif series.mark != "points":
        parts.append(f'<path class="line" d="{line(points, step=series.mark == "step")}"/>')
    if marked(chart, series):
        parts.append(f'<path class="marks" d="{markers(points, look.marker)}"/>')
    if series.spread:
        ends = [
            (px, frame.y(y - spread), frame.y(y + spread))
            for (px, _), y, spread in zip(points, series.y, series.spread, strict=False)
        ]
        parts.append(f'<path class="spread" d="{whiskers(ends)}"/>')
    return "".join(parts) + "</g>"


def marked(chart: Chart, series: Series) -> bool:
    """Whether its values have markers: points always, lines where there is room for them."""
    crowded = sum(len(s.x) for s in chart.series if s.mark == "line") > 20 * _MARKED
    sparse = len(series.x) <= _MARKED and not crowded and not series.faint
    return series.mark == "points" or (series.mark == "line" and sparse)
