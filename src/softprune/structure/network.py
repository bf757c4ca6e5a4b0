"""A network as layers that read and make channels, and which of these channels can be removed."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import Node

from softprune.structure.channels import Reader, Tape, Values, Walk
from softprune.structure.program import Example, exported
from softprune.structure.rules import RULES


@dataclass(frozen=True, eq=False)
class Place:
    """A layer with weights, as it is used at one place."""

    reader: Reader  # what the walk has noted
    inputs: Tensor  # the channels that it reads, by the number that is the same for all channels joined with them
    outputs: Tensor  # the channels that it makes

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        return self.inputs, self.outputs


@dataclass(frozen=True, eq=False)
class Network:
    """The layers and channels of a network."""

    places: tuple[Place, ...]  # the layers, each time one is used, in order
    pools: tuple[tuple[Tensor, int], ...]  # the channels of each average pool, and how many numbers of each it averages
    pins: dict[int, str]  # channel -> why it must stay
    count: int  # how many numbers of channels there are
    tape: Tape  # what the channels hold

    @cached_property
    def by_path(self) -> dict[str, list[Place]]:
        """All places of each layer, by its path."""
        found: dict[str, list[Place]] = {}
        for place in self.places:
            found.setdefault(place.reader.path, []).append(place)
        return found

    @cached_property
    def listeners(self) -> list[Place]:
        """The layers that need what they read; norms and depthwise layers hand their channels on."""
        return [p for p in self.places if p.reader.kind != "norm" and not p.reader.depthwise]

    @cached_property
    def read(self) -> Tensor:
        """The channels that the listeners read, concatenated."""
        return torch.cat([p.inputs for p in self.listeners])

    @cached_property
    def free(self) -> Tensor:
        """For each channel whether a layer makes it and nothing pins it."""
        free = torch.zeros(self.count, dtype=torch.bool)
        for place in self.places:
            free[place.outputs] = True
        free[list(self.pins)] = False
        return free

    @cached_property
    def sides(self) -> tuple[Tensor, Tensor, int]:
        """The channels of both sides of all places, which side each belongs to, and the number of sides."""
        sides = [side for place in self.places for side in place.sides]
        lengths = torch.tensor([len(side) for side in sides], dtype=torch.int64)
        if not sides:
            return lengths, lengths, 0
        return torch.cat(sides), torch.arange(len(sides)).repeat_interleave(lengths), len(sides)


@torch.no_grad()
def follow(model: nn.Module, example: Example) -> Network:
    """Find where every channel of a network comes from and which layers read it."""
    program = exported(model, example)
    kinds = (InputKind.PARAMETER, InputKind.BUFFER)
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind in kinds]
    walk = Walk(model, {spec.arg.name: str(spec.target) for spec in specs})  # type: ignore[union-attr]
    for node in program.graph.nodes:
        if node.op == "output":
            for one in node.all_input_nodes:
                if one in walk.flows:
                    walk.channels.pin(walk.flows[one].channels, "an output of the network")
        elif node.op == "call_function":
            _step(walk, node)
    channels = walk.channels
    stands_for = torch.tensor([channels.find(c) for c in range(channels.count)], dtype=torch.int64)
    places = tuple(Place(r, stands_for[list(r.inputs)], stands_for[list(r.outputs)]) for r in walk.readers)
    pools = tuple((stands_for[list(of)], each) for of, each in walk.pools)
    return Network(places, pools, channels.pins(), channels.count, walk.tape)


def _step(walk: Walk, node: Node) -> None:
    if node.target is operator.getitem:
        # The first result of a norm; of other operations with several results nothing is followed.
        flow = walk.flow(node.args[0]) if node.args[1] == 0 else None
    elif isinstance(node.meta.get("val"), Tensor | tuple | list):  # else a size, or a check of sizes
        flow = RULES.get(str(node.target), Walk.stay)(walk, node)
    else:
        return
    if flow is not None:
        walk.flows[node] = flow


@dataclass(frozen=True)
class Left:
    """Dead channels that stay, and the layer that makes them."""

    path: str
    count: int
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.count} dead channels stay: {self.why}"


@dataclass(frozen=True, eq=False)
class Removal:
    """Which channels are removed."""

    gone: Tensor  # whether each channel is
    heard: Tensor  # whether a reader needs it
    constants: list[Tensor]  # what the channels hold, as the tape tells it


def decide(network: Network, values: Values) -> Removal:
    """Remove every channel that no layer needs, or that holds a constant which the readers' biases can take over."""
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
    """Whether each input is zero, or a constant that the bias can take over: the same at every place of the layer."""
    reader = place.reader
    mine = constants[reader.constant]
    same = ~mine.isnan()
    for other in network.by_path[reader.path]:
        if other is not place:
            same = same & (constants[other.reader.constant] == mine)
    return same if reader.exact else same & (mine == 0)


def _keep_groups_equal(network: Network, gone: Tensor) -> None:
    """Groups of a convolution have equally many channels: those that lose more get some back, until all are equal."""
    grouped = [p for p in network.places if p.reader.groups > 1 and not p.reader.depthwise]
    changed = True
    while changed:
        changed = False
        for place in grouped:
            for side in place.sides:
                parts = side.view(place.reader.groups, -1)
                lost = gone[parts]
                fewest = lost.sum(1).min()
                back = lost & (lost.cumsum(1) > fewest)  # all but the first ones of each group
                if bool(back.any()):
                    gone[parts[back]] = False
                    changed = True


def _keep_one(network: Network, gone: Tensor) -> None:
    """A layer cannot be empty: one of its channels stays."""
    channels, side_of, count = network.sides
    if bool(torch.bincount(side_of, (~gone[channels]).double(), minlength=count).all()):
        return
    for place in network.places:
        for side in place.sides:
            if bool(gone[side].all()):
                gone[side[0]] = False


def taken_over(place: Place, removal: Removal) -> Tensor | None:
    """The constants of removed inputs, which the bias takes over: 0 for all other inputs, None if all are 0."""
    reader = place.reader
    if reader.kind not in ("convolution", "linear") or not reader.exact or reader.depthwise:
        return None
    constant = torch.where(removal.gone[place.inputs], removal.constants[reader.constant].nan_to_num(), 0.0)
    return constant if bool(constant.any()) else None


def left_over(network: Network, values: Values, removal: Removal) -> Iterator[Left]:
    """The channels that stay although a layer or its norm makes them constant."""
    norms = [p for p in network.places if p.reader.kind == "norm"]
    for place in network.places:
        if place.reader.kind == "norm":
            continue
        dead = _silent(values, place)
        for norm in norms:
            if torch.equal(norm.inputs, place.outputs) and list(norm.reader.inputs) == list(place.reader.outputs):
                dead |= _silent(values, norm)
        staying = place.outputs[dead & ~removal.gone[place.outputs]].tolist()
        counts = Counter(_why(network, channel, removal) for channel in staying)
        yield from (Left(place.reader.path, count, why) for why, count in counts.items())


def _why(network: Network, channel: int, removal: Removal) -> str:
    if channel in network.pins:
        return network.pins[channel]
    if bool(removal.heard[channel]):
        return "what they hold after bias and norm, or what is added to it, is read"
    return "a layer cannot be empty, nor its groups of different widths"


def _silent(values: Values, place: Place) -> Tensor:
    """Whether each output of a layer or norm is independent of its input."""
    weight = values.scale(place.reader.path) if place.reader.kind == "norm" else values.weight(place.reader)
    if weight is None:
        return torch.zeros(len(place.outputs), dtype=torch.bool)
    return ~weight.reshape(len(weight), -1).any(1)
