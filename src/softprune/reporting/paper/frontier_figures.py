"""Figures 4 and 5: accuracy against sparsity and against FLOPs, ResNet50 on ImageNet-1K."""

from __future__ import annotations

from collections.abc import Callable

from softprune.reporting.chart import Axis, Chart, Mark, Series
from softprune.reporting.paper.printed import Printed
from softprune.reporting.paper.published_table import published_table
from softprune.reporting.paper.recount import recount

# In the order of the legend; the marks * and # of single rows (first, last layer dense) do not make a method.
METHODS = ("STR", "GMP", "DNW", "RigL", "RigL + ERK", "SNFS", "SNFS + ERK", "DPF", "DSR")
_FIRST, _LAST = 0.79, 0.995


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
    # A row without a place, because nothing is printed there, is no point.
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
