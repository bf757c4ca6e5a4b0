"""TensorBoard: event files in the run folder."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from softprune.nn.catalog import load_factory
from softprune.train.config import LogConfig, MlflowConfig, WandbConfig
from softprune.train.loggers.base import ServiceLogger, ServiceRun, layer_scalars, metric_scalars
from softprune.train.observer import Beginning, Ending, Observer, Row, Silent

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


class TensorBoardLogger(Silent):
    """Writes ``tensorboard/`` into the run folder. A continued run hides what it will log again."""

    _writer: SummaryWriter

    def on_begin(self, beginning: Beginning) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard drops everything at or after the purged step that was written before now.
        self._writer = SummaryWriter(str(beginning.folder / FOLDER), purge_step=beginning.step + 1)
        if beginning.step == 0:
            lines = "".join(f"    {line}\n" for line in beginning.config.dump().splitlines())  # indented: code
            self._writer.add_text("config", lines, global_step=0)

    def on_layers(self, rows: Sequence[Row]) -> None:
        self._write(layer_scalars(rows), int(rows[0]["step"]))

    def on_metrics(self, metrics: Row) -> None:
        self._write(metric_scalars(metrics), int(metrics["step"]))
        # A checkpoint may follow, and what was logged before it is not logged again.
        self._writer.flush()

    def on_end(self, ending: Ending) -> None:
        self._writer.close()

    def _write(self, scalars: Mapping[str, float], step: int) -> None:
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, global_step=step)


# Weights & Biases: a run in a project, online or in files to be sent later.


WANDB_FILE = "wandb.json"


class WandbLogger(ServiceLogger):
    """Logs to W&B. A continued run goes on in the same run there; what is there already is not sent again.

    Args:
        config: where to.
    """

    _run: Any

    def __init__(self, config: WandbConfig) -> None:
        super().__init__()
        self._config = config

    def on_begin(self, beginning: Beginning) -> None:
        import wandb

        self._service = ServiceRun(beginning.folder / WANDB_FILE, beginning)
        known = self._service.id
        self._run = wandb.init(
            project=self._config.project,
            entity=self._config.entity,
            mode=self._config.mode,
            id=known or secrets.token_hex(4),
            resume="allow",
            name=beginning.folder.resolve().name,
            config=beginning.config.model_dump(mode="json"),
            dir=str(beginning.folder),
            reinit="create_new",  # a run of the program around us stays as it is
        )
        self._service.remember(self._run.id)
        # Its own counter of lines must rise, and steps do not: a step and the epoch it ends share a number.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def _send(self, metrics: Row, values: Mapping[str, float]) -> None:
        where = {"step": metrics["step"], "epoch": metrics["epoch"]}
        self._run.log({**where, **values}, step=self._service.line)

    def on_end(self, ending: Ending) -> None:
        self._run.finish(exit_code=0 if ending == "finished" else 1)


# MLflow: a run in an experiment, on a server or in a data base.


MLFLOW_FILE = "mlflow.json"
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
        self._service = ServiceRun(beginning.folder / MLFLOW_FILE, beginning)
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


# The loggers that a configuration asks for.


def open_loggers(config: LogConfig) -> dict[str, Observer]:
    """The loggers by their names; nothing is written and no service called yet.

    Raises:
        ImportError: if a package is missing, with the command that installs it.
        ValueError: if a factory of your own cannot be found.
        TypeError: if what it returns is no observer.
    """
    found: dict[str, Observer] = {}
    if config.tensorboard:
        _require("tensorboard")
        found["tensorboard"] = TensorBoardLogger()
    if config.wandb is not None:
        _require("wandb")
        found["wandb"] = WandbLogger(config.wandb)
    if config.mlflow is not None:
        _require("mlflow")
        found["mlflow"] = MlflowLogger(config.mlflow)
    for name in config.own:
        made = load_factory(name)()
        if not isinstance(made, Silent):
            raise TypeError(
                f"log.own: {name!r} returned a {type(made).__name__}; return an object of a subclass of "
                "softprune.train.observer.Silent"
            )
        found[name] = made
    return found


def _require(package: str) -> None:
    found = find_spec(package)
    # A folder of that name, as W&B leaves behind where it ran, looks like a package without a file.
    if found is None or found.origin is None:
        raise ImportError(f'log.{package} needs the package {package}: pip install "softprune[{package}]"')
