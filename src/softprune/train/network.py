"""Trained weights that a run begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from softprune.core.state_file import FACTS, read_torch_file
from softprune.nn.catalog import build, example_shape
from softprune.nn.low_rank import take_ranks_
from softprune.records import CONFIG
from softprune.train.config import RunConfig
from softprune.train.data.source import Epoch, Source

PREFIX = "module."  # DataParallel's
_SHOWN = 8


def read_weights(where: str | Path, *, wanted_by: RunConfig | None = None) -> dict[str, Tensor]:
    """The plain weights of a file or of a run folder, on the CPU; what is there may come from a stranger.

    No file is unpickled beyond tensors and numbers, and no code that a run folder names is imported.

    Args:
        where: a safetensors file, such as one that ``softprune bake`` wrote; a file of torch.save with a state dict, or
            with one under "state_dict"; or a run folder, whose last whole checkpoint is taken as ``softprune bake``
            would write it, with the keys of the network before ranks are folded.
        wanted_by: the run that begins with them, on whose network the zeros of a run folder are worked out.

    Raises:
        ValueError: if there is nothing there, or something else.
    """
    path = Path(where).expanduser()
    if (path / CONFIG).is_file():
        from softprune.train.trained import plain_weights  # which makes runs, and they begin with this

        return plain_weights(path, wanted_by=wanted_by)
    if path.is_dir():
        raise ValueError(f"{path} is no run folder, since it has no {CONFIG}: name a run folder, or a file of weights")
    return _read_safetensors(path) if path.suffix == ".safetensors" else read_torch_file(path)


def initial_weights(config: RunConfig) -> dict[str, Tensor] | None:
    """The weights that a configuration names; None where it leaves them to chance."""
    if config.model.weights is None:
        return None
    try:
        return read_weights(config.model.weights, wanted_by=config)
    except ValueError as error:
        raise ValueError(f"model.weights: {error}") from error


def load_weights_(model: nn.Module, weights: Mapping[str, Tensor], *, origin: str) -> nn.Module:
    """Put weights into a network that is not managed yet; all of them fit, or none is changed.

    Args:
        model: the network.
        weights: by the network's own names, or by these behind DataParallel's ``module.``.
        origin: what an error calls them.

    Raises:
        ValueError: with the names that are missing, that the network does not have, and whose shapes differ.
    """
    model.load_state_dict(fitting(model, weights, origin=origin))
    return model


def fitting(model: nn.Module, weights: Mapping[str, Tensor], *, origin: str) -> dict[str, Tensor]:
    """The weights by the names of this network, which may be on the meta device; see `load_weights_`."""
    mine = model.state_dict()
    wrapped = all(key.startswith(PREFIX) for key in weights) and not any(key.startswith(PREFIX) for key in mine)
    given = {key.removeprefix(PREFIX) if wrapped else key: value for key, value in weights.items()}
    # Files from before batch norm counted its batches lack the counter, and torch then starts it at 0.
    missing = [key for key in mine if key not in given and not key.endswith("num_batches_tracked")]
    unknown = [key for key in given if key not in mine]
    differing = [
        f"{key} has {_shape(given[key])}, the network {_shape(value)}"
        for key, value in mine.items()
        if key in given and given[key].shape != value.shape
    ]
    problems = [
        f"{what}: {_some(names)}"
        for what, names in (("missing", missing), ("unknown to the network", unknown), ("of another shape", differing))
        if names
    ]
    if problems:
        raise ValueError(
            f"the weights of {origin} are not those of {type(model).__name__}; {'; '.join(problems)}. "
            "Check model.name and model.args, such as num_classes"
        )
    return given


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            if FACTS in (file.metadata() or {}):
                raise ValueError(
                    f"{path} is the whole state of a run, not the weights of a network: name the run folder, or write "
                    "them with softprune bake"
                )
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


# Plain networks: of a run, or of a file of weights and the name of the network.


@dataclass(frozen=True)
class PlainNetwork:
    """A module with zeros in it, and what is needed to hand it on.

    Attributes:
        module: in eval mode, on the CPU.
        example_shape: of one input, with batch 1.
        name: of the network in the catalog, or package.module:factory.
        args: keyword arguments of its factory.
        source: the data of its run; None for a file of weights.
    """

    module: nn.Module
    example_shape: tuple[int, ...]
    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None

    def inputs(self, count: int) -> Tensor:
        """As many training samples of the run's data as there are, up to a number; random ones without a run.

        The same ones each time.

        Args:
            count: at most this many.
        """
        if self.source is None:
            shape = (count, *self.example_shape[1:])
            return torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return next(self.source.train_epoch(Epoch(number=0, seed=0, batch=min(count, self.source.train_size))))[0]


def plain_network(
    where: Path, *, best: bool = False, model: str | None = None, shape: str | None = None, trust: bool = False
) -> PlainNetwork:
    """The network of a run folder, or of a file of weights.

    Args:
        where: a run folder; or a safetensors file such as `softprune bake` writes, or a state dict of torch.save.
        best: of a run the checkpoint of the best epoch, not the last one.
        model: for a file: the network, as `softprune profile` takes it.
        shape: for a file: one input, such as "1,3,224,224"; not needed for networks of the catalog.
        trust: import and call the code that the configuration of a run names.

    Returns:
        The network.

    Raises:
        ValueError: if there is no such run, checkpoint, file or network, or the weights are of another network.

    Example:
        plain_network(Path("model.safetensors"), model="resnet20").module
    """
    if (where / CONFIG).is_file():
        if model is not None or shape is not None:
            raise ValueError(f"{where} is a run, which names its network itself: leave out --model and --input")
        from softprune.train.trained import plain_run  # which makes plain networks

        return plain_run(where, best=best, trust=trust)
    if where.is_dir():
        raise ValueError(f"{where} is no run folder, since it has no {CONFIG}: name a run folder, or a file of weights")
    if not where.is_file():
        raise ValueError(f"there is no {where}: name a run folder, or a file of weights")
    if best:
        raise ValueError(f"--best chooses a checkpoint of a run, and {where} is a file of weights")
    if model is None:
        raise ValueError(f"{where} holds weights alone: name their network with --model, such as --model resnet50")
    sizes = example_shape(model, shape)
    weights = read_weights(where)
    module = load_weights_(take_ranks_(build(model), weights), weights, origin=str(where))
    return PlainNetwork(module.eval(), sizes, model)
