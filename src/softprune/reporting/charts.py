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
    """Whether there is anything to see: over time at least two values, and thresholds that are not all 0."""
    found = [[y for y in series.y if math.isfinite(y)] for series in chart.series if not series.faint]
    if not chart.x.categories and all(len(values) < 2 for values in found):
        return False
    values = [y for values in found for y in values]
    return any(values) if "threshold" in chart.y.label else bool(values)
