"""Channels of a network: which go together, which must stay, and which constants they hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from softprune.structure.program import module_path


class Channels:
    """Disjoint sets of channels: those that can only go together are joined, those that must stay are pinned."""

    def __init__(self) -> None:
        self._above: list[int] = []  # the parent of each channel; representatives are their own
        self._pins: dict[int, str] = {}  # representative -> why it must stay

    def fresh(self, count: int) -> list[int]:
        made = list(range(len(self), len(self) + count))
        self._above += made
        return made

    def find(self, channel: int) -> int:
        """The representative of all channels that are joined with this one."""
        while self._above[channel] != channel:
            self._above[channel] = self._above[self._above[channel]]
            channel = self._above[channel]
        return channel

    def join(self, some: Sequence[int], others: Sequence[int]) -> None:
        """Join the channels of two lists, pair by pair."""
        for one, other in zip(some, others, strict=True):
            a, b = self.find(one), self.find(other)
            if a != b:
                self._above[b] = a
                if b in self._pins:
                    self._pins.setdefault(a, self._pins.pop(b))

    def pin(self, channels: Iterable[int], why: str) -> None:
        """Mark channels that must stay; the first reason is kept."""
        for channel in channels:
            self._pins.setdefault(self.find(channel), why)

    def pins(self) -> dict[int, str]:
        """Representative of each channel that must stay -> why."""
        return {self.find(channel): why for channel, why in self._pins.items()}

    def __len__(self) -> int:
        return len(self._above)


@dataclass(frozen=True)
class Flow:
    """What is known of a tensor that flows through the network."""

    axis: int  # where its channels are
    channels: Sequence[int]  # the number of each
    constant: int  # where the trace tells what each holds if that is the same everywhere and for every input, else NaN


@dataclass(frozen=True)
class Reader:
    """A layer with weights, as it is used at one place."""

    path: str  # of its module
    kind: str  # "convolution", "transposed", "linear" or "norm"
    inputs: Sequence[int]  # the channels that it reads; those of a norm are its outputs as well
    constant: int  # where the trace tells what each of them holds
    outputs: Sequence[int]  # the channels that it makes
    groups: int = 1  # of a convolution
    exact: bool = True  # whether a constant input adds the same to every output position; not so next to padding

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == len(self.inputs)


class Values:
    """What the layers of a network hold, and what follows for their channels."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def held(self, name: str) -> Tensor:
        """A parameter or buffer by its name, in double precision."""
        return named_tensor(self._model, name).detach().cpu().double()

    def answer(self, reader: Reader, inputs: Tensor) -> Tensor:
        """What each output of a layer is without the bias, if all inputs that it listens to are constant."""
        return sums(reader, self.weight(reader), inputs)

    def listens(self, reader: Reader) -> Tensor:
        """Whether each input of a layer has a weight that is not zero."""
        taps = _taps(self.weight(reader)).abs().amax(2)
        return (taps.view(reader.groups, -1, taps.shape[1]).amax(1) > 0).flatten()

    def scale(self, path: str) -> Tensor | None:
        return None if self._model.get_submodule(path).weight is None else self.held(f"{path}.weight")

    def weight(self, reader: Reader) -> Tensor:
        """The weights of a convolution or linear layer, outputs first, inputs of the group second."""
        weight = self.held(f"{reader.path}.weight")
        if reader.kind != "transposed":
            return weight
        parts = weight.unflatten(0, (reader.groups, -1)).transpose(1, 2)
        return parts.reshape(-1, *parts.shape[2:])


def named_tensor(model: nn.Module, name: str) -> Tensor:
    path, _, attribute = name.rpartition(".")
    found = getattr(model.get_submodule(path), attribute)
    assert isinstance(found, Tensor)
    return found


def sums(reader: Reader, weight: Tensor, inputs: Tensor) -> Tensor:
    """The outputs of a layer with these weights; NaN where an input with a weight is not constant."""
    groups = reader.groups
    taps = _taps(weight).view(groups, weight.shape[0] // groups, weight.shape[1], -1)
    heard = taps.abs().amax(3) > 0
    known = inputs.view(groups, 1, -1).expand_as(heard)
    parts = torch.where(heard, taps.sum(3) * known, 0.0)
    if not reader.exact:
        parts = torch.where(heard & (known != 0), torch.nan, parts)
    return parts.sum(2).flatten()


def _taps(weight: Tensor) -> Tensor:
    return weight.reshape(*weight.shape[:2], math.prod(weight.shape[2:]))


Step = Callable[..., Tensor]


class Trace:
    """How the constants that channels hold follow from each other: steps that each make one vector of earlier ones.

    Vectors are in double precision, with NaN for what is not a constant. The trace is recorded once. Run on the
    values of a network it gives what each channel holds; on other values, what it would hold.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Step, tuple[int, ...]]] = []

    def add(self, step: Step, *given: int) -> int:
        """Add a step that is called with the values and these earlier vectors; returns the index of what it makes."""
        self._steps.append((step, given))
        return len(self._steps) - 1

    def run(self, values: Values) -> list[Tensor]:
        made: list[Tensor] = []
        for step, given in self._steps:
            made.append(step(values, *[made[index] for index in given]))
        return made


@dataclass
class Walk:
    """What is known of a network so far, as its channels are followed through its operations."""

    model: nn.Module  # the network that the program was made of
    names: dict[str, str]  # placeholder -> name of the parameter or buffer
    channels: Channels = field(default_factory=Channels)  # of all tensors
    # what is known of the value of each node; nodes that are not here are not followed
    flows: dict[Node, Flow] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)  # the layers with weights, each time one is used
    # the channels of each average pool, and how many numbers of each it averages
    pools: list[tuple[Sequence[int], int]] = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)  # what the channels hold

    def flow(self, node: Any) -> Flow | None:
        return self.flows.get(node) if isinstance(node, Node) else None

    def read(self, node: Any, axis: int, *, count: int) -> Flow:
        """The flow of an argument with channels on this axis; of one that is not followed all channels stay."""
        found = self.flow(node)
        if found is not None and found.axis == axis and len(found.channels) == count:
            return found
        if found is not None:
            self.channels.pin(found.channels, f"{node.name} is read in another way than it was made")
        fresh = self.channels.fresh(count)
        is_input = isinstance(node, Node) and node.op == "placeholder"
        self.channels.pin(fresh, "an input of the network" if is_input else f"{node} is not followed")
        unknown = torch.full((count,), torch.nan, dtype=torch.double)
        return Flow(axis, fresh, self.trace.add(lambda _: unknown))

    def name(self, node: Any) -> str | None:
        """The parameter or buffer that an argument is."""
        return self.names.get(node.name) if isinstance(node, Node) else None

    def after(self, x: Flow, step: Step, *given: int) -> Flow:
        """The same channels, which now hold what a step makes of these vectors, or of what they held."""
        return Flow(x.axis, x.channels, self.trace.add(step, *(given or (x.constant,))))

    def stay(self, node: Node, why: str = "") -> Flow | None:
        """Keep all channels that this node reads, and return None: what it does with them is not known here."""
        reason = f"{module_path(node) or 'the network itself'}: {why or node.target}"
        for one in node.all_input_nodes:
            if one in self.flows:
                self.channels.pin(self.flows[one].channels, reason)
        return None

    def use(self, reader: Reader) -> None:
        """Note a layer; one that is used twice has the same channels at both places."""
        for other in self.readers:
            if other.path == reader.path:
                self.channels.join(other.inputs, reader.inputs)
                self.channels.join(other.outputs, reader.outputs)
        self.readers.append(reader)


def shape(node: Any) -> tuple[Any, ...]:
    """The sizes of what a node makes; that of the batch is symbolic."""
    return tuple(node.meta["val"].shape)
