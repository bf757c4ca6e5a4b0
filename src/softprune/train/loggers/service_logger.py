"""What loggers to a service have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from softprune.train.loggers.scalars import layer_scalars, metric_scalars
from softprune.train.loggers.service_run import ServiceRun
from softprune.train.observer import Row, Silent


class ServiceLogger(Silent):
    """Sends every line of metrics.jsonl once, those of an epoch with the values of its layers.

    A subclass sets `_service` when the run begins.
    """

    _service: ServiceRun

    def __init__(self) -> None:
        self._layers: dict[str, float] = {}

    def on_layers(self, rows: Sequence[Row]) -> None:
        self._layers = layer_scalars(rows)

    def on_metrics(self, metrics: Row) -> None:
        values = metric_scalars(metrics)
        if metrics["kind"] == "epoch":
            values, self._layers = {**values, **self._layers}, {}
        if self._service.is_news():
            self._send(metrics, values)

    @abstractmethod
    def _send(self, metrics: Row, values: Mapping[str, float]) -> None:
        """Tell the service the values of one line."""
