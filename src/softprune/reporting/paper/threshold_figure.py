"""Figure 10: hard and soft threshold, computed."""

from __future__ import annotations

import math

from softprune.reporting.chart import Axis, Chart, Series

_ALPHA, _END, _STEP = 2.0, 5.0, 0.25


def thresholds() -> Chart:
    """What a hard and a soft threshold of 2 make of a weight.

    Example:
        >>> chart = thresholds()
        >>> soft = chart.series[1]
        >>> dict(zip(soft.x, soft.y))[3.0]
        1.0
    """
    count = round(2 * _END / _STEP)
    # The hard threshold jumps: its three pieces are joined by no line.
    weights = [-_END + i * _STEP for i in range(count + 1)]
    hard = [(w, w if abs(w) > _ALPHA else 0.0) for w in weights]
    pieces = [*_upto(hard, -_ALPHA), *_between(hard), *_from(hard, _ALPHA)]
    soft = [math.copysign(max(abs(w) - _ALPHA, 0.0), w) + 0.0 for w in weights]
    return Chart(
        name="figure_10_thresholds",
        title="Figure 10. Hard and soft threshold at 2",
        caption="Computed: the hard threshold is w where |w| > 2 and else 0, the soft one sign(w) max(|w| - 2, 0). "
        "The soft one is continuous.",
        x=Axis("weight w"),
        y=Axis("weight after the threshold"),
        series=(
            Series("hard", tuple(x for x, _ in pieces), tuple(y for _, y in pieces)),
            Series("soft", tuple(weights), tuple(soft)),
            Series("no threshold", (-_END, _END), (-_END, _END), faint=True),
        ),
    )


def _upto(points: list[tuple[float, float]], edge: float) -> list[tuple[float, float]]:
    return [*(p for p in points if p[0] < edge), (edge, edge), (edge, math.nan)]


def _between(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [p for p in points if abs(p[0]) <= _ALPHA]


def _from(points: list[tuple[float, float]], edge: float) -> list[tuple[float, float]]:
    return [(edge, math.nan), (edge, edge), *(p for p in points if p[0] > edge)]
