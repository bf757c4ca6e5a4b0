"""One chart as one SVG picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from softprune.reporting.charts import Chart, Series
from softprune.reporting.svg.axes import Frame, draw, framed, pixel, short

COLOURS = 7  # classes c0 ... c6 of the style sheet
RAMP = 16  # classes r0 ... r15: a sequence of colours, for more groups than there are colours
DASHES = 4  # classes d0 ... d3
# One marker each, as a path around (0, 0).
MARKERS = (
    "m-3.2,0a3.2,3.2 0 1 0 6.4,0a3.2,3.2 0 1 0 -6.4,0z",  # circle
    "m-2.9,-2.9h5.8v5.8h-5.8z",  # square
    "m0,-3.8l3.6,6.4h-7.2z",  # triangle
    "m0,-4.1l4.1,4.1l-4.1,4.1l-4.1,-4.1z",  # diamond
    "m0,3.8l3.6,-6.4h-7.2z",  # triangle, point down
    "m-1.3,-3.9h2.6v2.6h2.6v2.6h-2.6v2.6h-2.6v-2.6h-2.6v-2.6h2.6z",  # plus
    "m0,-4.2l3.6,2.1v4.2l-3.6,2.1l-3.6,-2.1v-4.2z",  # hexagon
)
_MARKED = 40  # a line of more points shows no markers: they would hide it
_NARROWEST = 1.5  # pixels; narrower bars are drawn as a line


@dataclass(frozen=True)
class SeriesStyle:
    classes: str  # of the style sheet
    marker: int  # an index into MARKERS


def styled(chart: Chart) -> list[tuple[Series, SeriesStyle]]:
    """Every series of a chart with its style; those of one group share the colour."""
    groups = {g: i for i, g in enumerate(dict.fromkeys(s.group or s.name for s in chart.series if not s.faint))}
    met: dict[str, int] = {}
    found = []
    for one in chart.series:
        group = one.group or one.name
        if one.faint:
            colour = _colour(groups[group], len(groups)) if group in groups else "grey"
            found.append((one, SeriesStyle(f"{colour} d1 faint", 0)))
            continue
        turn = met[group] = met.get(group, -1) + 1
        index = groups[group]
        # Many lines are solid: too many patterns of dashes cannot be told apart.
        dash = 0 if len(groups) > COLOURS else (index + turn) % DASHES
        hollow = " hollow" if turn % 2 else ""
        style = SeriesStyle(f"{_colour(index, len(groups))} d{dash}{hollow}", (index + turn) % len(MARKERS))
        found.append((one, style))
    return found


def _colour(index: int, groups: int) -> str:
    return f"c{index}" if groups <= COLOURS else f"r{round(index * (RAMP - 1) / (groups - 1))}"


# The geometry of a series: lines with gaps, steps, bars, markers and error bars as SVG path data.

Point = tuple[float, float]


def pieces(points: Iterable[Point]) -> Iterator[list[Point]]:
    """The runs of neighbours that can be drawn; what is not finite is a gap between them."""
    for seen, piece in groupby(points, key=lambda point: all(map(math.isfinite, point))):
        if seen:
            yield list(piece)


def thinned(piece: Sequence[Point]) -> Sequence[Point]:
    """The visible points of a line: where many share a pixel column, its first, lowest, highest and last."""
    if len(piece) < 4 or len(piece) < 2 * (abs(piece[-1][0] - piece[0][0]) + 1):
        return piece
    kept: list[Point] = []
    for _, group in groupby(piece, key=lambda point: math.floor(point[0])):
        column = list(group)
        ys = [y for _, y in column]
        shown = sorted({0, ys.index(min(ys)), ys.index(max(ys)), len(column) - 1})
        kept += column if len(column) <= 4 else [column[at] for at in shown]
    return kept


def line(points: Iterable[Point], *, step: bool = False) -> str:
    """A line through the points, with gaps; ``step`` holds each value until the next one."""
    found = []
    for piece in pieces(points):
        shown = thinned(piece)
        if len(shown) == 1:
            # A dot: a line of no length, drawn by its round caps.
            found.append(f"M{pixel(shown[0][0])},{pixel(shown[0][1])}h0")
            continue
        first, *others = [(pixel(x), pixel(y)) for x, y in shown]
        rest = "".join(f"H{x}V{y}" for x, y in others) if step else "L" + " ".join(f"{x},{y}" for x, y in others)
        found.append(f"M{first[0]},{first[1]}{rest}")
    return "".join(found)


def plot(chart: Chart, *, width: int = 560, height: int = 340, key: str = "") -> str:
    """A chart as an SVG element; ``key`` makes the ids of several pictures of one chart on a page different.

    Example:
        >>> from softprune.reporting.charts import Axis, Series
        >>> chart = Chart("loss", "Loss", "", Axis("epoch"), Axis("loss"), (Series("a", (0, 1), (2.0, 1.0)),))
        >>> plot(chart).startswith('<svg class="plot"')
        True
    """
    frame = framed(chart, width, height)
    ident = escape(f"{chart.name}{key}")
    ends = (frame.x.low, frame.x.high, frame.y.low, frame.y.high)
    box = (frame.x.start, frame.x.end, frame.y.start, frame.y.end)
    return (
        f'<svg class="plot" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{ident}-t {ident}-d"'
        f' data-box="{" ".join(map(pixel, box))}" data-ends="{" ".join(map(repr, map(float, ends)))}">'
        f'{spoken(chart, ident)}{drawn(chart, frame, ident)}<circle class="cursor" r="6" cx="-99" cy="-99"/></svg>'
    )


def spoken(chart: Chart, ident: str) -> str:
    """Title and description as elements, for readers who cannot see the picture."""
    words = escape(description(chart))
    return f'<title id="{ident}-t">{escape(chart.title)}</title><desc id="{ident}-d">{words}</desc>'


def drawn(chart: Chart, frame: Frame, ident: str) -> str:
    """Axes and series as elements; ``ident`` is the beginning of their ids."""
    box = (frame.x.start, frame.x.end, frame.y.start, frame.y.end)
    parts = [
        *draw(frame, chart),
        # Nothing is drawn outside the axes: series are cut there, markers on the edge are whole.
        f'<clipPath id="{ident}-c"><rect x="{pixel(box[0] - 5)}" y="{pixel(box[3] - 6)}"'
        f' width="{pixel(box[1] - box[0] + 10)}" height="{pixel(box[2] - box[3] + 12)}"/></clipPath>',
        f'<g clip-path="url(#{ident}-c)">',
    ]
    series = [(one.faint, _series(frame, chart, at, style)) for at, (one, style) in enumerate(styled(chart))]
    parts += [text for faint, text in series if faint] + [text for faint, text in series if not faint]
    parts.append("</g>")
    if not any(math.isfinite(y) for s in chart.series for y in s.y):
        parts.append(f'<text class="empty mid" x="{frame.width // 2}" y="{frame.height // 2}">no values yet</text>')
    return "".join(parts)


def swatch(chart: Chart, series: Series, style: SeriesStyle) -> str:
    """The sample of a series for a legend, 22 wide around a height of 0, without its classes."""
    samples = {
        "points": "",
        "bars": '<path class="bars" d="M4,-5h14v10h-14z"/>',
        "line": '<path class="line" d="M0,0h22"/>',
        "step": '<path class="line" d="M0,4h11v-8h11"/>',
    }
    marks = f'<path class="marks" d="M11,0{MARKERS[style.marker]}"/>' if marked(chart, series) else ""
    return samples[series.mark] + marks


def description(chart: Chart) -> str:
    """The axes and the range of every series in words, for readers who cannot see the picture."""
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
    return " ".join(filter(None, words))


def offsets(chart: Chart) -> dict[int, float]:
    """How far the bars of each series are moved, in places, so that all of them are seen."""
    together = [at for at, series in enumerate(chart.series) if series.mark == "bars"]
    return {at: (turn - (len(together) - 1) / 2) * 0.8 / len(together) for turn, at in enumerate(together)}


def _series(frame: Frame, chart: Chart, at: int, style: SeriesStyle) -> str:
    series = chart.series[at]
    beside = offsets(chart)
    shift = beside.get(at, 0.0)
    points = [(frame.x(x + shift), frame.y(y)) for x, y in zip(series.x, series.y, strict=True)]
    step = abs(frame.x(frame.x.low + 1) - frame.x(frame.x.low)) if not frame.x.log else 8.0
    room = 0.8 * step / max(len(beside), 1)
    seen = [(x, y) for piece in pieces(points) for x, y in piece]
    parts = [f'<g class="series {style.classes}" data-series="{at}">']
    if series.mark == "bars" and room >= _NARROWEST:
        base = pixel(frame.y(max(frame.y.low, 0.0)) if not frame.y.log else frame.y.start)
        wide = max(room - 1, 1)
        bars = (f"M{pixel(x - wide / 2)},{base}V{pixel(y)}h{pixel(wide)}V{base}z" for x, y in seen)
        parts.append(f'<path class="bars" d="{"".join(bars)}"/>')
    elif series.mark != "points":
        parts.append(f'<path class="line" d="{line(points, step=series.mark == "step")}"/>')
    if marked(chart, series):
        marks = (f"M{pixel(x)},{pixel(y)}{MARKERS[style.marker]}" for x, y in seen)
        parts.append(f'<path class="marks" d="{"".join(marks)}"/>')
    if series.spread:
        whiskers = ""
        for (x, _), y, spread in zip(points, series.y, series.spread, strict=False):
            low, high = frame.y(y - spread), frame.y(y + spread)
            if math.isfinite(x + low + high):
                whiskers += f"M{pixel(x - 4)},{pixel(low)}h8m-4,0V{pixel(high)}m-4,0h8"
        parts.append(f'<path class="spread" d="{whiskers}"/>')
    return "".join(parts) + "</g>"


def marked(chart: Chart, series: Series) -> bool:
    """Whether the values of a series have markers: points always, lines where there is room for them."""
    crowded = sum(len(s.x) for s in chart.series if s.mark == "line") > 20 * _MARKED
    sparse = len(series.x) <= _MARKED and not crowded and not series.faint
    return series.mark == "points" or (series.mark == "line" and sparse)
