"""The configuration of a training run: one YAML file, checked as a whole before anything runs."""

from softprune.train.config.goal import GoalConfig, RuleConfig, parse_match
from softprune.train.config.method import MethodConfig
from softprune.train.config.reference import config_schema
from softprune.train.config.run import RunConfig, content_hash
from softprune.train.config.sections import (
    CheckpointConfig,
    ConfigError,
    DataConfig,
    DistributedConfig,
    ExpectedConfig,
    LogConfig,
    MlflowConfig,
    ModelConfig,
    OptimizerConfig,
    Problem,
    ProposeConfig,
    ScheduleConfig,
    UnitsConfig,
    WandbConfig,
)

__all__ = [
    "CheckpointConfig",
    "ConfigError",
    "DataConfig",
    "DistributedConfig",
    "ExpectedConfig",
    "GoalConfig",
    "LogConfig",
    "MethodConfig",
    "MlflowConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Problem",
    "ProposeConfig",
    "RuleConfig",
    "RunConfig",
    "ScheduleConfig",
    "UnitsConfig",
    "WandbConfig",
    "config_schema",
    "content_hash",
    "parse_match",
]
