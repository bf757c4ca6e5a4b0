"""Weights & Biases: a run in a project, online or in files to be sent later."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from softprune.train.config import WandbConfig
from softprune.train.loggers.service_logger import ServiceLogger
from softprune.train.loggers.service_run import ServiceRun
from softprune.train.observer import Beginning, Ending, Row

FILE = "wandb.json"


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

    def _send(self, metrics: Row, values: Mapping[str, float]) -> None:
        where = {"step": metrics["step"], "epoch": metrics["epoch"]}
        self._run.log({**where, **values}, step=self._service.line)

    def on_end(self, ending: Ending) -> None:
        self._run.finish(exit_code=0 if ending == "finished" else 1)
