"""What a run has left: its weights evaluated, baked, and its last thresholds."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from softprune.budget.budget import Budget
from softprune.core.bake import bake
from softprune.core.sparsify import sparsify
from softprune.core.state_file import write_tensors
from softprune.methods.registry import from_config
from softprune.nn.catalog import build
from softprune.records import CONFIG
from softprune.train.assembly import Assembly, aims_of, assemble, selection
from softprune.train.checkpoints import BEST, Checkpoint, Checkpoints, load_weights, read_checkpoint, weights_prefix
from softprune.train.config import RunConfig
from softprune.train.config.sections import is_factory
from softprune.train.data.catalog import known_shape
from softprune.train.data.source import Source
from softprune.train.network import PlainNetwork, fitting
from softprune.train.processes import Processes, join_processes
from softprune.train.run import open_source
from softprune.train.run_folder import RunFolder
from softprune.train.schedule import stretch
from softprune.train.trainer import Score, evaluate

# How the name of a managed weight in a state dict differs from its plain name.
_MANAGED = re.compile(r"\.parametrizations\.([^.]+)\.original$")


def evaluate_run(folder: Path, *, best: bool = False, trust: bool = False) -> tuple[Score, Budget | None]:
    """Score and budget of a run's last whole checkpoint, or of its best.

    Args:
        folder: a run folder.
        best: take the checkpoint of the best epoch.
        trust: import and call the code that the run's configuration names.
    """
    config = _config(folder, trust=trust)
    source = open_source(config)
    with join_processes() as processes:
        parts = _load(folder, config, source, processes, best=best)
        score = evaluate(parts.model, source, config, processes)
        budget = parts.sparsifier.measure() if parts.sparsifier is not None else None
    return score, budget


def bake_run(folder: Path, out: Path, *, best: bool = False, trust: bool = False) -> Budget | None:
    """Write the plain weights of a run to a safetensors file.

    The keys are those of the untouched network. Of ranks that were learnt they are those of the folded one.

    Args:
        folder: a run folder.
        out: the file.
        best: take the checkpoint of the best epoch.
        trust: import and call the code that the run's configuration names.

    Returns:
        The budget of what was written; None for a dense run.
    """
    config = _config(folder, trust=trust)
    with join_processes() as processes:
        parts = _load(folder, config, open_source(config), processes, best=best)
        budget = parts.sparsifier.measure() if parts.sparsifier is not None else None
        model = _plain(parts)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(out, model.state_dict())
    return budget


def plain_weights(folder: Path, *, wanted_by: RunConfig | None = None) -> dict[str, Tensor]:
    """The weights of the last whole checkpoint, on the CPU; every process may ask by itself.

    The keys are those of the untouched network, also where ranks were learnt: another run may begin with them.

    No code that the folder names is imported or called. The zeros are worked out on the network of the run that wants
    the weights, and the data are not opened, but for those of that run where the folder's are of somebody's own.

    Args:
        folder: a run folder; it may come from a stranger.
        wanted_by: the run that will begin with them; None for the network of the folder, if it is in the catalog.

    Raises:
        ValueError: if there is no whole checkpoint, if it is of another network, or if without `wanted_by` the folder
            names code.
    """
    config = _config(folder, trust=wanted_by is not None)
    if wanted_by is not None:
        config = config.model_copy(update={"model": wanted_by.model})
    tensors, facts = _checkpoint(folder, config, best=False)
    prefix = weights_prefix(average=config.ema is not None)
    if config.method is None:
        return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    model = build(config.model.name, config.model.args)
    raw = {_MANAGED.sub(r".\1", key.removeprefix(prefix)): value for key, value in tensors.items()}
    fitting(model, {key: raw[key] for key in model.state_dict() if key in raw}, origin=str(folder))
    if not is_factory(config.data.name):
        shape = known_shape(config.data.name, image_size=config.data.image_size)
    else:
        shape = open_source(wanted_by or config).example_shape
    example, (skip, rules) = torch.zeros(shape), selection(config)
    # The method is that of the checkpoint: the configuration may have left s_init to be proposed.
    sparsifier = sparsify(
        model, from_config(facts["sparsifier"]["method"]), units=config.units.build(), skip=skip, rules=rules,
        example=example, seed=config.seed, **aims_of(config, model, example),
    )  # fmt: skip
    sparsifier.load_state_dict(facts["sparsifier"])
    load_weights(model, tensors, average=config.ema is not None)
    if config.ema is not None:
        sparsifier.solve()
    return dict(bake(model, fold=False).state_dict())


def plain_run(folder: Path, *, best: bool = False, trust: bool = False) -> PlainNetwork:
    """The network of a run's last whole checkpoint, or of its best, as a plain module on the CPU.

    Args:
        folder: a run folder.
        best: take the checkpoint of the best epoch.
        trust: import and call the code that the run's configuration names.

    Raises:
        ValueError: if there is no such checkpoint, or the configuration names code and is not trusted.
    """
    config = _config(folder, trust=trust)
    alone = Processes(rank=0, world=1, device=torch.device("cpu"))
    source = open_source(config)
    parts = _load(folder, config, source, alone, best=best)
    module = _plain(parts).eval()
    return PlainNetwork(module, source.example_shape, config.model.name, config.model.args, source)


def network_of(folder: Path, *, trust: bool = False) -> tuple[nn.Module, Tensor]:
    """The network of a run as it was built, without what it has learnt, and one input."""
    config = _config(folder, trust=trust)
    return build(config.model.name, config.model.args), torch.zeros(open_source(config).example_shape)


def _config(folder: Path, *, trust: bool) -> RunConfig:
    return RunConfig.load(RunFolder.open(folder).path / CONFIG, trust=trust)


def _plain(parts: Assembly) -> nn.Module:
    return bake(parts.model, at="now") if parts.sparsifier is not None else parts.model


def last_thresholds(folder: Path) -> dict[str, float]:
    """Threshold of every tensor in the last epoch of layers.csv."""
    return RunFolder(folder).thresholds()


def _checkpoint(folder: Path, config: RunConfig, *, best: bool) -> Checkpoint:
    checkpoints = Checkpoints(RunFolder(folder).checkpoints, keep=config.checkpoint.keep)
    notes: list[str] = []
    found = read_checkpoint(checkpoints.folder / BEST) if best else checkpoints.newest(notes)
    if found is None:
        raise ValueError(f"{folder} has no whole checkpoint yet")
    return found


def _load(folder: Path, config: RunConfig, source: Source, processes: Processes, *, best: bool) -> Assembly:
    tensors, facts = _checkpoint(folder, config, best=best)
    parts = assemble(
        stretch(config),
        example_shape=source.example_shape,
        steps_per_epoch=source.steps(config.batch, drop_last=config.drop_last),
        processes=processes,
    )
    if parts.sparsifier is not None:
        parts.sparsifier.load_state_dict(facts["sparsifier"])
    load_weights(parts.model, tensors, average=parts.average is not None)
    if parts.average is not None and parts.sparsifier is not None:
        parts.sparsifier.solve()  # what was averaged since the last epoch has a total of its own
    return parts
