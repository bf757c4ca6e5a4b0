"""How the run is carried out, apart from what it computes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic_core import CoreSchema

from softprune.train.config.section import FROM_LIST, Count, Section, is_factory


class DistributedConfig(Section):
    """Several processes, started by torchrun."""

    strategy: Literal["ddp", "fsdp"] = Field(
        default="ddp", description="ddp copies the model to every process, fsdp shards it."
    )
    sync_batchnorm: bool = Field(default=False, description="Batch statistics over all processes.")


class CheckpointConfig(Section):
    """When the state is written."""

    every_steps: Count | None = Field(default=None, description="Optimizer steps between checkpoints; null for none.")
    every_epochs: Count | None = Field(default=1, description="Epochs between checkpoints; null for none.")
    keep: Count = Field(default=2, description="Checkpoints to keep; older ones are deleted.")


class Service(Section):
    """Somewhere to log to; ``true`` is short for all its defaults."""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        return {} if data is True else data

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        long = handler.resolve_ref_schema(handler(core))
        return {"anyOf": [{"type": "boolean", "description": "Short form: with every default, or not at all."}, long]}


class WandbConfig(Service):
    """A run in Weights & Biases."""

    project: str = Field(
        default="softprune", description="Project in W&B. Any key of log.wandb, or log.wandb=true, logs there."
    )
    entity: str | None = Field(default=None, description="User or team in W&B; null for your own default.")
    mode: Literal["online", "offline"] | None = Field(
        default=None,
        description="offline writes files for `wandb sync` to send; null is up to WANDB_MODE, else online.",
    )


class MlflowConfig(Service):
    """A run in MLflow."""

    experiment: str = Field(
        default="softprune", description="Experiment in MLflow. Any key of log.mlflow, or log.mlflow=true, logs there."
    )
    tracking_uri: str | None = Field(
        default=None,
        description="Server or data base, such as sqlite:///mlflow.db; null is up to MLFLOW_TRACKING_URI.",
    )


class LogConfig(Section):
    """What is written while training."""

    every_steps: Count = Field(default=50, description="Optimizer steps between lines of metrics.jsonl.")
    tensorboard: bool = Field(default=False, description="Also write TensorBoard files, into the run folder.")
    wandb: WandbConfig | None = Field(default=None, description="Also log to Weights & Biases.")
    mlflow: MlflowConfig | None = Field(default=None, description="Also log to MLflow.")
    own: Annotated[tuple[str, ...], FROM_LIST] = Field(
        default=(), description="Loggers of your own, package.module:factory each; a factory returns an Observer."
    )

    @field_validator("wandb", "mlflow", mode="before")
    @classmethod
    def _switched_off(cls, given: Any) -> Any:
        return None if given is False else given

    @field_validator("own")
    @classmethod
    def _factories(cls, own: tuple[str, ...]) -> tuple[str, ...]:
        for name in own:
            if not is_factory(name):
                raise ValueError(f"{name!r} is not of the form package.module:factory")
        return own
