"""A chart as a part of a page: picture, legend of buttons, and its values for tooltips and download."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from typing import Any

from softprune.reporting.charts import Axis, Chart, Series
from softprune.reporting.svg.plot import SeriesStyle, offsets, plot, styled, swatch

# Pictures for half a page, a whole line, and a narrow screen.
HALF, WHOLE, _NARROW = (560, 340), (1120, 380), (400, 330)
# More places or series than this need a whole line.
_FEW = 14
# Data of more numbers than this is drawn once; narrow screens scroll it.
_LARGE = 40_000


def figure(chart: Chart, *, wide: bool | None = None) -> str:
    """A chart as an HTML figure.

    Args:
        chart: what to draw.
        wide: whether it takes a whole line; None decides by its places and series.

    Returns:
        HTML in which all names of the chart are escaped. The style sheet and script of the base template give it
        colours, a legend that shows and hides, and tooltips.
    """
    if wide is None:
        wide = needs_line(chart)
    name = escape(chart.name)
    small = sum(len(series.x) for series in chart.series) <= _LARGE
    width, height = WHOLE if wide else HALF
    pictures = f'<div class="screen wide">{plot(chart, width=width, height=height)}</div>'
    if small:
        pictures += f'<div class="screen narrow">{plot(chart, width=_NARROW[0], height=_NARROW[1], key="-n")}</div>'
    hint = "Arrow keys: left and right move along a series, up and down change it."
    return (
        f'<figure class="chart{" whole" if wide else ""}{"" if small else " large"}" id="{name}">'
        f"<figcaption><h3>{escape(chart.title)}</h3><p>{escape(chart.caption)}</p></figcaption>"
        f'<div class="canvas" tabindex="0" role="group" aria-label="{escape(chart.title)}. {hint}">{pictures}'
        '<div class="tip" hidden></div></div>'
        f'<div class="below">{_legend(chart)}<button type="button" class="quiet csv" '
        f'aria-label="Download the values of {escape(chart.title)} as CSV">CSV</button></div>'
        f'<script type="application/json" class="values">{_json(_values(chart))}</script></figure>'
    )


def figures(charts: Sequence[Chart]) -> str:
    """Charts for a grid of two columns: one that would be alone in its line takes the whole of it."""
    halves = [chart.name for chart in charts if not needs_line(chart)]
    alone = halves[-1] if len(halves) % 2 else None
    return "".join(figure(chart, wide=True if chart.name == alone else None) for chart in charts)


def needs_line(chart: Chart) -> bool:
    """Whether half a line is too narrow for it."""
    return max(len(chart.x.categories), len(chart.series)) > _FEW


def _legend(chart: Chart) -> str:
    # A series without values has its colour, so that the others have theirs in all charts, but no entry.
    shown = [(at, series, style) for at, (series, style) in enumerate(styled(chart)) if series.x]
    many = len(shown) > _FEW
    entries = "".join(_entry(chart, at, series, style) for at, series, style in shown)
    both = '<button type="button" class="quiet all">all</button><button type="button" class="quiet none">none</button>'
    return (
        f'<div class="legend{" many" if many else ""}" role="group" aria-label="Legend: show or hide series">'
        f"{both if len(shown) > 2 else ''}{entries}</div>"
    )


def _entry(chart: Chart, at: int, series: Series, style: SeriesStyle) -> str:
    return (
        f'<button type="button" class="entry" aria-pressed="true" data-series="{at}" '
        f'data-group="{escape(series.group or series.name)}">'
        f'<svg viewBox="-1 -7 24 14" aria-hidden="true" class="{style.classes}">{swatch(chart, series, style)}</svg>'
        f"<span>{escape(series.name)}</span></button>"
    )


def _values(chart: Chart) -> dict[str, Any]:
    beside = offsets(chart)
    return {
        "x": _axis(chart.x),
        "y": _axis(chart.y),
        "series": [
            {
                "name": series.name,
                "x": [_number(v) for v in series.x],
                "y": [_number(v) for v in series.y],
                "spread": [_number(v) for v in series.spread],
                "notes": list(series.notes),
                "bars": series.mark == "bars",
                "beside": beside.get(at, 0),
            }
            for at, series in enumerate(chart.series)
        ],
    }


def _axis(axis: Axis) -> dict[str, Any]:
    return {
        "label": axis.label,
        "log": axis.scale == "log",
        "percent": axis.percent,
        "categories": list(axis.categories),
    }


def _number(value: float) -> float | int | None:
    """Whole numbers without a point, others with ten digits, which no one tells from all of them."""
    if not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else float(f"{value:.10g}")


def _json(data: object) -> str:
    """JSON that cannot end its script element, whatever the names in it are."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
