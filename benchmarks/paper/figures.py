"""The paper's figures, made again, and those of our runs like them."""

from __future__ import annotations

import math
from collections.abc import Callable

from benchmarks.paper.printed import Printed, published_table
from benchmarks.paper.recount import layer_names, network_profile, recount

from softprune.budget.budget import Budget, published
from softprune.reporting.charts import Axis, Chart, Mark, Series

# In the order of the legend; the marks * and # of single rows (first, last layer dense) do not make a method.
METHODS = ("STR", "GMP", "DNW", "RigL", "RigL + ERK", "SNFS", "SNFS + ERK", "DPF", "DSR")
_FIRST, _LAST = 0.79, 0.995
RESNET50 = {
    "STR": "str-90.23",
    "Uniform": "uniform-90",
    "ERK": "erk-90",
    "SNFS": "snfs-90",
    "VD": "vd-90",
    "GS": "gs-89.54",
}
MOBILENETV1 = {"STR": "str-89.01", "GMP": "gmp-89.03"}
# Figures of the paper: network -> (sparsity, FLOPs).
_NUMBERS = {"resnet50": (6, 7), "mobilenetv1": (8, 9)}
_ALPHA, _END, _STEP = 2.0, 5.0, 0.25


def accuracy_against_sparsity() -> Chart:
    """Figure 4.

    Example:
        >>> [len(s.x) for s in accuracy_against_sparsity().series if s.name == "STR"]
        [16]
    """
    series = [_series(method, lambda record: float(record["sparsity"]) / 100, notes=_nothing) for method in METHODS]
    return Chart(
        name="figure_04_accuracy_sparsity",
        title="Figure 4. Accuracy against sparsity, ResNet50 on ImageNet-1K",
        caption="Printed in table 1; nothing is recomputed. The horizontal line is the dense network.",
        x=Axis("sparsity", percent=True, low=_FIRST, high=_LAST),
        y=Axis("top-1 accuracy", percent=True),
        series=(*series, _dense((_FIRST, _LAST))),
    )


def accuracy_against_macs() -> Chart:
    """Figure 5, at the FLOPs that follow from the budgets where these are known, else at the printed ones."""
    series = [_series(method, lambda record: macs_of(record) / 1e6, notes=_both_flops) for method in METHODS]
    points = [x for s in series for x in s.x]
    return Chart(
        name="figure_05_accuracy_flops",
        title="Figure 5. Accuracy against FLOPs, ResNet50 on ImageNet-1K",
        caption="Accuracy as printed in table 1; FLOPs are ours, recomputed from the layer-wise budgets. Only DSR's "
        "are as printed, since its budget is not published, and SNFS at 80 % has none. Each point tells both.",
        x=Axis("million multiply-adds", scale="log"),
        y=Axis("top-1 accuracy", percent=True),
        series=(*series, _dense((min(points), max(points)))),
    )


def macs_of(record: dict[str, str]) -> float:
    """The multiply-adds of one row of table 1: recomputed if its budget is known, else as printed."""
    budget = recount(1, record["method"], record["sparsity"]).budget
    return float(budget.macs()) if budget is not None else Printed(record["flops"]).value


def _series(method: str, place: Callable[[dict[str, str]], float], *, notes: Callable[[dict[str, str]], str]) -> Series:
    records = [r for r in published_table(1).records() if r["method"].rstrip("*#") == method]
    # A row without a place, because nothing is printed there, is left out.
    points = sorted((place(r), float(r["top1"]) / 100, notes(r)) for r in records if place(r) == place(r))
    x, y, texts = zip(*points, strict=True)
    mark: Mark = "line" if len(x) > 1 else "points"
    # A method with another budget keeps its colour.
    return Series(method, x, y, mark, notes=texts if any(texts) else (), group=method.removesuffix(" + ERK"))


def _dense(ends: tuple[float, float]) -> Series:
    top1 = float(published_table(1).records()[0]["top1"]) / 100
    return Series("dense", ends, (top1, top1), faint=True)


def _nothing(record: dict[str, str]) -> str:
    marks = {"*": "first layer dense", "#": "last layer dense"}
    return ", ".join(text for mark, text in marks.items() if mark in record["method"])


def _both_flops(record: dict[str, str]) -> str:
    ours = f"printed {record['flops']}, ours {macs_of(record) / 1e6:.1f}M, at {record['sparsity']} % sparsity"
    return "; ".join(filter(None, (ours, _nothing(record))))


# Figures 6 to 9: sparsity and FLOPs of every layer, from the published budgets.

_NETWORKS = {"resnet50": ("ResNet50", RESNET50), "mobilenetv1": ("MobileNetV1", MOBILENETV1)}


def layer_sparsity(network: str, others: dict[str, Budget] | None = None) -> Chart:
    """The sparsity of every layer in the 90 % budgets of one network.

    Args:
        network: "resnet50" or "mobilenetv1".
        others: budgets of the same network to draw with them, by their name in the legend.

    Example:
        >>> layer_sparsity("mobilenetv1").series[0].y[0]
        0.691
    """
    shown, number = _NETWORKS[network][0], _NUMBERS[network][0]
    return Chart(
        name=f"figure_{number:02}_layer_sparsity",
        title=f"Figure {number}. Sparsity of every layer of {shown} at 90 %",
        caption=f"Printed layer by layer in table {7 if network == 'resnet50' else 8}; nothing is recomputed."
        + (" dw: depthwise." if network == "mobilenetv1" else ""),
        x=Axis("layer", categories=layer_names(network_profile(network))),
        y=Axis("sparsity", percent=True, low=0.0, high=1.0),
        series=tuple(
            # Two decimals of a percent are printed; what binary fractions add is taken away again.
            _layer_series(name, budget, [round(budget.sparsity(t), 6) for t in budget])
            for name, budget in _budgets(network, others).items()
        ),
    )


def layer_macs(network: str, others: dict[str, Budget] | None = None) -> Chart:
    """The multiply-adds left in every layer in the 90 % budgets of one network; arguments as above."""
    shown, number = _NETWORKS[network][0], _NUMBERS[network][1]
    profile = network_profile(network)
    return Chart(
        name=f"figure_{number:02}_layer_flops",
        title=f"Figure {number}. FLOPs of every layer of {shown} at 90 %",
        caption="Ours: the density of each layer times its multiply-adds on an image of 224 x 224."
        + (" dw: depthwise." if network == "mobilenetv1" else ""),
        x=Axis("layer", categories=layer_names(profile)),
        y=Axis("million multiply-adds left", low=0.0),
        series=tuple(
            _layer_series(name, budget, [round(budget[t.name] * t.macs) / 1e6 for t in profile])
            for name, budget in _budgets(network, others).items()
        ),
    )


def _budgets(network: str, others: dict[str, Budget] | None) -> dict[str, Budget]:
    own = {name: published(f"{network}/{short}") for name, short in _NETWORKS[network][1].items()}
    return own | (others or {})


def _layer_series(name: str, budget: Budget, values: list[float]) -> Series:
    total = f"{name}: {budget.overall:.2%} of all weights are zero, {budget.macs() / 1e6:.1f}M multiply-adds"
    places = tuple(float(i) for i in range(len(values)))
    return Series(name, places, tuple(values), notes=(total,) * len(values))


# Figure 10: hard and soft threshold, computed.


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
