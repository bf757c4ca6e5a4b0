"""What the values of a run are called in a logger: one rule for all of them.

    train/loss, train/lr                       a logged step
    epoch/accuracy, epoch/sparsity, ...        an epoch
    density/conv1.weight, alpha/conv1.weight   a tensor, by column of layers.csv

The last part is the key of metrics.jsonl, or the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from softprune.train.observer import Row

_GROUPS = {"step": "train", "epoch": "epoch"}
_PLACES = ("kind", "epoch", "step", "name")  # they say where a value belongs, and are none themselves


def metric_scalars(metrics: Row) -> dict[str, float]:
    """The values of a line of metrics.jsonl."""
    group = _GROUPS[str(metrics["kind"])]
    return {f"{group}/{key}": value for key, value in _values(metrics)}


def layer_scalars(rows: Sequence[Row]) -> dict[str, float]:
    """The values of the lines of an epoch in layers.csv."""
    return {f"{key}/{row['name']}": value for row in rows for key, value in _values(row)}


def _values(row: Row) -> list[tuple[str, float]]:
    # NaN and infinity are left out: each service has its own idea of them, from a refusal to the largest number.
    numbers = [(key, float(value)) for key, value in row.items() if key not in _PLACES]
    return [(key, value) for key, value in numbers if math.isfinite(value)]
