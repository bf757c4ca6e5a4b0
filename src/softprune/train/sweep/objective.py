"""What a sweep looks for: one number of a run, or two that pull against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

ObjectiveName = Literal["accuracy", "sparsity", "params", "macs"]
Direction = Literal["maximize", "minimize"]

DIRECTIONS: dict[ObjectiveName, Direction] = {
    "accuracy": "maximize",
    "sparsity": "maximize",
    "params": "minimize",
    "macs": "minimize",
}
COUNTS: tuple[ObjectiveName, ...] = ("params", "macs")


def objective_values(metrics: Mapping[str, Any], names: Sequence[ObjectiveName]) -> list[float]:
    """The objectives of a run, from the metrics of an epoch or the last one of its result.

    A run that averages its weights is judged by the average, as its own best epoch is.

    Raises:
        ValueError: if a dense run is asked for its sparsity or its costs.

    Example:
        >>> objective_values({"accuracy": 0.9, "macs": 1000}, ["accuracy", "macs"])
        [0.9, 1000.0]
    """
    known = {**metrics, "accuracy": metrics.get("average_accuracy", metrics["accuracy"])}
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"the run has no {' and no '.join(missing)}: it is dense; search for accuracy, or set method")
    return [float(known[name]) for name in names]


def costs(values: Mapping[str, float], names: Sequence[ObjectiveName]) -> tuple[float, ...]:
    """The objectives turned so that less is better.

    Example:
        >>> costs({"accuracy": 0.9, "macs": 1000}, ["accuracy", "macs"])
        (-0.9, 1000)
    """
    return tuple(-values[name] if DIRECTIONS[name] == "maximize" else values[name] for name in names)
