"""How the run is carried out, apart from what it computes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from softprune.train.config.section import Count, Section


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


class LogConfig(Section):
    """What is written while training."""

    every_steps: Count = Field(default=50, description="Optimizer steps between lines of metrics.jsonl.")
    tensorboard: bool = Field(default=False, description="Also write TensorBoard files.")
