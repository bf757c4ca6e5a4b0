"""All charts of runs by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from softprune.reporting.chart import Chart
from softprune.reporting.curves import accuracy, sparsity, training_loss
from softprune.reporting.layerwise import final_thresholds, layer_macs, layer_sparsity, thresholds
from softprune.reporting.run import Run

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
    """Whether there is anything to see: a value, and in a chart of thresholds one that is not 0."""
    values = [y for series in chart.series if not series.faint for y in series.y if math.isfinite(y)]
    return any(values) if "threshold" in chart.y.label else bool(values)
