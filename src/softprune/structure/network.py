"""A network as layers that read and make channels, which of these can be removed, and what the others cost."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import Node

from softprune.structure.channels import Reader, Trace, Values, Walk, sums
from softprune.structure.program import Example, exported
from softprune.structure.rules import RULES


@dataclass(frozen=True, eq=False)
class LayerUse:
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

    places: tuple[LayerUse, ...]  # the layers, each time one is used, in order
    pools: tuple[tuple[Tensor, int], ...]  # the channels of each average pool, and how many numbers of each it averages
    pins: dict[int, str]  # channel -> why it must stay
    count: int  # how many numbers of channels there are
    trace: Trace  # what the channels hold

    @cached_property
    def by_path(self) -> dict[str, list[LayerUse]]:
        """All places of each layer, by its path."""
        found: dict[str, list[LayerUse]] = {}
        for place in self.places:
            found.setdefault(place.reader.path, []).append(place)
        return found

    @cached_property
    def listeners(self) -> list[LayerUse]:
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
    specs = [s for s in program.graph_signature.input_specs if s.kind in (InputKind.PARAMETER, InputKind.BUFFER)]
    walk = Walk(model, {s.arg.name: str(s.target) for s in specs})  # type: ignore[union-attr]
    for node in program.graph.nodes:
        if node.op == "output":
            for one in node.all_input_nodes:
                if one in walk.flows:
                    walk.channels.pin(walk.flows[one].channels, "an output of the network")
        elif node.op == "call_function":
            _step(walk, node)
    channels = walk.channels
    stands_for = torch.tensor([channels.find(c) for c in range(len(channels))], dtype=torch.int64)
    places = tuple(LayerUse(r, stands_for[list(r.inputs)], stands_for[list(r.outputs)]) for r in walk.readers)
    pools = tuple((stands_for[list(of)], each) for of, each in walk.pools)
    return Network(places, pools, channels.pins(), len(channels), walk.trace)


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
    constants: list[Tensor]  # what the channels hold, as the trace tells it


def decide(network: Network, values: Values) -> Removal:
    """Remove every channel that no layer needs, or that holds a constant which the readers' biases can take over."""
    constants = network.trace.run(values)
    heard = torch.zeros(network.count, dtype=torch.bool)
    needed = [values.listens(p.reader) & ~_replaceable(network, p, constants) for p in network.listeners]
    if needed:
        heard[network.read[torch.cat(needed)]] = True
    gone = network.free & ~heard
    _keep_one(network, gone)
    _keep_groups_equal(network, gone)
    return Removal(gone, heard, constants)


def _replaceable(network: Network, place: LayerUse, constants: list[Tensor]) -> Tensor:
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


def taken_over(place: LayerUse, removal: Removal) -> Tensor | None:
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


def _silent(values: Values, place: LayerUse) -> Tensor:
    """Whether each output of a layer or norm is independent of its input."""
    weight = values.scale(place.reader.path) if place.reader.kind == "norm" else values.weight(place.reader)
    if weight is None:
        return torch.zeros(len(place.outputs), dtype=torch.bool)
    return ~weight.reshape(len(weight), -1).any(1)


# What the layers of a network cost with some of their channels gone.


class LayerCosts:
    """Counts what is left of the layers that channels are followed through, and of average pools.

    ``macs`` are the multiply-adds of all uses of each weight, by name, counted for ``batch`` samples.
    """

    def __init__(self, network: Network, model: nn.Module, macs: Mapping[str, int], batch: int) -> None:
        self._places = [places[0] for places in network.by_path.values()]
        numbers = torch.arange(len(self._places))
        sides = [[place.sides[side] for place in self._places] for side in (0, 1)]
        self._channels = [torch.cat(side) for side in sides]
        self._layer_of = [numbers.repeat_interleave(torch.tensor([len(s) for s in side])) for side in sides]
        figures = torch.tensor([_figures(place, model, macs) for place in self._places], dtype=torch.double)
        self._taps, self._groups, self._own, self._uses, alone = figures.T.contiguous()
        self._alone = alone.bool()
        pools = [(channel, each * batch) for of, each in network.pools for channel in of.tolist()]
        self._pooled = torch.tensor([channel for channel, _ in pools], dtype=torch.int64)
        self._averaged = torch.tensor([each for _, each in pools], dtype=torch.double)

    def total(self, removal: Removal, measure: str) -> int:
        """What these layers and pools cost without the channels that go, in "weights", "params" or "macs"."""
        inputs, outputs = self._widths(removal)
        weights = outputs * self._inputs_each(inputs) * self._taps
        if measure == "weights":
            return int(weights.sum())
        if measure == "params":
            return int((weights + outputs * (self._own + self._new_biases(removal))).sum())
        return round(float((weights * self._uses).sum() + self._averaged[~removal.gone[self._pooled]].sum()))

    def marginal(self, removal: Removal, measure: str) -> Tensor:
        """What each channel adds to the total at the layers' present widths."""
        inputs, outputs = self._widths(removal)
        factor = self._uses if measure == "macs" else 1.0
        read = torch.where(self._alone, 0.0, outputs * self._taps / self._groups) * factor
        made = self._inputs_each(inputs) * self._taps * factor
        if measure == "params":
            made = made + self._own
        found = torch.zeros(len(removal.gone), dtype=torch.double)
        for side, cost in enumerate((read, made)):
            found.index_add_(0, self._channels[side], cost[self._layer_of[side]])
        return found.index_add_(0, self._pooled, self._averaged) if measure == "macs" else found

    def _widths(self, removal: Removal) -> list[Tensor]:
        """How many inputs and outputs each layer keeps."""
        kept = (~removal.gone).double()
        return [
            torch.bincount(layer_of, kept[channels], minlength=len(self._places))
            for channels, layer_of in zip(self._channels, self._layer_of, strict=True)
        ]

    def _inputs_each(self, inputs: Tensor) -> Tensor:
        return torch.where(self._alone, 1.0, inputs / self._groups)

    def _new_biases(self, removal: Removal) -> Tensor:
        """1 for each layer that gets a bias, which takes over constants of removed inputs."""
        pairs = zip(self._own.tolist(), self._places, strict=True)
        new = [own == 0 and taken_over(place, removal) is not None for own, place in pairs]
        return torch.tensor(new, dtype=torch.double)


def _figures(place: LayerUse, model: nn.Module, macs: Mapping[str, int]) -> tuple[float, ...]:
    """Of one layer:

    - weights for one input and one output, 0 for a norm,
    - groups,
    - parameters that each output has besides its weights,
    - multiply-adds for each weight,
    - whether each output has one input, as in depthwise layers and norms.
    """
    reader = place.reader
    module: Any = model.get_submodule(reader.path)
    own = int(module.bias is not None)
    if reader.kind == "norm":
        return 0, 1, own + (module.weight is not None), 0, True
    uses = macs.get(f"{reader.path}.weight", 0) / module.weight.numel()
    return math.prod(module.weight.shape[2:]), reader.groups, own, uses, reader.depthwise


class Foreseen(Values):
    """What the layers would hold with only some filters ``alive``. A weight that no gate closes counts as not zero.

    Weights are looked at in the rare case that all inputs of a group are constants; else the cost is that of a few
    operations on vectors as long as a layer is wide. ``read`` gets a parameter or buffer by its name, as it is behind
    its gate; ``gates`` maps the names of gated tensors to their filters among all.
    """

    def __init__(self, read: Callable[[str], Tensor], gates: Mapping[str, slice]) -> None:
        self._read = read
        self._gates = gates
        self._held: dict[str, Tensor] = {}
        self.alive = torch.zeros(0, dtype=torch.bool)  # one for each filter

    def held(self, name: str) -> Tensor:
        if name not in self._held:
            found = self._read(name).detach().cpu().double()
            # A gated weight may be 0 for now, as where the scale of a last norm starts there; it will not stay so.
            gated = name in self._gates and name.endswith("weight")
            self._held[name] = torch.where(found == 0, 1.0, found) if gated else found
        found, gate = self._held[name], self._gates.get(name)
        if gate is None:
            return found
        return torch.where(self.alive[gate].view(-1, *[1] * (found.ndim - 1)), found, 0.0)

    def listens(self, reader: Reader) -> Tensor:
        gate = self._gates.get(f"{reader.path}.weight")
        if gate is None:
            return torch.ones(len(reader.inputs), dtype=torch.bool)
        heard = self.alive[gate].view(reader.groups, -1).any(1)
        return heard.repeat_interleave(len(reader.inputs) // reader.groups)

    def answer(self, reader: Reader, inputs: Tensor) -> Tensor:
        known = ~inputs.isnan() if reader.exact else inputs == 0
        whole = known.view(reader.groups, -1).all(1)
        count = len(reader.outputs)
        answer = torch.full((count,), torch.nan, dtype=torch.double)
        if bool(whole.any()):
            answer[whole.repeat_interleave(count // reader.groups)] = 0.0
            if bool((inputs.view(reader.groups, -1)[whole] != 0).any()):
                made = sums(reader, self.weight(reader), torch.where(known, inputs, 0.0))
                answer = torch.where(answer.isnan(), answer, made)
        gate = self._gates.get(f"{reader.path}.weight")
        return answer if gate is None else torch.where(self.alive[gate], answer, 0.0)
