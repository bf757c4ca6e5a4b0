"""The loggers that a configuration asks for."""

from __future__ import annotations

from importlib.util import find_spec

from softprune.nn.catalog import load_factory
from softprune.train.config import LogConfig
from softprune.train.loggers.mlflow import MlflowLogger
from softprune.train.loggers.tensorboard import TensorBoardLogger
from softprune.train.loggers.wandb import WandbLogger
from softprune.train.observer import Observer, Silent


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
