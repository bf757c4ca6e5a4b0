"""MLflow: a run in an experiment, on a server or in a data base."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from softprune.train.config import MlflowConfig
from softprune.train.loggers.service_logger import ServiceLogger
from softprune.train.loggers.service_run import ServiceRun
from softprune.train.observer import Beginning, Ending, Row

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

FILE = "mlflow.json"
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
# What one request may hold.
_PARAMS, _METRICS = 100, 1000
_VALUE = 500  # characters of a parameter, in the oldest servers


class MlflowLogger(ServiceLogger):
    """Logs to MLflow. A continued run goes on in the same run there; what is there already is not sent again.

    Args:
        config: where to.
    """

    _client: MlflowClient

    def __init__(self, config: MlflowConfig) -> None:
        super().__init__()
        self._config = config

    def on_begin(self, beginning: Beginning) -> None:
        from mlflow.tracking import MlflowClient

        # The client and not mlflow.start_run(): it leaves the runs of the program around us alone.
        self._client = MlflowClient(self._config.tracking_uri)
        self._service = ServiceRun(beginning.folder / FILE, beginning)
        if self._service.id is None:
            self._create(beginning)
        else:
            self._client.update_run(self._service.id, status="RUNNING")
            self._service.remember(self._service.id)

    def _create(self, beginning: Beginning) -> None:
        from mlflow.entities import Param

        name = self._config.experiment
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        run_id = self._client.create_run(experiment, run_name=beginning.folder.resolve().name).info.run_id
        params = [Param(key, str(value)[:_VALUE]) for key, value in _flat(beginning.config.model_dump(mode="json"))]
        for start in range(0, len(params), _PARAMS):
            self._client.log_batch(run_id, params=params[start : start + _PARAMS])
        self._service.remember(run_id)

    def _send(self, metrics: Row, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now, step = int(1000 * time.time()), int(metrics["step"])
        batch = [Metric(tag, value, now, step) for tag, value in values.items()]
        assert self._service.id is not None
        for start in range(0, len(batch), _METRICS):
            self._client.log_batch(self._service.id, metrics=batch[start : start + _METRICS])

    def on_end(self, ending: Ending) -> None:
        assert self._service.id is not None
        self._client.set_terminated(self._service.id, _STATUS[ending])


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by their dotted paths, as a configuration is overridden."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
