"""Charts as SVG: as parts of a page, with buttons, tooltips and download, and as files that stand alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from textwrap import wrap
from typing import Any

from softprune.reporting.charts import Axis, Chart
from softprune.reporting.svg.axes import framed
from softprune.reporting.svg.plot import RAMP, SeriesStyle, drawn, offsets, plot, spoken, styled, swatch

HALF, WHOLE, _NARROW = (560, 340), (1120, 380), (400, 330)  # pixels for half a page, a whole line, a narrow screen
_FEW = 14  # more places or series need a whole line
_LARGE = 40_000  # more values are drawn only once; narrow screens scroll the picture
_HEAD, _ROW, _EDGE = 16, 20, 14  # pixels above the picture without a title, of a line of text, and around it
_LETTER, _TALL_LETTER = 7.6, 9.2  # pixels of a letter of the legend and of the title, a little more than most are
_SAMPLE = 30  # pixels of a sample with the gap behind it
# What XML cannot hold, though a name may.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Colours are written out: programs that make PDF or PNG of a file know no variables of style sheets.
_STYLE = (
    "text{font:12px Helvetica,Arial,sans-serif;fill:#5a626b}.title,.name,.head{fill:#1c2024}"
    ".head{font-size:15px;font-weight:bold}.end{text-anchor:end}.mid{text-anchor:middle}"
    ".rule{stroke:#e1e4e8;fill:none}.axis{stroke:#8d939a;fill:none}"
    ".line{stroke-width:1.8;fill:none;stroke-linejoin:round;stroke-linecap:round}.spread{stroke-width:1.2;fill:none}"
    ".marks{stroke:#fff;stroke-width:.6}.hollow .marks{stroke-width:1.4}.bars{fill-opacity:.85}.faint{opacity:.6}"
    ".d1 .line{stroke-dasharray:7 4}.d2 .line{stroke-dasharray:1.5 4}.d3 .line{stroke-dasharray:9 3 2 3}"
)


def figure(chart: Chart, *, wide: bool | None = None) -> str:
    """A chart as HTML in which its names are escaped; styles and scripts of the base template make it live.

    ``wide`` says whether it takes a whole line; None decides by its places and series.
    """
    wide = needs_line(chart) if wide is None else wide
    small = sum(len(series.x) for series in chart.series) <= _LARGE
    width, height = WHOLE if wide else HALF
    pictures = f'<div class="screen wide">{plot(chart, width=width, height=height)}</div>'
    if small:
        pictures += f'<div class="screen narrow">{plot(chart, width=_NARROW[0], height=_NARROW[1], key="-n")}</div>'
    hint = "Arrow keys: left and right move along a series, up and down change it."
    return (
        f'<figure class="chart{" whole" if wide else ""}{"" if small else " large"}" id="{escape(chart.name)}">'
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
    """Whether a chart has so many series or categories that it needs the whole width."""
    return max(len(chart.x.categories), len(chart.series)) > _FEW


def _legend(chart: Chart) -> str:
    # A series without values has its colour, so that the others have theirs in all charts, but no entry.
    shown = [(at, series, style) for at, (series, style) in enumerate(styled(chart)) if series.x]
    many = len(shown) > _FEW
    entries = "".join(
        f'<button type="button" class="entry" aria-pressed="true" data-series="{at}" '
        f'data-group="{escape(series.group or series.name)}">'
        f'<svg viewBox="-1 -7 24 14" aria-hidden="true" class="{style.classes}">{swatch(chart, series, style)}</svg>'
        f"<span>{escape(series.name)}</span></button>"
        for at, series, style in shown
    )
    both = '<button type="button" class="quiet all">all</button><button type="button" class="quiet none">none</button>'
    return (
        f'<div class="legend{" many" if many else ""}" role="group" aria-label="Legend: show or hide series">'
        f"{both if len(shown) > 2 else ''}{entries}</div>"
    )


def _values(chart: Chart) -> dict[str, Any]:
    def axis(one: Axis) -> dict[str, Any]:
        log = one.scale == "log"
        return {"label": one.label, "log": log, "percent": one.percent, "categories": list(one.categories)}

    beside, series = offsets(chart), []
    for at, one in enumerate(chart.series):
        numbers = {key: [_number(v) for v in getattr(one, key)] for key in ("x", "y", "spread")}
        drawn_as = {"notes": list(one.notes), "bars": one.mark == "bars", "beside": beside.get(at, 0)}
        series.append({"name": one.name, **numbers, **drawn_as})
    return {"x": axis(chart.x), "y": axis(chart.y), "series": series}


def _number(value: float) -> float | int | None:
    """A number for JSON: whole ones without a point, others with ten digits; None if it is not finite."""
    if not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else float(f"{value:.10g}")


def _json(data: object) -> str:
    """JSON that cannot end its script element, whatever the names in it are."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# A chart as an SVG file that stands alone: title, picture and legend with colours of its own.


def standalone(chart: Chart) -> str:
    """A chart as the text of an SVG file, twice as wide if it shows much: the same text for the same chart.

    Example:
        >>> from softprune.reporting.charts import Axis, Series
        >>> chart = Chart("loss", "Loss", "", Axis("epoch"), Axis("loss"), (Series("a", (0, 1), (2.0, 1.0)),))
        >>> standalone(chart).startswith('<svg xmlns="http://www.w3.org/2000/svg"')
        True
    """
    width, height = WHOLE if needs_line(chart) else HALF
    ident = escape(chart.name)
    # A series without values has its colour, so that the others have theirs in all charts, but no entry.
    entries = [(series.name, style, swatch(chart, series, style)) for series, style in styled(chart) if series.x]
    legend, rows = _drawn_legend(entries if len(entries) > 1 else [], width)
    title = wrap(chart.title, int((width - 2 * _EDGE) / _TALL_LETTER))
    top = _HEAD + _ROW * len(title)
    whole = top + height + (_ROW * rows + _EDGE if rows else 0)
    heads = (
        f'<text class="head" x="{_EDGE}" y="{_ROW * i + 22}">{escape(words)}</text>' for i, words in enumerate(title)
    )
    rules = _STYLE + "".join(_colours(style.classes for _, style in styled(chart)))
    return _NOT_XML.sub(
        "\ufffd",
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{whole}" viewBox="0 0 {width} {whole}"'
        f' role="img" aria-labelledby="{ident}-t {ident}-d">{spoken(chart, ident)}<style>{rules}</style>'
        f'<rect width="{width}" height="{whole}" fill="#fff"/>{"".join(heads)}'
        f'<g transform="translate(0,{top})">{drawn(chart, framed(chart, width, height), ident)}</g>'
        f'<g transform="translate({_EDGE},{top + height + _ROW // 2})">{legend}</g></svg>\n',
    )


def _drawn_legend(entries: Iterable[tuple[str, SeriesStyle, str]], width: int) -> tuple[str, int]:
    """The entries from left to right in as many lines as they need, and the number of lines."""
    parts: list[str] = []
    x, row = 0.0, 0
    most = int((width - 3 * _EDGE - _SAMPLE) / _LETTER)
    for whole, style, sample in entries:
        name = whole if len(whole) <= most else "\u2026" + whole[1 - most :]
        room = _SAMPLE + _LETTER * len(name) + _EDGE
        if x and x + room > width - _EDGE:
            x, row = 0.0, row + 1
        parts.append(
            f'<g transform="translate({x:.0f},{_ROW * row})"><g class="{style.classes}">{sample}</g>'
            f'<text class="name" x="{_SAMPLE}" y="4">{escape(name)}</text></g>'
        )
        x += room
    return "".join(parts), row + 1 if parts else 0


def _colours(classes: Iterable[str]) -> Iterable[str]:
    """Rules for the colours that are used, those of the light theme of pages."""
    for name in sorted({words.split()[0] for words in classes}):
        colour = _palette()[name]
        yield f".{name} .line,.{name} .spread{{stroke:{colour}}}.{name} .marks,.{name} .bars{{fill:{colour}}}"
        yield f".{name}.hollow .marks{{fill:#fff;stroke:{colour}}}"


@cache
def _palette() -> dict[str, str]:
    """Class -> colour as #rrggbb, from the style sheet of pages."""
    sheet = (resources.files("softprune.reporting") / "templates" / "chart.css").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for name, colour in re.findall(r"--([\w-]+): (#[0-9a-f]{6})", sheet):
        found.setdefault(name, colour)  # the first are those of the light theme
    low, high = (bytes.fromhex(found[name][1:]) for name in ("ramp-a", "ramp-b"))
    for index in range(RAMP):
        share = index / (RAMP - 1)
        mixed = bytes(round(a + (b - a) * share) for a, b in zip(low, high, strict=True))
        found[f"r{index}"] = f"#{mixed.hex()}"
    return found
