"""Plain networks: of a run, or of a file of weights and the name of the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softprune.nn.catalog import build, example_shape
from softprune.nn.folding import take_ranks_
from softprune.train.data.source import Epoch, Source
from softprune.train.run_folder import CONFIG
from softprune.train.weights import load_weights_, read_weights


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
