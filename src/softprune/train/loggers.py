"""Loggers: observers that carry a run to TensorBoard, to a service, or to a place of your own.

One rule says what values are called in all of them; the last part is the key of metrics.jsonl, or the tensor:

    train/loss, train/lr                       a logged step
    epoch/accuracy, epoch/sparsity, ...        an epoch
    density/conv1.weight, alpha/conv1.weight   a tensor, by column of layers.csv
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from softprune.nn.catalog import load_factory
from softprune.records import parse_json, read_text, require_format, write_text
from softprune.train.config import LogConfig, MlflowConfig, WandbConfig
from softprune.train.observer import Beginning, Ending, Observer, Row

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
WANDB_FILE, MLFLOW_FILE = "wandb.json", "mlflow.json"
FORMAT, VERSION = "softprune-service-run", 1  # of these two

_GROUPS = {"step": "train", "epoch": "epoch"}
_PLACES = ("kind", "epoch", "step", "name")  # they say where a value belongs, and are not values
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}  # of MLflow
# What one request to MLflow may hold, and a parameter in characters on the oldest servers.
_MOST_PARAMS, _MOST_METRICS, _LONGEST_PARAM = 100, 1000, 500


def open_loggers(config: LogConfig) -> dict[str, Observer]:
    """The loggers by their names; refuses what is not installed, and nothing is written and no service called yet."""
    found: dict[str, Observer] = {}
    if config.tensorboard:
        found["tensorboard"] = TensorBoardLogger()
    if config.wandb is not None:
        found["wandb"] = ServiceLogger(WANDB_FILE, Wandb(config.wandb))
    if config.mlflow is not None:
        found["mlflow"] = ServiceLogger(MLFLOW_FILE, Mlflow(config.mlflow))
    for package in found:
        module = find_spec(package)
        # A folder of that name, as W&B leaves behind where it ran, looks like a package without a file.
        if module is None or module.origin is None:
            raise ImportError(f'log.{package} needs the package {package}: pip install "softprune[{package}]"')
    for name in config.own:
        made = load_factory(name)()
        if not isinstance(made, Observer):
            raise TypeError(
                f"log.own: {name!r} returned a {type(made).__name__}; return an object of a subclass of "
                "softprune.train.observer.Silent"
            )
        found[name] = made
    return found


def metric_scalars(metrics: Row) -> dict[str, float]:
    group = _GROUPS[str(metrics["kind"])]
    return {f"{group}/{key}": value for key, value in _values(metrics)}


def layer_scalars(rows: Sequence[Row]) -> dict[str, float]:
    return {f"{key}/{row['name']}": value for row in rows for key, value in _values(row)}


def _values(row: Row) -> list[tuple[str, float]]:
    # NaN and infinity are left out: each service has its own idea of them, from a refusal to the largest number.
    numbers = [(key, float(value)) for key, value in row.items() if key not in _PLACES]
    return [(key, value) for key, value in numbers if math.isfinite(value)]


class TensorBoardLogger(Observer):
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


class ServiceLogger(Observer):
    """Sends every line of metrics.jsonl once to a service, those of an epoch with the values of its layers.

    A continued run goes on in the same run of the service, whose id is in `file`, in the run folder. It logs again what
    came after its checkpoint, the same values bit for bit; lines that the service has are passed over.
    """

    def __init__(self, file: str, service: Wandb | Mlflow) -> None:
        self._file, self._service = file, service
        self._layers: dict[str, float] = {}

    def on_begin(self, beginning: Beginning) -> None:
        file, known = beginning.folder / self._file, None
        self._line, self._sent = beginning.kept, 0
        if file.is_file():
            remembered = parse_json(read_text(file), str(file))
            require_format(remembered, FORMAT, version=VERSION, origin=str(file))
            known, self._sent = remembered["id"], max(beginning.logged, remembered["sent"])
        facts = {"format": FORMAT, "version": VERSION, "id": self._service.open(beginning, known), "sent": self._sent}
        # Once is enough: lines that follow are counted by metrics.jsonl.
        write_text(file, json.dumps(facts, indent=2) + "\n")

    def on_layers(self, rows: Sequence[Row]) -> None:
        self._layers = layer_scalars(rows)

    def on_metrics(self, metrics: Row) -> None:
        values = metric_scalars(metrics)
        if metrics["kind"] == "epoch":
            values, self._layers = {**values, **self._layers}, {}
        self._line += 1
        if self._line > self._sent:
            self._service.send(metrics, values, line=self._line)

    def on_end(self, ending: Ending) -> None:
        self._service.close(ending)


class Wandb:
    """A project of Weights & Biases, online or in files to be sent later."""

    def __init__(self, config: WandbConfig) -> None:
        self._config = config

    def open(self, beginning: Beginning, known: str | None) -> str:
        """Go on with the run of this id, or begin one; returns its id."""
        import wandb

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
        # Its own counter of lines must rise, and steps do not: a step and the epoch it ends share a number.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return self._run.id

    def send(self, metrics: Row, values: Mapping[str, float], *, line: int) -> None:
        self._run.log({"step": metrics["step"], "epoch": metrics["epoch"], **values}, step=line)

    def close(self, ending: Ending) -> None:
        self._run.finish(exit_code=0 if ending == "finished" else 1)


class Mlflow:
    """An experiment of MLflow, on a server or in a data base."""

    def __init__(self, config: MlflowConfig) -> None:
        self._config = config

    def open(self, beginning: Beginning, known: str | None) -> str:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        # The client and not mlflow.start_run(): it leaves the runs of the program around us alone.
        self._client = client = MlflowClient(self._config.tracking_uri)
        if known is not None:
            self._id = known
            client.update_run(self._id, status="RUNNING")
        else:
            name = self._config.experiment
            found = client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else client.create_experiment(name)
            self._id = client.create_run(experiment, run_name=beginning.folder.resolve().name).info.run_id
            settings = _flat(beginning.config.model_dump(mode="json"))
            params = [Param(key, str(value)[:_LONGEST_PARAM]) for key, value in settings]
            for start in range(0, len(params), _MOST_PARAMS):
                client.log_batch(self._id, params=params[start : start + _MOST_PARAMS])
        return self._id

    def send(self, metrics: Row, values: Mapping[str, float], *, line: int) -> None:
        from mlflow.entities import Metric

        now, step = int(1000 * time.time()), int(metrics["step"])
        batch = [Metric(tag, value, now, step) for tag, value in values.items()]
        for start in range(0, len(batch), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=batch[start : start + _MOST_METRICS])

    def close(self, ending: Ending) -> None:
        self._client.set_terminated(self._id, _STATUS[ending])


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by their dotted paths, as a configuration is overridden."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
