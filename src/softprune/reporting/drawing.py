"""How a chart looks in print. Imports matplotlib: `softprune.reporting.plot` is the way in."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import count

from matplotlib.axes import Axes
from matplotlib.axis import Axis as PlotAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from softprune.reporting.chart import Axis, Chart, Series
from softprune.reporting.style import DASHES, Look, looks, thinned

ONE_COLUMN, TWO_COLUMNS, HEIGHT = 3.5, 7.1, 2.7  # inches
TEXT = 8  # points; what a caption has in most templates
CROWD, ENTRIES = 7, 14  # series that have their legend beside the plot, on two columns; entries of a legend
LETTERS, NAMES = 14, 6  # that an inch has room for: in a line, and one under the other
BAR_ROOM = 0.8  # of the place of a category


class Drawing(Figure):
    """A figure that a notebook shows by itself, whether or not pyplot was ever imported."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=150)
        return data.getvalue()


def drawn(chart: Chart) -> Drawing:
    """The figure of a chart."""
    many = len(chart.series) >= CROWD or len(chart.x.categories) > 12
    width = TWO_COLUMNS if many else ONE_COLUMN
    # Names that do not fit beside each other stand upright, and the plot keeps its height.
    longest = max(map(len, chart.x.categories), default=0)
    upright = longest * len(thinned(len(chart.x.categories), room=round(width * NAMES))) > LETTERS * width
    figure = Drawing(figsize=(width, HEIGHT + upright * longest / LETTERS * 0.8), layout="constrained")
    FigureCanvasAgg(figure)  # the figure keeps it
    axes = figure.add_subplot()
    axes.set_title(_plain(chart.title), fontsize=TEXT + 1, loc="left", wrap=True)
    _set_scales(axes, chart)
    handles = _add_series(axes, chart)
    _set_axis(axes.xaxis, chart.x, inches=width, upright=upright)
    _set_axis(axes.yaxis, chart.y, inches=HEIGHT)
    _set_limits(axes, chart)
    axes.grid(visible=True, axis="y" if chart.x.categories else "both", color="#d9d9d9", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=TEXT - 1)
    # A series without values has its colour, so that the others have theirs in all charts, but no entry.
    listed = [handle for handle, series in zip(handles, chart.series, strict=True) if series.x]
    if len(listed) > 1:
        _add_legend(figure, listed, beside=many)
    return figure


def _plain(text: str) -> str:
    """Text whose dollar signs are dollars, not formulas."""
    return text.replace("$", r"\$")


def _set_scales(axes: Axes, chart: Chart) -> None:
    if chart.x.scale == "log":
        axes.set_xscale("log", nonpositive="mask")
    if chart.y.scale == "log":
        # Bars stand on zero, which a mask would take away with the bar.
        bars = any(s.mark == "bars" for s in chart.series)
        axes.set_yscale("log", nonpositive="clip" if bars else "mask")


def _add_series(axes: Axes, chart: Chart) -> list[Container]:
    places = sum(s.mark == "bars" for s in chart.series)
    place = count()
    handles: list[Container] = []
    for series, look in zip(chart.series, looks(chart.series), strict=True):
        if series.mark == "bars":
            handles.append(_add_bars(axes, series, look, place=next(place), places=places))
        else:
            handles.append(_add_curve(axes, series, look, centred=bool(chart.x.categories)))
    return handles


def _add_bars(axes: Axes, series: Series, look: Look, *, place: int, places: int) -> Container:
    width = BAR_ROOM / places
    x = [value - BAR_ROOM / 2 + width * (place + 0.5) for value in series.x]
    return axes.bar(
        x,
        _finite(series.y),
        width,
        label=_plain(series.name),
        color=look.colour,
        alpha=look.opacity,
        yerr=_finite(series.spread) or None,
        error_kw={"elinewidth": 0.8, "capsize": 1.5},
        zorder=look.order,
    )


def _add_curve(axes: Axes, series: Series, look: Look, *, centred: bool) -> Container:
    few = len(series.x) <= 24
    marker = look.marker if series.mark == "points" or (few and series.mark == "line" and not series.faint) else ""
    return axes.errorbar(
        series.x,
        _finite(series.y),
        yerr=_finite(series.spread) or None,
        label=_plain(series.name),
        color=look.colour,
        alpha=look.opacity,
        linestyle="" if series.mark == "points" else DASHES[look.dash],
        drawstyle="default" if series.mark != "step" else "steps-mid" if centred else "steps-post",
        linewidth=0.9 if series.faint else 1.2,
        marker=marker,
        markersize=4,
        markeredgewidth=0.8,
        markerfacecolor=look.colour if look.filled else "white",
        elinewidth=0.8,
        capsize=2,
        zorder=look.order,
    )


def _finite(values: Sequence[float]) -> list[float]:
    return [value if math.isfinite(value) else math.nan for value in values]


def _set_axis(axis: PlotAxis, chart_axis: Axis, *, inches: float, upright: bool = False) -> None:
    axis.set_label_text(_plain(chart_axis.label), fontsize=TEXT)
    if chart_axis.percent:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))
        axis.set_minor_formatter(NullFormatter())
    if chart_axis.categories:
        places = thinned(len(chart_axis.categories), room=round(inches * NAMES))
        axis.set_ticks(places, [_plain(chart_axis.categories[place]) for place in places], fontsize=TEXT - 2)
        if upright:
            axis.set_tick_params(labelrotation=90)


def _set_limits(axes: Axes, chart: Chart) -> None:
    if chart.x.categories:
        axes.set_xlim(-0.6, len(chart.x.categories) - 0.4)
    axes.set_xlim(chart.x.low, chart.x.high, auto=None)
    axes.set_ylim(chart.y.low, chart.y.high, auto=None)


def _add_legend(figure: Figure, handles: Sequence[Container], *, beside: bool) -> None:
    shown = [handles[place] for place in thinned(len(handles), room=ENTRIES)]
    figure.legend(
        handles=shown,
        loc="outside right upper" if beside else "outside lower center",
        ncols=1 if beside else min(len(handles), 2),
        title=f"{len(shown)} of {len(handles)}" if len(shown) < len(handles) else None,
        title_fontsize=TEXT - 1,
        fontsize=TEXT - 1,
        frameon=False,
    )
