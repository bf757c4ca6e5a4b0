"""The configuration of a training run: one YAML file, checked as a whole before anything runs."""

from softprune.train.config.goal import parse_match
from softprune.train.config.run import RunConfig, config_schema, content_hash
from softprune.train.config.sections import ConfigError, LogConfig, MlflowConfig, Problem, ScheduleConfig, WandbConfig

__all__ = [
    "ConfigError",
    "LogConfig",
    "MlflowConfig",
    "Problem",
    "RunConfig",
    "ScheduleConfig",
    "WandbConfig",
    "config_schema",
    "content_hash",
    "parse_match",
]
