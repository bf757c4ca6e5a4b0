"""What a run has left: its weights evaluated, baked, and its last thresholds."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import Tensor, nn

from softprune.budget.budget import Budget
from softprune.core.bake import bake
from softprune.core.state_file import write_tensors
from softprune.nn.catalog import build
from softprune.train.assembly import Assembly, assemble
from softprune.train.checkpoints import BEST, Checkpoints, load_weights, read_checkpoint
from softprune.train.config import RunConfig
from softprune.train.data.source import Source
from softprune.train.evaluation import Score, evaluate
from softprune.train.length import stretch
from softprune.train.plain import PlainNetwork
from softprune.train.processes import Processes, join_processes
from softprune.train.run import open_source
from softprune.train.run_folder import CONFIG, LAYERS, RunFolder


def evaluate_run(folder: Path, *, best: bool = False) -> tuple[Score, Budget | None]:
    """Score and budget of a run's last whole checkpoint, or of its best.

    Args:
        folder: a run folder.
        best: take the checkpoint of the best epoch.
    """
    config = RunConfig.load(RunFolder.open(folder).path / CONFIG)
    source = open_source(config)
    with join_processes() as processes:
        parts = _load(folder, config, source, processes, best=best)
        score = evaluate(parts.model, source, config, processes)
        budget = parts.sparsifier.measure() if parts.sparsifier is not None else None
    return score, budget


def bake_run(folder: Path, out: Path, *, best: bool = False) -> Budget | None:
    """Write the plain weights of a run to a safetensors file.

    The keys are those of the untouched network. Of ranks that were learnt they are those of the folded one.
    """
    config = RunConfig.load(RunFolder.open(folder).path / CONFIG)
    with join_processes() as processes:
        parts = _load(folder, config, open_source(config), processes, best=best)
        budget = parts.sparsifier.measure() if parts.sparsifier is not None else None
        model = _plain(parts)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(out, model.state_dict())
    return budget


def plain_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of the last whole checkpoint, on the CPU; every process may ask by itself.

    The keys are those of the untouched network, also where ranks were learnt: another run may begin with them.
    """
    return dict(_plain_run(folder, best=False, fold=False).module.state_dict())


def plain_run(folder: Path, *, best: bool = False) -> PlainNetwork:
    """The network of a run's last whole checkpoint, or of its best, as a plain module on the CPU.

    Args:
        folder: a run folder.
        best: take the checkpoint of the best epoch.

    Raises:
        ValueError: if there is no such checkpoint.
    """
    return _plain_run(folder, best=best, fold=True)


def _plain_run(folder: Path, *, best: bool, fold: bool) -> PlainNetwork:
    config = RunConfig.load(RunFolder.open(folder).path / CONFIG)
    alone = Processes(rank=0, world=1, device=torch.device("cpu"))
    source = open_source(config)
    parts = _load(folder, config, source, alone, best=best)
    module = _plain(parts, fold=fold).eval()
    return PlainNetwork(module, source.example_shape, config.model.name, config.model.args, source)


def network_of(folder: Path) -> tuple[nn.Module, Tensor]:
    """The network of a run as it was built, without what it has learnt, and one input."""
    config = RunConfig.load(RunFolder.open(folder).path / CONFIG)
    return build(config.model.name, config.model.args), torch.zeros(open_source(config).example_shape)


def _plain(parts: Assembly, *, fold: bool = True) -> nn.Module:
    return bake(parts.model, fold=fold) if parts.sparsifier is not None else parts.model


def last_thresholds(folder: Path) -> dict[str, float]:
    """Threshold of every tensor in the last epoch of layers.csv."""
    with (folder / LAYERS).open(encoding="utf-8", newline="") as file:
        return {row["name"]: float(row["alpha"]) for row in csv.DictReader(file)}


def _load(folder: Path, config: RunConfig, source: Source, processes: Processes, *, best: bool) -> Assembly:
    checkpoints = Checkpoints(RunFolder(folder).checkpoints, keep=config.checkpoint.keep)
    notes: list[str] = []
    found = read_checkpoint(checkpoints.folder / BEST) if best else checkpoints.newest(notes)
    if found is None:
        raise ValueError(f"{folder} has no whole checkpoint yet" + "".join(f"; {note}" for note in notes))
    tensors, facts = found
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
