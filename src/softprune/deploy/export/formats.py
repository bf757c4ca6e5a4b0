"""The formats by name, for the command line; folders as the Hugging Face hub has them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from softprune.core.state_file import write_tensors
from softprune.deploy.export.c import CFiles, export_c
from softprune.deploy.export.compressed import save_compressed
from softprune.deploy.export.exporting import export, plain_module, save_program
from softprune.deploy.export.onnx import export_onnx
from softprune.nn.catalog import NETWORKS, build
from softprune.nn.low_rank import take_ranks_
from softprune.records import parse_json, read_text, write_text

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save_safetensors(module: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write a plain module's state dict, zeros included, under its own keys: any tool reads it."""
    write_tensors(Path(path), plain_module(module).state_dict())
    return Path(path)


def save_pretrained(
    module: nn.Module,
    folder: str | os.PathLike[str],
    *,
    network: str | None = None,
    args: Mapping[str, Any] | None = None,
) -> Path:
    """Write a folder that can be pushed to the Hugging Face hub.

    Args:
        module: plain.
        folder: made if it is not there.
        network: name of the network in softprune's list, so that `from_pretrained` can make it; for others give
            `from_pretrained` a function that does.
        args: keyword arguments of the network, plain values.
    """
    if network is not None and network not in NETWORKS:
        raise ValueError(f"no network {network!r}: choose {', '.join(NETWORKS)}, or leave it out")
    state = plain_module(module).state_dict()
    config = {
        "model_type": "softprune",
        "architectures": [type(module).__name__],
        "network": network,
        "args": dict(args or {}),
        "parameters": sum(p.numel() for p in module.parameters()),
        "nonzeros": sum(int((p != 0).sum()) for p in module.parameters()),
    }
    text = json.dumps(config, indent=2) + "\n"
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_tensors(target / WEIGHTS, state)
    write_text(target / CONFIG, text)
    return target


def from_pretrained(folder: str | os.PathLike[str], *, make: Callable[..., nn.Module] | None = None) -> nn.Module:
    """The module of a folder that `save_pretrained` wrote; its content may come from a stranger.

    ``make`` makes the module from the config's ``args``; softprune's own networks need none.

    Raises:
        ValueError: if a file is missing or damaged, or the weights are not those of the network.
    """
    source = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (source / name).is_file():
            raise ValueError(f"{source} has no {name}")
    config = parse_json(read_text(source / CONFIG), str(source / CONFIG))
    network, args = config.get("network"), config.get("args", {})
    if not isinstance(args, dict):
        raise ValueError(f"{source / CONFIG}: args must be an object, got {args!r}")
    # Only names from our own list: a path to a function in a stranger's file could run anything.
    if make is None and (not isinstance(network, str) or network not in NETWORKS):
        raise ValueError(f"{source / CONFIG} names the network {network!r}, which is not softprune's: give make=...")
    try:
        module = make(**args) if make is not None else build(str(network), args)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{source / CONFIG} describes no network: {error}") from error
    try:
        state = load_file(source / WEIGHTS)
        take_ranks_(module, state).load_state_dict(state)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"the weights in {source} are damaged or of another network: {error}") from error
    return module


@dataclass(frozen=True)
class Content:
    """A network to write."""

    module: nn.Module  # plain
    example: torch.Tensor  # one input, or several of those that the network was trained on
    network: str | None = None  # its name in the catalog, if it is there
    args: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of the network
    int8: bool = False  # whether a C program computes in integers
    identifier: str = "fastgrnn"  # what the names of a C program begin with
    # mean and deviation that a C program normalises with
    normalisation: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass(frozen=True)
class Written:
    """What was written, with its size, the size of all parameters and buffers, and more to know about it."""

    path: Path
    bytes: int
    dense_bytes: int
    weights: int
    nonzeros: int
    note: str = ""


def _hub(content: Content, path: Path) -> Path:
    network = content.network if content.network in NETWORKS else None
    return save_pretrained(content.module, path, network=network, args=content.args if network else None)


def _c(content: Content, path: Path) -> CFiles:
    given = {"int8": content.int8, "name": content.identifier, "normalisation": content.normalisation}
    return export_c(content.module, path, example=content.example, **given)  # type: ignore[arg-type]


# Name -> the file or folder next to a run, and what writes it.
FORMATS: dict[str, tuple[str, Callable[[Content, Path], object]]] = {
    "spx": ("model.spx", lambda c, path: export(c.module, path, example=c.example)),
    "safetensors": ("model.safetensors", lambda c, path: save_safetensors(c.module, path)),
    "compressed": ("model.compressed.safetensors", lambda c, path: save_compressed(c.module, path)),
    "onnx": ("model.onnx", lambda c, path: export_onnx(c.module, path, example=c.example)),
    "onnx-sparse": ("model.sparse.onnx", lambda c, path: export_onnx(c.module, path, example=c.example, sparse=True)),
    "program": ("model.pt2", lambda c, path: save_program(c.module, path, example=c.example)),
    "hub": ("hub", _hub),
    "c": ("c", _c),
}


def target(source: Path, name: str, *, out: Path | None = None, force: bool = False) -> Path:
    """The path of a format's file or folder, checked before anything is read or written.

    Args:
        source: a run folder, or a file of weights.
        name: of the format.
        out: the place; None takes one in the run folder, or next to the file.
        force: whether something that is there may be replaced.
    """
    if name not in FORMATS:
        raise ValueError(f"there is no format {name!r}: choose from {', '.join(FORMATS)}")
    usual = Path(FORMATS[name][0])
    place = out or (source if source.is_dir() else source.parent) / usual
    if usual.suffix and place.suffix != usual.suffix:
        raise ValueError(f"a file of format {name} must end in {usual.suffix}, got {place.name!r}")
    if not place.parent.is_dir():
        raise ValueError(f"there is no folder {place.parent}: make it first")
    if usual.suffix and place.is_dir():
        raise ValueError(f"{place} is a folder: name a file")
    if not usual.suffix and place.is_file():
        raise ValueError(f"{place} is a file: name a folder")
    taken = place.is_file() or (place.is_dir() and any(place.iterdir()))
    if taken and not force:
        raise ValueError(f"{place} is there already: give --force to replace it, or another --out")
    return place


def write_format(content: Content, name: str, path: Path) -> Written:
    """Write a network in one of `FORMATS`, to a path from `target`."""
    made = FORMATS[name][1](content, path)
    files = [path] if path.is_file() else [part for part in path.rglob("*") if part.is_file()]
    parameters = list(content.module.parameters())
    return Written(
        path,
        sum(file.stat().st_size for file in files),
        sum(t.nbytes for t in content.module.state_dict().values()),
        sum(p.numel() for p in parameters),
        sum(int(torch.count_nonzero(p)) for p in parameters),
        str(made) if isinstance(made, CFiles) else "",
    )
