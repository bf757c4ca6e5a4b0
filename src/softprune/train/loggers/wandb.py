"""Weights & Biases: a run in a project, online or in files to be sent later."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from softprune.train.config import WandbConfig
from softprune.train.loggers.scalars import layer_scalars, metric_scalars
from softprune.train.loggers.service_run import ServiceRun
from softprune.train.observer import Beginning, Ending, Row, Silent

FILE = "wandb.json"


class WandbLogger(Silent):
    """Logs to W&B. A continued run goes on in the same run there; what is there already is not sent again.

    Args:
        config: where to.
    """

    _run: Any
    _service: ServiceRun

    def __init__(self, config: WandbConfig) -> None:
        self._config = config
        self._layers: dict[str, float] = {}

    def on_begin(self, beginning: Beginning) -> None:
        import wandb

        self._service = ServiceRun(beginning.folder / FILE, beginning)
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

    def on_layers(self, rows: Sequence[Row]) -> None:
        self._layers = layer_scalars(rows)

    def on_metrics(self, metrics: Row) -> None:
        values = metric_scalars(metrics)
        if metrics["kind"] == "epoch":
            values, self._layers = {**values, **self._layers}, {}
        if self._service.is_news():
            where = {"step": metrics["step"], "epoch": metrics["epoch"]}
            self._run.log({**where, **values}, step=self._service.line)

    def on_end(self, ending: Ending) -> None:
        self._run.finish(exit_code=0 if ending == "finished" else 1)
