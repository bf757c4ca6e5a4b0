"""Charts of a whole run over time: loss, accuracy, sparsity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from softprune.reporting.chart import Axis, Chart, Series
from softprune.reporting.counting import shared_noun
from softprune.reporting.naming import section
from softprune.reporting.reading import known, number
from softprune.reporting.run import Run

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
    goals = {known(section(run.config, "goal").get("sparsity")): run.goal for run in runs}
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
