"""The formats by name, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from softprune.deploy.export.c import CFiles, export_c
from softprune.deploy.export.compression import save_compressed
from softprune.deploy.export.exporting import export
from softprune.deploy.export.folder import save_pretrained, save_safetensors
from softprune.deploy.export.onnx_file import export_onnx
from softprune.deploy.export.program import save_program
from softprune.nn.catalog import NETWORKS


@dataclass(frozen=True)
class Content:
    """What is written.

    Attributes:
        module: plain.
        example: one input, or several of those that the network was trained on.
        network: its name in the catalog, if it is there.
        args: keyword arguments of the network.
        int8: whether a C program computes in integers.
        identifier: what the names of a C program begin with.
        normalisation: mean and deviation that a C program normalises with.
    """

    module: nn.Module
    example: torch.Tensor
    network: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    int8: bool = False
    identifier: str = "fastgrnn"
    normalisation: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass(frozen=True)
class Format:
    """One way out.

    Attributes:
        name: of the file or folder next to a run.
        suffix: that the file must have; empty for a folder.
        write: writes it.
    """

    name: str
    suffix: str
    write: Callable[[Content, Path], object]


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        path: the file or folder.
        bytes: its size.
        dense_bytes: the size of all parameters and buffers.
        weights: all parameters.
        nonzeros: those that are not zero.
        note: more to know about it.
    """

    path: Path
    bytes: int
    dense_bytes: int
    weights: int
    nonzeros: int
    note: str = ""


def _hub(content: Content, path: Path) -> object:
    network = content.network if content.network in NETWORKS else None
    return save_pretrained(content.module, path, network=network, args=content.args if network else None)


def _c(content: Content, path: Path) -> CFiles:
    return export_c(
        content.module,
        path,
        example=content.example,
        int8=content.int8,
        name=content.identifier,
        normalisation=content.normalisation,
    )


FORMATS: dict[str, Format] = {
    "spx": Format("model.spx", ".spx", lambda c, path: export(c.module, path, example=c.example)),
    "safetensors": Format("model.safetensors", ".safetensors", lambda c, path: save_safetensors(c.module, path)),
    "compressed": Format(
        "model.compressed.safetensors", ".safetensors", lambda c, path: save_compressed(c.module, path)
    ),
    "onnx": Format("model.onnx", ".onnx", lambda c, path: export_onnx(c.module, path, example=c.example)),
    "onnx-sparse": Format(
        "model.sparse.onnx", ".onnx", lambda c, path: export_onnx(c.module, path, example=c.example, sparse=True)
    ),
    "program": Format("model.pt2", ".pt2", lambda c, path: save_program(c.module, path, example=c.example)),
    "hub": Format("hub", "", _hub),
    "c": Format("c", "", _c),
}


def target(source: Path, name: str, *, out: Path | None = None, force: bool = False) -> Path:
    """Where a format is written, checked before anything is read or written.

    Args:
        source: a run folder, or a file of weights.
        name: of the format.
        out: the place; None takes one in the run folder, or next to the file.
        force: whether something that is there may be replaced.

    Raises:
        ValueError: for an unknown format, a wrong suffix, a missing folder, or a place that is taken.
    """
    if name not in FORMATS:
        raise ValueError(f"there is no format {name!r}: choose from {', '.join(FORMATS)}")
    form = FORMATS[name]
    place = out or (source if source.is_dir() else source.parent) / form.name
    if form.suffix and place.suffix != form.suffix:
        raise ValueError(f"a file of format {name} must end in {form.suffix}, got {place.name!r}")
    if not place.parent.is_dir():
        raise ValueError(f"there is no folder {place.parent}: make it first")
    if form.suffix and place.is_dir():
        raise ValueError(f"{place} is a folder: name a file")
    if not form.suffix and place.is_file():
        raise ValueError(f"{place} is a file: name a folder")
    taken = place.is_file() or (place.is_dir() and any(place.iterdir()))
    if taken and not force:
        raise ValueError(f"{place} is there already: give --force to replace it, or another --out")
    return place


def write_format(content: Content, name: str, path: Path) -> Written:
    """Write a network in one of `FORMATS`.

    Args:
        content: the network.
        name: of the format.
        path: from `target`.

    Raises:
        ValueError: if the format has no place for something in the network.
        ImportError: if the format needs a package that is not installed.
    """
    made = FORMATS[name].write(content, path)
    files = [path] if path.is_file() else [part for part in path.rglob("*") if part.is_file()]
    parameters = list(content.module.parameters())
    return Written(
        path,
        sum(file.stat().st_size for file in files),
        sum(t.numel() * t.element_size() for t in content.module.state_dict().values()),
        sum(p.numel() for p in parameters),
        sum(int(torch.count_nonzero(p)) for p in parameters),
        str(made) if isinstance(made, CFiles) else "",
    )
