"""What a run has learnt, or a file of weights: evaluated, baked, or as a plain network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from softprune.budget.budget import Budget
from softprune.core.bake import bake
from softprune.core.sparsify import sparsify
from softprune.core.state_file import FACTS, read_torch_file, write_tensors
from softprune.methods.base import from_config
from softprune.nn.catalog import build, example_shape
from softprune.nn.low_rank import take_ranks_
from softprune.records import CONFIG
from softprune.train.assembly import (
    Assembly,
    Processes,
    assemble,
    fitting,
    join_processes,
    load_weights_,
    open_source,
    sparsify_arguments,
)
from softprune.train.checkpoints import BEST, Checkpoint, Checkpoints, load_, read_checkpoint, weights_prefix
from softprune.train.config import RunConfig
from softprune.train.data.datasets import DATA_SETS
from softprune.train.data.source import Epoch, Source
from softprune.train.run_folder import RunFolder
from softprune.train.trainer import Score, evaluate

_NO_RUN = f"{{}} is not a run folder, since it has no {CONFIG}: name a run folder, or a file of weights"
# How the name of a managed weight in a state dict differs from its plain name.
_MANAGED = re.compile(r"\.parametrizations\.([^.]+)\.original$")


def evaluate_run(folder: Path, *, best: bool = False, trust: bool = False) -> tuple[Score, Budget | None]:
    """Score and budget of a run's last whole checkpoint, or with `best` of that of the best epoch.

    With `trust` the code that the run's configuration names is imported and called.
    """
    with join_processes() as processes:
        parts, source = _load(folder, processes, best=best, trust=trust)
        score = evaluate(parts.model, source, parts)
        return score, parts.sparsifier.measure() if parts.sparsifier is not None else None


def bake_run(folder: Path, out: Path, *, best: bool = False, trust: bool = False) -> Budget | None:
    """Write the plain weights of a run to a safetensors file; returns their budget, None for a dense run.

    The keys are those of the untouched network, or of the folded one where ranks were learnt. Further arguments are
    those of `evaluate_run`.
    """
    with join_processes() as processes:
        parts, _ = _load(folder, processes, best=best, trust=trust)
        budget = parts.sparsifier.measure() if parts.sparsifier is not None else None
        model = _plain(parts)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(out, model.state_dict())
    return budget


def network_of(folder: Path, *, trust: bool = False) -> tuple[nn.Module, Tensor]:
    """The network of a run as it was built, before training, and one input."""
    config = _config(folder, trust=trust)
    return build(config.model.name, config.model.args), torch.zeros(open_source(config).example_shape)


def _config(folder: Path, *, trust: bool) -> RunConfig:
    return RunConfig.load(RunFolder.open(folder).path / CONFIG, trust=trust)


def _checkpoint(folder: Path, *, best: bool) -> Checkpoint:
    checkpoints = Checkpoints(RunFolder(folder).checkpoints)
    found = read_checkpoint(checkpoints.folder / BEST) if best else checkpoints.newest([], [])
    if found is None:
        raise ValueError(f"{folder} has no whole checkpoint yet")
    return found


def _load(folder: Path, processes: Processes, *, best: bool, trust: bool) -> tuple[Assembly, Source]:
    config = _config(folder, trust=trust)
    source = open_source(config)
    tensors, facts = _checkpoint(folder, best=best)
    parts = assemble(config, source, processes)
    if parts.sparsifier is not None:
        parts.sparsifier.load_state_dict(facts["sparsifier"])
    load_(parts.model, tensors, weights_prefix(average=parts.average is not None))
    if parts.average is not None and parts.sparsifier is not None:
        parts.sparsifier.solve()  # what was averaged since the last epoch has a total of its own
    return parts, source


def _plain(parts: Assembly) -> nn.Module:
    return bake(parts.model, at="now") if parts.sparsifier is not None else parts.model


# Plain networks: of a run, or of a file of weights and the name of the network.


@dataclass(frozen=True)
class PlainNetwork:
    """A module with zeros in it, and what is needed to hand it on."""

    module: nn.Module  # in eval mode, on the CPU
    example_shape: tuple[int, ...]  # of one input, with batch 1
    name: str  # of the network in the catalog, or package.module:factory
    args: Mapping[str, Any] = field(default_factory=dict)  # of its factory
    source: Source | None = None  # the data of its run; None for a file of weights

    def inputs(self, count: int) -> Tensor:
        """The first training samples of its run, at most `count`; without a run random ones. The same each time."""
        if self.source is None:
            shape = (count, *self.example_shape[1:])
            return torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return next(self.source.train_epoch(Epoch(number=0, seed=0, batch=min(count, self.source.train_size))))[0]


def plain_network(
    where: Path, *, best: bool = False, model: str | None = None, shape: str | None = None, trust: bool = False
) -> PlainNetwork:
    """The network of a run folder, or of a file of weights: safetensors, or a state dict of torch.save.

    A run is read as by `evaluate_run`. A file needs the name of its network, as `softprune profile` takes it, and of
    one that is not in the catalog the shape of an input, such as "1,3,224,224".
    """
    if (where / CONFIG).is_file():
        if model is not None or shape is not None:
            raise ValueError(f"{where} is a run, which names its network itself: leave out --model and --input")
        alone = Processes(rank=0, world=1, device=torch.device("cpu"))
        parts, source = _load(where, alone, best=best, trust=trust)
        named = parts.config.model
        return PlainNetwork(_plain(parts).eval(), source.example_shape, named.name, named.args, source)
    if where.is_dir():
        raise ValueError(_NO_RUN.format(where))
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


# Weights alone.


def initial_weights(config: RunConfig) -> dict[str, Tensor] | None:
    """The weights that a configuration names; None where it leaves them to chance."""
    if config.model.weights is None:
        return None
    try:
        return read_weights(config.model.weights, wanted_by=config)
    except ValueError as error:
        raise ValueError(f"model.weights: {error}") from error


def read_weights(where: str | Path, *, wanted_by: RunConfig | None = None) -> dict[str, Tensor]:
    """The plain weights of a file or of a run folder, on the CPU; what is there may come from a stranger.

    A file is a safetensors file, or one of torch.save with a state dict, also under "state_dict"; nothing is unpickled
    beyond tensors and numbers. Run folders and `wanted_by` are those of `plain_weights`.
    """
    path = Path(where).expanduser()
    if (path / CONFIG).is_file():
        return plain_weights(path, wanted_by=wanted_by)
    if path.is_dir():
        raise ValueError(_NO_RUN.format(path))
    return _read_safetensors(path) if path.suffix == ".safetensors" else read_torch_file(path)


def plain_weights(folder: Path, *, wanted_by: RunConfig | None = None) -> dict[str, Tensor]:
    """The weights of the last whole checkpoint of a run, on the CPU; every process may ask by itself.

    The keys are those of the untouched network, also where ranks were learnt: another run may begin with them.

    No code that the folder names is imported or called. The zeros are worked out on the network of `wanted_by`, the
    run that begins with the weights, and no data are opened but those of that run, where the folder names data that
    are not in the catalog. Without `wanted_by` the folder's own network is taken, and a folder that names code refused.
    """
    config = _config(folder, trust=wanted_by is not None)
    if wanted_by is not None:
        config = config.model_copy(update={"model": wanted_by.model})
    tensors, facts = _checkpoint(folder, best=False)
    prefix = weights_prefix(average=config.ema is not None)
    if config.method is None:
        return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    model = build(config.model.name, config.model.args)
    raw = {_MANAGED.sub(r".\1", key.removeprefix(prefix)): value for key, value in tensors.items()}
    fitting(model, {key: raw[key] for key in model.state_dict() if key in raw}, origin=str(folder))
    known, size = DATA_SETS.get(config.data.name), config.data.image_size
    shape = known.example_shape(image_size=size) if known else open_source(wanted_by or config).example_shape
    example = torch.zeros(shape)
    # The method is that of the checkpoint: the configuration may have left s_init to be proposed.
    method, wanted = from_config(facts["sparsifier"]["method"]), sparsify_arguments(config, model, example)
    sparsifier = sparsify(model, method, example=example, seed=config.seed, **wanted)
    sparsifier.load_state_dict(facts["sparsifier"])
    load_(model, tensors, prefix)
    if config.ema is not None:
        sparsifier.solve()
    return dict(bake(model, fold=False).state_dict())


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
