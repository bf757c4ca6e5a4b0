"""A chart as plain values, what is drawn and not how, and all charts of runs by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from softprune.budget.budget import Budget
from softprune.budget.costs import TensorCost
from softprune.budget.show import WEIGHT
from softprune.reporting.labels import part, shared_noun
from softprune.reporting.reading import known, number
from softprune.reporting.run import LayerRow, Run

Mark = Literal["line", "step", "points", "bars"]
NAN = float("nan")
# More lines than this cannot be told apart; of more layers some are drawn.
MOST_LINES = 60


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


# Charts of a whole run over time: loss, accuracy, sparsity.

EPOCHS = Axis("epochs trained")


def training_loss(runs: Sequence[Run]) -> Chart:
    """The loss of the training batches, as logged."""
    return Chart(
        name="training_loss",
        title="Training loss",
        caption="Loss of the batch at every logged step.",
        x=Axis("optimizer step"),
        y=Axis("training loss"),
        series=tuple(
            _series(name, ((number(row.get("step")), number(row.get("loss"))) for row in run.steps))
            for run, name in named(runs, "loss")
        ),
    )


def accuracy(runs: Sequence[Run]) -> Chart:
    """Test accuracy after every evaluated epoch."""
    return Chart(
        name="accuracy",
        title="Accuracy",
        caption="Share of the test samples that are classified correctly, after every evaluated epoch.",
        x=EPOCHS,
        y=Axis("test accuracy", percent=True),
        series=tuple(_series(name, _by_epoch(run.epochs, "accuracy")) for run, name in named(runs, "accuracy")),
    )


def sparsity(runs: Sequence[Run]) -> Chart:
    """Total sparsity over the epochs; the paper's figure 2. Goals are drawn faint."""
    series = [_series(name, _by_epoch(run.epochs, "sparsity")) for run, name in named(runs, "sparsity")]
    last = max((x for one in series for x in one.x), default=1.0)
    goals = {known(part(run.config, "goal").get("sparsity")): run.goal for run in runs}
    lines = [
        Series(f"goal: {text}", (1.0, max(last, 2.0)), (goal, goal), faint=True)
        for goal, text in goals.items()
        if goal is not None
    ]
    return Chart(
        name="sparsity",
        title="Sparsity",
        caption=f"Share of all managed {shared_noun(run.units for run in runs)} that are zero.",
        x=EPOCHS,
        y=Axis("total sparsity", percent=True, low=0.0, high=1.0),
        series=(*series, *lines),
    )


def named(runs: Sequence[Run], alone: str) -> list[tuple[Run, str]]:
    """Every run with the name of its series: what is measured for one run, the folders for several."""
    names = [run.name for run in runs] if len(runs) > 1 else [alone] * len(runs)
    twice = {name for name in names if names.count(name) > 1}
    return [(run, f"{run.path}" if name in twice else name) for run, name in zip(runs, names, strict=True)]


def _by_epoch(rows: Sequence[Mapping[str, Any]], key: str) -> Iterable[tuple[float, float]]:
    # Files count epochs from 0; a reader counts those that are over.
    return ((number(row.get("epoch")) + 1, number(row[key])) for row in rows if key in row)


def _series(name: str, points: Iterable[tuple[float, float]]) -> Series:
    placed = [(x, y) for x, y in points if math.isfinite(x)]
    return Series(name, tuple(x for x, _ in placed), tuple(y for _, y in placed))


# Charts of the layers: their thresholds over time, and what each of them keeps at the end.


def thresholds(runs: Sequence[Run]) -> Chart:
    """The threshold of every layer over the epochs; the paper's figure 1 shows one layer."""
    each = max(1, MOST_LINES // max(len(runs), 1))
    series = []
    left_out = False
    for run, alone in named(runs, ""):
        tensors = list(run.layers)
        some = [tensors[place] for place in evenly(len(tensors), room=each)]
        if not some and alone:
            series.append(Series(alone, (), ()))
        left_out |= len(some) < len(run.layers)
        for tensor in some:
            rows = run.layers[tensor]
            name = f"{alone}: {tensor}" if alone else tensor
            xs, ys = tuple(float(row.epoch + 1) for row in rows), tuple(row.alpha for row in rows)
            series.append(Series(name, xs, ys, group=alone or tensor))
    more = " Some layers are drawn, evenly chosen; the table has all of them." if left_out else ""
    return Chart(
        name="thresholds",
        title="Thresholds over time",
        caption=f"Threshold of every layer after each evaluated epoch, from the first layer to the last.{more}",
        x=EPOCHS,
        y=Axis("threshold"),
        series=tuple(series),
    )


def evenly(number: int, *, room: int) -> list[int]:
    """Which of ``number`` places to show where there is room for some: evenly spread, the first and the last too.

    Example:
        >>> evenly(9, room=3), evenly(3, room=9)
        ([0, 4, 8], [0, 1, 2])
    """
    if number <= room:
        return list(range(number))
    return sorted({round(place * (number - 1) / (max(room, 2) - 1)) for place in range(max(room, 2))})


def final_thresholds(runs: Sequence[Run]) -> Chart:
    """The last threshold of every layer; the paper's figure 3."""
    return _by_layer(
        "final_thresholds",
        [
            (name, {tensor: rows[-1].alpha for tensor, rows in run.layers.items()})
            for run, name in named(runs, "threshold")
        ],
        title="Thresholds at the end",
        caption=f"{_what(runs)} of a layer that are smaller than its threshold are zero.",
        y=Axis("threshold", low=0.0),
        tensors=tensor_names(runs),
    )


def layer_sparsity(runs: Sequence[Run], *, against: Sequence[Budget] = ()) -> Chart:
    """What every layer gives up at the end, beside other budgets; the paper's figure 6."""
    costs, counted = tensor_costs(runs), shared_noun(run.units for run in runs)
    found = [(name, {t: 1 - d for t, d in last_densities(run).items()}) for run, name in named(runs, "this run")]
    found += [(b.source, {t: 1 - b[t] for t in b}) for b in against]
    return _by_layer(
        "layer_sparsity",
        found,
        title="Sparsity of every layer",
        caption=f"Share of the {counted} of each layer that are zero at the end, from the first layer to the last.",
        y=Axis("sparsity", percent=True, low=0.0, high=1.0),
        tensors=tensor_names(runs, against),
        notes=lambda tensor, value: _kept(costs.get(tensor), value, counted),
    )


def layer_macs(runs: Sequence[Run], *, against: Sequence[Budget] = ()) -> Chart:
    """The multiply-adds that every layer costs at the end, beside other budgets; the paper's figure 7."""
    costs = tensor_costs(runs)
    found = [(name, last_macs(run)) for run, name in named(runs, "this run")]
    found += [(b.source, {t: b[t] * costs[t].macs for t in b if t in costs}) for b in against]
    return _by_layer(
        "layer_macs",
        found,
        title="Multiply-adds of every layer",
        caption="Multiply-adds of one forward pass that are left in each layer; what is zero is not counted.",
        y=Axis("multiply-adds left", low=0.0),
        tensors=tensor_names(runs, against),
        notes=lambda tensor, value: _of_dense(costs.get(tensor), value),
    )


def tensor_names(runs: Sequence[Run], against: Sequence[Budget] = ()) -> list[str]:
    """All tensors in the order of the network, those of the first run first."""
    return list(dict.fromkeys(name for one in [*map(last_densities, runs), *against] for name in one))


def tensor_costs(runs: Sequence[Run]) -> dict[str, TensorCost]:
    """Shapes and multiply-adds by tensor, as far as the runs know them; of two runs the first is asked."""
    profiles = [run.budget.profile for run in reversed(runs) if run.budget is not None]
    return {cost.name: cost for profile in profiles if profile is not None for cost in profile}


def last_densities(run: Run) -> Mapping[str, float]:
    """What every tensor keeps at the end of the last logged epoch."""
    return _last(run, lambda row: row.density) or dict(run.budget or {})


def last_macs(run: Run) -> Mapping[str, float]:
    """Multiply-adds left in every tensor at the end of the last logged epoch; none where they are not known."""
    if run.units != WEIGHT:
        return {}
    costs = tensor_costs([run])
    kept = {name: density * costs[name].macs for name, density in (run.budget or {}).items() if name in costs}
    return _last(run, lambda row: row.macs) or kept


def _last(run: Run, value: Callable[[LayerRow], float]) -> dict[str, float]:
    return {tensor: value(rows[-1]) for tensor, rows in run.layers.items()}


def _by_layer(
    name: str,
    found: Iterable[tuple[str, Mapping[str, float]]],
    *,
    title: str,
    caption: str,
    y: Axis,
    tensors: Sequence[str],
    notes: Callable[[str, float], str] = lambda tensor, value: "",
) -> Chart:
    rows = list(found)
    places = tuple(map(float, range(len(tensors))))
    series = []
    for label, values in rows:
        if not values:
            # Its place, and so its colour, stays: a run looks the same in all charts.
            series.append(Series(label, (), ()))
            continue
        ys = tuple(values.get(tensor, NAN) for tensor in tensors)
        texts = tuple(notes(tensor, value) for tensor, value in zip(tensors, ys, strict=True))
        # One series alone is easier to read as bars; several would be a fence.
        mark: Mark = "bars" if len(rows) == 1 else "line"
        series.append(Series(label, places, ys, mark=mark, notes=texts if any(texts) else ()))
    return Chart(name, title, caption, Axis("layer", categories=tuple(tensors)), y, tuple(series))


def _what(runs: Sequence[Run]) -> str:
    """What the thresholds of these runs prune, in the plural."""
    if all(run.units == WEIGHT for run in runs):
        return "Weights"
    return f"Importances of the {shared_noun(run.units for run in runs)}"


def _kept(cost: TensorCost | None, sparsity: float, what: str) -> str:
    if cost is None or not math.isfinite(sparsity):
        return ""
    return f"{(1 - sparsity) * cost.params:,.0f} of {cost.params:,} {what} are left"


def _of_dense(cost: TensorCost | None, macs: float) -> str:
    if cost is None or not cost.macs or not math.isfinite(macs):
        return ""
    return f"{macs / cost.macs * 100:.2f} % of {cost.macs:,}"


CHARTS: dict[str, Callable[[Sequence[Run]], Chart]] = {
    "training_loss": training_loss,
    "accuracy": accuracy,
    "sparsity": sparsity,
    "thresholds": thresholds,
    "final_thresholds": final_thresholds,
    "layer_sparsity": layer_sparsity,
    "layer_macs": layer_macs,
}


def tells_something(chart: Chart) -> bool:
    """Whether there is anything to see: over time at least two values, and thresholds that are not all 0."""
    found = [[y for y in series.y if math.isfinite(y)] for series in chart.series if not series.faint]
    if not chart.x.categories and all(len(values) < 2 for values in found):
        return False
    values = [y for values in found for y in values]
    return any(values) if "threshold" in chart.y.label else bool(values)
