"""Folders as the Hugging Face hub has them: config.json and model.safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from softprune.budget.files import parse_json, read_text, write_text
from softprune.core.state_file import write_tensors
from softprune.deploy.export.capture import plain_module
from softprune.nn.catalog import NETWORKS, build
from softprune.nn.folding import take_ranks_

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save_safetensors(module: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write a plain module's state dict, zeros included, under its own keys: any tool reads it.

    Raises:
        ValueError: if the module is still managed by a Sparsifier.
    """
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
        network: name of the network in softprune's list, so that :func:`from_pretrained` can make it; for others give
            `from_pretrained` a function that does.
        args: keyword arguments of the network, plain values.

    Returns:
        The folder.
    """
    if network is not None and network not in NETWORKS:
        raise ValueError(f"no network {network!r}: choose {', '.join(NETWORKS)}, or leave it out")
    state = plain_module(module).state_dict()
    weights = sum(p.numel() for p in module.parameters())
    kept = sum(int((p != 0).sum()) for p in module.parameters())
    config = {
        "model_type": "softprune",
        "architectures": [type(module).__name__],
        "network": network,
        "args": dict(args or {}),
        "parameters": weights,
        "nonzeros": kept,
    }
    text = json.dumps(config, indent=2) + "\n"
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_tensors(target / WEIGHTS, state)
    write_text(target / CONFIG, text)
    return target


def from_pretrained(folder: str | os.PathLike[str], *, make: Callable[..., nn.Module] | None = None) -> nn.Module:
    """The module of a folder that :func:`save_pretrained` wrote.

    Args:
        folder: local; its content may come from a stranger.
        make: makes the module from the config's ``args``; not needed for softprune's own networks.

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
    module = make(**args) if make is not None else build(str(network), args)
    try:
        state = load_file(source / WEIGHTS)
        take_ranks_(module, state).load_state_dict(state)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"the weights in {source} are damaged or of another network: {error}") from error
    return module
