"""Removal: which channels of a network can go, and why the others stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from softprune.deploy.shrink.channel import Channels, Reader
from softprune.deploy.shrink.layers import outputs_first
from softprune.deploy.shrink.walk import Walk


@dataclass(frozen=True)
class Left:
    """Dead channels that stay.

    Attributes:
        path: the layer that makes them.
        count: how many.
        why: the reason.
    """

    path: str
    count: int
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.count} dead channels stay: {self.why}"


@dataclass
class Removal:
    """What goes.

    Args:
        gone: the channels, by the one that stands for each.
        left: what could not go.
    """

    gone: set[int] = field(default_factory=set)
    left: list[Left] = field(default_factory=list)


def decide(walk: Walk) -> Removal:
    """Every channel that nothing listens to, or that holds a constant which the readers' biases can take over."""
    heard, silent = _heard(walk)
    channels = walk.channels
    pinned = {c for c in silent if channels.pinned(c) is not None}
    removal = Removal({c for c in silent if c not in heard and c not in pinned})
    _keep_one(walk, removal)
    _keep_groups_equal(walk, removal)
    removal.left = list(_left(walk, removal, heard))
    return removal


def _heard(walk: Walk) -> tuple[set[int], set[int]]:
    """Channels that a reader needs, and all that any layer makes."""
    find = walk.channels.find
    heard: set[int] = set()
    made: set[int] = set()
    for reader in walk.readers:
        made.update(find(c) for c in reader.outputs)
        if reader.kind == "norm" or reader.depthwise:
            continue  # they hand their channels on
        needed = listens(walk.model, reader) & ~_replaceable(walk, reader)
        heard.update(find(c) for c, yes in zip(reader.inputs, needed.tolist(), strict=True) if yes)
    return heard, made


def _replaceable(walk: Walk, reader: Reader) -> Tensor:
    """Inputs that hold nothing, or a constant that the bias can take over: the same at every place of the layer."""
    places = torch.stack([r.constant for r in walk.readers if r.path == reader.path])
    same = (places == places[0]).all(0)
    return same if reader.exact else same & (reader.constant == 0)


def listens(model: nn.Module, reader: Reader) -> Tensor:
    """Which inputs have a weight that is not zero."""
    weight = model.get_submodule(reader.path).weight.detach()  # type: ignore[union-attr,operator]
    taps = weight.abs().flatten(2).amax(2) if weight.ndim > 2 else weight.abs()
    if reader.kind == "transposed":
        return taps.amax(1) > 0
    per_group: Tensor = taps.view(reader.groups, -1, taps.shape[1]).amax(1) > 0
    return per_group.flatten()


def _keep_groups_equal(walk: Walk, removal: Removal) -> None:
    """Groups of a convolution have equally many channels: those that lose more get some back, until all agree."""
    find = walk.channels.find
    grouped = [r for r in walk.readers if r.groups > 1 and not r.depthwise]
    changed = True
    while changed:
        changed = False
        for reader in grouped:
            for side in (reader.inputs, reader.outputs):
                width = len(side) // reader.groups
                parts = [
                    [c for c in side[i : i + width] if find(c) in removal.gone] for i in range(0, len(side), width)
                ]
                fewest = min(map(len, parts))
                for part in parts:
                    if len(part) > fewest:
                        removal.gone -= {find(c) for c in part[fewest:]}
                        changed = True


def _keep_one(walk: Walk, removal: Removal) -> None:
    """A layer cannot be empty: one of its channels stays."""
    find = walk.channels.find
    for reader in walk.readers:
        for side in (reader.inputs, reader.outputs):
            if all(find(c) in removal.gone for c in side):
                removal.gone.discard(find(side[0]))


def _left(walk: Walk, removal: Removal, heard: set[int]) -> Iterator[Left]:
    """Channels that a layer or its norm makes a constant, and that are still there."""
    channels = walk.channels
    norms = [r for r in walk.readers if r.kind == "norm"]
    for reader in walk.readers:
        if reader.kind == "norm":
            continue
        own = list(reader.outputs)
        dead = {i for i, yes in enumerate(_silent(walk.model, reader)) if yes}
        for norm in norms:
            if list(norm.inputs) == own:
                dead |= {i for i, yes in enumerate(_silent(walk.model, norm)) if yes}
        counts: dict[str, int] = {}
        for channel in (own[i] for i in dead):
            if channels.find(channel) not in removal.gone:
                why = _why(channels, channel, heard)
                counts[why] = counts.get(why, 0) + 1
        yield from (Left(reader.path, count, why) for why, count in counts.items())


def _why(channels: Channels, channel: int, heard: set[int]) -> str:
    pinned = channels.pinned(channel)
    if pinned is not None:
        return pinned
    if channels.find(channel) in heard:
        return "what they hold after bias and norm, or what is added to it, is read"
    return "a layer cannot be empty, nor its groups of different widths"


def _silent(model: nn.Module, reader: Reader) -> list[bool]:
    """Which outputs of a layer, or of a norm, do not depend on its input."""
    module: Any = model.get_submodule(reader.path)
    if module.weight is None:  # a norm without a scale
        return [False] * len(reader.outputs)
    weight = module.weight.detach()
    if reader.kind == "transposed":
        weight = outputs_first(weight, reader.groups)
    silent: list[bool] = (weight.abs().reshape(len(weight), -1).amax(1) == 0).tolist()
    return silent
