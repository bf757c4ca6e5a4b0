"""A chart as plain values, what is drawn and not how, and all charts of runs by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from softprune.budget.budget import Budget
from softprune.budget.costs import TensorCost
from softprune.budget.units import shared_noun
from softprune.reporting.labels import part
from softprune.reporting.reading import known, number
from softprune.reporting.run import Run

Mark = Literal["line", "step", "points", "bars"]
MOST_LINES = 60  # more cannot be told apart; of more layers some are drawn


@dataclass(frozen=True)
class Axis:
    label: str  # what it measures, with its unit
    scale: Literal["linear", "log"] = "linear"
    percent: bool = False  # values are fractions, and are written as percent
    categories: tuple[str, ...] = ()  # names of the places 0, 1, 2, ... if it counts things, such as layers
    low: float | None = None  # where it begins and ends; None to fit the values
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Values that belong together and have one entry in the legend."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]  # as many as x; one that is not finite is a gap
    mark: Mark = "line"
    spread: tuple[float, ...] = ()  # half the length of each error bar; empty for none
    notes: tuple[str, ...] = ()  # a text for each value beside its numbers; empty for none
    group: str = ""  # what shares a colour and is filtered together, such as a method; the name itself if empty
    faint: bool = False  # drawn behind the others, as a reference


@dataclass(frozen=True)
class Chart:
    """A figure; its name is that of its file and anchor, such as "layer_sparsity"."""

    name: str
    title: str
    caption: str  # what a reader sees in it, in a sentence or two
    x: Axis
    y: Axis
    series: tuple[Series, ...]  # in the order of the legend


# Charts of a whole run over time: loss, accuracy, sparsity.

EPOCHS = Axis("epochs trained")


def training_loss(runs: Sequence[Run]) -> Chart:
    caption, series = "Loss of the batch at every logged step.", _over_time(runs, "loss")
    return Chart("training_loss", "Training loss", caption, Axis("optimizer step"), Axis("training loss"), series)


def accuracy(runs: Sequence[Run]) -> Chart:
    caption = "Share of the test samples that are classified correctly, after every evaluated epoch."
    y = Axis("test accuracy", percent=True)
    return Chart("accuracy", "Accuracy", caption, EPOCHS, y, _over_time(runs, "accuracy"))


def sparsity(runs: Sequence[Run]) -> Chart:
    """Total sparsity over the epochs; the paper's figure 2. Goals are drawn faint."""
    series = _over_time(runs, "sparsity")
    last = max((x for one in series for x in one.x), default=1.0)
    goals = {known(part(run.config, "goal").get("sparsity")): run.goal for run in runs}
    lines = [
        Series(f"goal: {text}", (1.0, max(last, 2.0)), (goal, goal), faint=True)
        for goal, text in goals.items()
        if goal is not None
    ]
    caption = f"Share of all managed {shared_noun(run.units for run in runs)} that are zero."
    y = Axis("total sparsity", percent=True, low=0.0, high=1.0)
    return Chart("sparsity", "Sparsity", caption, EPOCHS, y, (*series, *lines))


def _over_time(runs: Sequence[Run], key: str) -> tuple[Series, ...]:
    """A line for each run: the loss by optimizer steps, anything else by epochs."""
    found = []
    for run, name in named(runs, key):
        if key == "loss":
            points = [(number(row.get("step")), number(row.get(key))) for row in run.steps]
        else:  # files count epochs from 0; a reader counts those that are over
            points = [(number(row.get("epoch")) + 1, number(row[key])) for row in run.epochs if key in row]
        placed = [(x, y) for x, y in points if math.isfinite(x)]
        found.append(Series(name, tuple(x for x, _ in placed), tuple(y for _, y in placed)))
    return tuple(found)


def named(runs: Sequence[Run], alone: str) -> list[tuple[Run, str]]:
    """Every run with the name of its series: ``alone`` for a single run, else its folder."""
    names = [run.name for run in runs] if len(runs) > 1 else [alone] * len(runs)
    twice = {name for name in names if names.count(name) > 1}
    return [(run, f"{run.path}" if name in twice else name) for run, name in zip(runs, names, strict=True)]


# Charts of the layers: thresholds over time, and what is left at the end.


def thresholds(runs: Sequence[Run]) -> Chart:
    """The threshold of every layer over the epochs; the paper's figure 1 shows one layer."""
    each = max(2, MOST_LINES // max(len(runs), 1))
    series = []
    for run, alone in named(runs, ""):
        if alone and not run.layers:
            series.append(Series(alone, (), ()))
        layers = list(run.layers.items())
        for tensor, rows in (layers[index] for index in evenly(len(layers), room=each)):
            name = f"{alone}: {tensor}" if alone else tensor
            xs, ys = tuple(float(row.epoch + 1) for row in rows), tuple(row.alpha for row in rows)
            series.append(Series(name, xs, ys, group=alone or tensor))
    caption = "Threshold of every layer after each evaluated epoch, from the first layer to the last."
    if any(len(run.layers) > each for run in runs):
        caption += " Some layers are drawn, evenly chosen; the table has all of them."
    return Chart("thresholds", "Thresholds over time", caption, EPOCHS, Axis("threshold"), tuple(series))


def evenly(number: int, *, room: int) -> list[int]:
    """Which of ``number`` rows to show where there is ``room`` for some: evenly spread, with the first and the last.

    Example:
        >>> evenly(9, room=3), evenly(3, room=9)
        ([0, 4, 8], [0, 1, 2])
    """
    if number <= room:
        return list(range(number))
    return sorted({round(index * (number - 1) / (max(room, 2) - 1)) for index in range(max(room, 2))})


def final_thresholds(runs: Sequence[Run]) -> Chart:
    """The last threshold of every layer; the paper's figure 3."""
    counted = shared_noun(run.units for run in runs)
    pruned = "Weights" if not any(run.words.importances for run in runs) else f"Importances of the {counted}"
    return _by_layer(
        runs,
        [(name, {t: rows[-1].alpha for t, rows in run.layers.items()}) for run, name in named(runs, "threshold")],
        name="final_thresholds",
        title="Thresholds at the end",
        caption=f"{pruned} of a layer that are smaller than its threshold are zero.",
        y=Axis("threshold", low=0.0),
    )


def layer_sparsity(runs: Sequence[Run], *, against: Sequence[Budget] = ()) -> Chart:
    """The sparsity of every layer at the end, beside other budgets; the paper's figure 6."""
    counted = shared_noun(run.units for run in runs)
    found = [(name, {t: 1 - d for t, d in last_densities(run).items()}) for run, name in named(runs, "this run")]
    found += [(b.source, {t: 1 - b[t] for t in b}) for b in against]
    return _by_layer(
        runs,
        found,
        against,
        name="layer_sparsity",
        title="Sparsity of every layer",
        caption=f"Share of the {counted} of each layer that are zero at the end, from the first layer to the last.",
        y=Axis("sparsity", percent=True, low=0.0, high=1.0),
        note=lambda cost, value: f"{(1 - value) * cost.params:,.0f} of {cost.params:,} {counted} are left",
    )


def layer_macs(runs: Sequence[Run], *, against: Sequence[Budget] = ()) -> Chart:
    """The multiply-adds that every layer costs at the end, beside other budgets; the paper's figure 7."""
    costs = tensor_costs(runs)
    found = [(name, last_macs(run)) for run, name in named(runs, "this run")]
    found += [(b.source, {t: b[t] * costs[t].macs for t in b if t in costs}) for b in against]
    return _by_layer(
        runs,
        found,
        against,
        name="layer_macs",
        title="Multiply-adds of every layer",
        caption="Multiply-adds of one forward pass that are left in each layer; what is zero is not counted.",
        y=Axis("multiply-adds left", low=0.0),
        note=lambda cost, value: f"{value / cost.macs * 100:.2f} % of {cost.macs:,}" if cost.macs else "",
    )


def tensor_costs(runs: Sequence[Run]) -> dict[str, TensorCost]:
    """Costs by tensor, as far as the runs know them; where they differ, those of the first run."""
    return {cost.name: cost for run in reversed(runs) for cost in run.profile or ()}


def last_densities(run: Run) -> Mapping[str, float]:
    """The share of every tensor that is left after the last logged epoch."""
    return {tensor: rows[-1].density for tensor, rows in run.layers.items()} or dict(run.budget or {})


def last_macs(run: Run) -> Mapping[str, float]:
    """Multiply-adds left in every tensor after the last logged epoch; none where they are not known."""
    if not run.words.costed:
        return {}
    costs = tensor_costs([run])
    kept = {name: density * costs[name].macs for name, density in (run.budget or {}).items() if name in costs}
    return {tensor: rows[-1].macs for tensor, rows in run.layers.items()} or kept


def _by_layer(
    runs: Sequence[Run],
    found: Sequence[tuple[str, Mapping[str, float]]],
    against: Sequence[Budget] = (),
    *,
    name: str,
    title: str,
    caption: str,
    y: Axis,
    note: Callable[[TensorCost, float], str] = lambda cost, value: "",
) -> Chart:
    """Values by tensor under their labels; ``note`` makes a text of each value that is known."""
    # In the order of the network, the tensors of the first run first.
    tensors = list(dict.fromkeys(tensor for one in [*map(last_densities, runs), *against] for tensor in one))
    costs = tensor_costs(runs)
    series = []
    for label, values in found:
        # Without values its place, and so its colour, stays: a run looks the same in all charts.
        points = [(tensor, values.get(tensor, math.nan)) for tensor in tensors] if values else []
        notes = tuple(note(costs[t], value) if t in costs and math.isfinite(value) else "" for t, value in points)
        # One series alone is easier to read as bars; several would be too many.
        mark: Mark = "bars" if points and len(found) == 1 else "line"
        xs, ys = tuple(map(float, range(len(points)))), tuple(value for _, value in points)
        series.append(Series(label, xs, ys, mark, notes=notes if any(notes) else ()))
    return Chart(name, title, caption, Axis("layer", categories=tuple(tensors)), y, tuple(series))


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
