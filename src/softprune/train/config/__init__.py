"""The configuration of a training run: one YAML file, checked as a whole before anything runs."""

from softprune.train.config.expected import ExpectedConfig
from softprune.train.config.goal import GoalConfig
from softprune.train.config.identity import content_hash
from softprune.train.config.learning import OptimizerConfig, ProposeConfig, ScheduleConfig
from softprune.train.config.method import MethodConfig
from softprune.train.config.problem import ConfigError, Problem
from softprune.train.config.process import CheckpointConfig, DistributedConfig, LogConfig, MlflowConfig, WandbConfig
from softprune.train.config.reference import config_schema
from softprune.train.config.rule import RuleConfig, parse_match
from softprune.train.config.run import RunConfig
from softprune.train.config.source import DataConfig, ModelConfig
from softprune.train.config.units import UnitsConfig

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
