"""GraphBuilder: a graph of the format's operations while it grows, and the arguments of ATen operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from softprune.deploy.format.graph import Array, Graph, Op, SymbolicShape
from softprune.structure.program import module_path

MOST_AXES = 6


class UnsupportedError(ValueError):
    """An operation that the format cannot express, with the reason."""


@dataclass(frozen=True)
class Everyone:
    """A constant that is no float32, expanded to as many as the batch: a mask that is the same for all samples.

    Args:
        tensor: with 1 in the place of the batch.
    """

    tensor: Tensor


class GraphBuilder:
    """The graph while it grows; rules read their arguments from it and emit operations into it.

    Every node of the program is one of three things here: a value (a name in the graph), a constant (a tensor
    that no input reaches) or something that is no tensor, such as the size of the batch.
    """

    def __init__(self) -> None:
        self.graph = Graph()
        self._known: dict[Node, Any] = {}
        self._weights: dict[tuple[int, tuple[int, ...]], str] = {}
        self._kept: list[Array] = []  # keeps the arrays alive that are known by their address
        self._current: Node | None = None
        self.batch = ""  # how shapes call the size of the batch

    def __getitem__(self, node: Any) -> Any:
        """What an argument of a node is: a value's name, a constant tensor, a list of these, or a plain argument."""
        if isinstance(node, Node):
            return self._known[node]
        if isinstance(node, list | tuple):
            return [self[item] for item in node]
        return node

    def shape(self, node: Node) -> SymbolicShape:
        """The shape of what a node makes; sizes that depend on the batch as text."""
        return shape_of(node.meta["val"])

    def sizes(self, shape: SymbolicShape, what: str) -> list[int | None]:
        """A shape as a reshape has it: None is the batch, -1 one size that follows from the others."""
        found = [size if isinstance(size, int) else None if size == self.batch else -1 for size in shape]
        if found.count(-1) > 1:
            raise UnsupportedError(f"{what} {shape} has more than one size that depends on the batch")
        return found

    @property
    def node(self) -> Node:
        """The node that is being lowered."""
        assert self._current is not None
        return self._current

    def begin(self, node: Node) -> None:
        """Lower this node next: what is emitted from here on has its shape and its path."""
        self._current = node

    def define(self, node: Node, what: Any) -> None:
        """Say what a node is."""
        self._known[node] = what

    def weight(self, tensor: Tensor | Array) -> str:
        """Put a constant among the weights; the same tensor is there once.

        Returns:
            Its name.
        """
        if isinstance(tensor, Tensor):
            tensor = tensor.detach().to(torch.float32).numpy()
        key = (tensor.__array_interface__["data"][0], (*tensor.shape, *tensor.strides))
        if tensor.size == 0 or key not in self._weights:
            name = f"w{len(self._kept)}"
            self._kept.append(tensor)
            self._weights[key] = name
            self.graph.weights[name] = np.ascontiguousarray(tensor, dtype=np.float32)
        return self._weights[key]

    def emit(self, kind: str, inputs: Sequence[str], shape: SymbolicShape | None = None, /, **fields: Any) -> str:
        """Add an operation.

        Args:
            kind: its name in the format.
            inputs: the values that it reads.
            shape: of its value; that of the current node if it is not given.
            fields: what the format asks for.

        Returns:
            The name of its value.
        """
        made = self.shape(self.node) if shape is None else shape
        if len(made) > MOST_AXES:
            raise UnsupportedError(f"shape {made} has {len(made)} axes, the format has at most {MOST_AXES}")
        output = f"t{len(self.graph.shapes)}"
        self.graph.ops.append(Op(kind, module_path(self.node), list(inputs), output, fields))
        self.graph.shapes[output] = made
        return output

    def value(self, what: Any) -> str:
        """The name of a value; a constant becomes one."""
        if isinstance(what, Tensor):
            shape: SymbolicShape = tuple(what.shape)
            return self.emit("constant", [], shape, weight=self.weight(what))
        if not isinstance(what, str):
            raise UnsupportedError(f"a tensor is needed, got {what!r}")
        return what


def shape_of(tensor: Tensor) -> SymbolicShape:
    """The shape of a captured tensor; sizes that depend on the batch as text."""
    return tuple(size if isinstance(size, int) else str(size) for size in tensor.shape)


# Reading the arguments of ATen operations.


def pair(given: int | Sequence[int]) -> list[int]:
    """One number for rows and columns, or one for each."""
    if isinstance(given, int):
        return [given, given]
    sizes = [int(size) for size in given]
    return sizes * 2 if len(sizes) == 1 else sizes


def constant(builder: GraphBuilder, node: Node | None, what: str) -> Tensor:
    """A tensor that must not depend on the inputs."""
    found = builder[node]
    if not isinstance(found, Tensor):
        raise UnsupportedError(f"its {what} is computed from an input, only a constant one is in the format")
    return found


def optional(builder: GraphBuilder, node: Node | None, what: str) -> str | None:
    """The name of a constant among the weights, None if there is none."""
    return None if node is None else builder.weight(constant(builder, node, what))


def axis_of(builder: GraphBuilder, x: Node, axis: int) -> int:
    """An axis counted from the front."""
    return axis % len(builder.shape(x))


def length(builder: GraphBuilder, x: Node, axis: int) -> int:
    """The size of an axis, which must not be the batch."""
    size: Any = builder.shape(x)[axis]
    if not isinstance(size, int):
        raise UnsupportedError("it works along the batch, and samples do not see each other in the format")
    return size
