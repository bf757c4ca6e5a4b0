"""The geometry of a series: lines with gaps, steps, bars, markers and error bars as SVG path data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from softprune.reporting.svg.look import MARKERS

Point = tuple[float, float]


def pixel(value: float) -> str:
    """A coordinate with one decimal, in as few characters as it takes."""
    text = f"{value:.1f}"
    return "0" if text == "-0.0" else text.removesuffix(".0")


def pieces(points: Iterable[Point]) -> Iterator[list[Point]]:
    """The runs of neighbours that can be drawn; whatever is NaN is a gap between them."""
    piece: list[Point] = []
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            piece.append((x, y))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def thinned(piece: Sequence[Point]) -> Sequence[Point]:
    """What can be seen of a line: where many points share a pixel column, its first, lowest, highest and last."""
    if len(piece) < 4 or len(piece) < 2 * (abs(piece[-1][0] - piece[0][0]) + 1):
        return piece
    kept: list[Point] = []
    column: list[Point] = []
    for point in piece:
        if column and math.floor(point[0]) != math.floor(column[0][0]):
            kept += _outline(column)
            column = []
        column.append(point)
    return kept + _outline(column)


def _outline(column: list[Point]) -> list[Point]:
    if len(column) <= 4:
        return column
    ys = [y for _, y in column]
    chosen = sorted({0, ys.index(min(ys)), ys.index(max(ys)), len(column) - 1})
    return [column[at] for at in chosen]


def line(points: Iterable[Point], *, step: bool = False) -> str:
    """A line through the points, with gaps; ``step`` holds each value until the next one."""
    found = []
    for piece in pieces(points):
        shown = thinned(piece)
        if len(shown) == 1:
            # A dot: a line of no length, drawn by its round caps.
            found.append(f"M{pixel(shown[0][0])},{pixel(shown[0][1])}h0")
            continue
        parts = [f"{pixel(x)},{pixel(y)}" for x, y in shown]
        if step:
            parts = [parts[0], *(f"H{pixel(x)}V{pixel(y)}" for x, y in shown[1:])]
            found.append("M" + parts[0] + "".join(parts[1:]))
        else:
            found.append("M" + parts[0] + "L" + " ".join(parts[1:]))
    return "".join(found)


def markers(points: Iterable[Point], kind: int) -> str:
    """All markers of a series in one path."""
    return "".join(f"M{pixel(x)},{pixel(y)}{MARKERS[kind]}" for piece in pieces(points) for x, y in piece)


def bars(points: Iterable[Point], *, base: float, width: float) -> str:
    """All bars of a series in one path, standing on ``base``."""
    half = width / 2
    return "".join(
        f"M{pixel(x - half)},{pixel(base)}V{pixel(y)}h{pixel(width)}V{pixel(base)}z"
        for piece in pieces(points)
        for x, y in piece
    )


def whiskers(ends: Iterable[tuple[float, float, float]]) -> str:
    """Error bars from (x, lower end, upper end); what is NaN has none."""
    return "".join(
        f"M{pixel(x - 4)},{pixel(a)}h8m-4,0V{pixel(b)}m-4,0h8"
        for x, a, b in ends
        if math.isfinite(x) and math.isfinite(a) and math.isfinite(b)
    )
