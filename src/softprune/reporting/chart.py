"""A figure as plain values: what is drawn, not how. Pages draw it as SVG, papers and notebooks with matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mark = Literal["line", "step", "points", "bars"]


@dataclass(frozen=True)
class Axis:
    """One axis.

    Args:
        label: what it measures, with its unit.
        scale: "linear" or "log".
        percent: values are fractions, and are written as percent.
        categories: names of the places 0, 1, 2, ... if it counts things, such as layers.
        low: where it begins; None to fit the values.
        high: where it ends; None to fit the values.
    """

    label: str
    scale: Literal["linear", "log"] = "linear"
    percent: bool = False
    categories: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Values that belong together and have one entry in the legend.

    Args:
        name: of the entry.
        x: places; as many as y.
        y: values; one that is not finite is a gap.
        mark: how they are drawn.
        spread: half the length of each error bar; empty for none.
        notes: a text for each value beside its numbers; empty for none.
        group: what shares a colour and is filtered together, such as a method; the name itself if empty.
        faint: drawn behind the others, as a reference.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    mark: Mark = "line"
    spread: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    group: str = ""
    faint: bool = False


@dataclass(frozen=True)
class Chart:
    """A figure.

    Args:
        name: its file name and anchor, such as "layer_sparsity".
        title: one line.
        caption: what a reader sees in it, in a sentence or two.
        x: the horizontal axis.
        y: the vertical axis.
        series: in the order of the legend.
    """

    name: str
    title: str
    caption: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
