"""The walk: through the operations of a network, following its channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from softprune.channels.channel import Channels, Flow, Reader
from softprune.channels.program import module_path
from softprune.channels.tape import Tape


@dataclass
class Walk:
    """All that is known so far.

    Args:
        model: the network that the program was made of.
        names: placeholder -> name of the parameter or buffer.
        channels: of all tensors.
        flows: what is known of the value of each node; nodes that are not here are not followed.
        readers: the layers with weights, each time one is used.
        pools: the channels of each average pool, and how many numbers of each it averages.
        tape: what the channels hold.
    """

    model: nn.Module
    names: dict[str, str]
    channels: Channels = field(default_factory=Channels)
    flows: dict[Node, Flow] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    pools: list[tuple[Sequence[int], int]] = field(default_factory=list)
    tape: Tape = field(default_factory=Tape)

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
        self.channels.pin(fresh, "an input of the network" if _is_input(node) else f"{node} is not followed")
        return Flow(axis, fresh, self.tape.unknown(count))

    def name(self, node: Any) -> str | None:
        """The parameter or buffer that an argument is."""
        return self.names.get(node.name) if isinstance(node, Node) else None

    def stay(self, node: Node, why: str = "") -> None:
        """All channels that this node reads stay: what it does with them is not known here."""
        reason = f"{module_path(node) or 'the network itself'}: {why or node.target}"
        for one in node.all_input_nodes:
            if one in self.flows:
                self.channels.pin(self.flows[one].channels, reason)

    def use(self, reader: Reader) -> None:
        """Note a layer; one that is used twice has the same channels at both places."""
        for other in self.readers:
            if other.path == reader.path:
                self.channels.join(other.inputs, reader.inputs)
                self.channels.join(other.outputs, reader.outputs)
        self.readers.append(reader)


def begin(model: nn.Module, program: ExportedProgram) -> Walk:
    """A walk that has not begun."""
    kinds = (InputKind.PARAMETER, InputKind.BUFFER)
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind in kinds]
    return Walk(model, {spec.arg.name: str(spec.target) for spec in specs})  # type: ignore[union-attr]


def shape(node: Any) -> tuple[Any, ...]:
    """The sizes of what a node makes; that of the batch is no number."""
    return tuple(node.meta["val"].shape)


def _is_input(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "placeholder"
