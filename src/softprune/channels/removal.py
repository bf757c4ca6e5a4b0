"""Removal: which channels of a network can go, and why the others stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from softprune.channels.network import Network, Place
from softprune.channels.values import Values


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


@dataclass(frozen=True, eq=False)
class Removal:
    """What goes.

    Args:
        gone: whether each channel does.
        heard: whether a reader needs it.
        constants: what the channels hold, as the tape tells it.
    """

    gone: Tensor
    heard: Tensor
    constants: list[Tensor]


def decide(network: Network, values: Values) -> Removal:
    """Every channel that nothing listens to, or that holds a constant which the readers' biases can take over."""
    constants = network.tape.play(values)
    heard = torch.zeros(network.count, dtype=torch.bool)
    needed = [values.listens(p.reader) & ~_replaceable(network, p, constants) for p in network.listeners]
    if needed:
        heard[network.read[torch.cat(needed)]] = True
    gone = network.free & ~heard
    _keep_one(network, gone)
    _keep_groups_equal(network, gone)
    return Removal(gone, heard, constants)


def _replaceable(network: Network, place: Place, constants: list[Tensor]) -> Tensor:
    """Inputs that hold nothing, or a constant that the bias can take over: the same at every place of the layer."""
    reader = place.reader
    mine = constants[reader.constant]
    same = ~mine.isnan()
    for other in network.again(reader.path):
        same = same & (constants[other.reader.constant] == mine)
    return same if reader.exact else same & (mine == 0)


def _keep_groups_equal(network: Network, gone: Tensor) -> None:
    """Groups of a convolution have equally many channels: those that lose more get some back, until all agree."""
    grouped = [p for p in network.places if p.reader.groups > 1 and not p.reader.depthwise]
    changed = True
    while changed:
        changed = False
        for place in grouped:
            for side in place.sides:
                parts = side.view(place.reader.groups, -1)
                lost = gone[parts]
                fewest = lost.sum(1).min()
                # The first ones of each group go, the others come back.
                back = lost & (lost.cumsum(1) > fewest)
                if bool(back.any()):
                    gone[parts[back]] = False
                    changed = True


def _keep_one(network: Network, gone: Tensor) -> None:
    """A layer cannot be empty: one of its channels stays."""
    if not network.empties(gone):
        return
    for place in network.places:
        for side in place.sides:
            if bool(gone[side].all()):
                gone[side[0]] = False


def taken_over(place: Place, removal: Removal) -> Tensor | None:
    """The constants of inputs that go, which the bias takes over: 0 for all others, None if there are none."""
    reader = place.reader
    if reader.kind not in ("convolution", "linear") or not reader.exact or reader.depthwise:
        return None
    constant = torch.where(removal.gone[place.inputs], removal.constants[reader.constant].nan_to_num(), 0.0)
    return constant if bool(constant.any()) else None


def left_over(network: Network, values: Values, removal: Removal) -> Iterator[Left]:
    """Channels that a layer or its norm makes a constant, and that are still there."""
    norms = [p for p in network.places if p.reader.kind == "norm"]
    for place in network.places:
        if place.reader.kind == "norm":
            continue
        dead = _silent(values, place)
        for norm in norms:
            if torch.equal(norm.inputs, place.outputs) and list(norm.reader.inputs) == list(place.reader.outputs):
                dead |= _silent(values, norm)
        counts: dict[str, int] = {}
        for channel in place.outputs[dead & ~removal.gone[place.outputs]].tolist():
            why = _why(network, channel, removal)
            counts[why] = counts.get(why, 0) + 1
        yield from (Left(place.reader.path, count, why) for why, count in counts.items())


def _why(network: Network, channel: int, removal: Removal) -> str:
    if channel in network.pins:
        return network.pins[channel]
    if bool(removal.heard[channel]):
        return "what they hold after bias and norm, or what is added to it, is read"
    return "a layer cannot be empty, nor its groups of different widths"


def _silent(values: Values, place: Place) -> Tensor:
    """Which outputs of a layer, or of a norm, do not depend on its input."""
    weight = values.scale(place.reader.path) if place.reader.kind == "norm" else values.weight(place.reader)
    if weight is None:
        return torch.zeros(len(place.outputs), dtype=torch.bool)
    silent: Tensor = weight.abs().reshape(len(weight), -1).amax(1) == 0
    return silent
