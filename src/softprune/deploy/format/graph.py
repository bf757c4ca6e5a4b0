"""Graph: a network as operations of the format, while it is built and after it was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
# A size that is no number is an expression of the batch, such as "s0" or "4*s0".
SymbolicShape = tuple[int | str, ...]

# Fields of operations that name a weight.
WEIGHT_FIELDS = ("weight", "bias", "scale", "shift", "mask")


@dataclass
class Op:
    """One operation.

    Attributes:
        kind: its name in the format.
        path: of the module that it comes from.
        inputs: the values that it reads.
        output: the value that it makes.
        fields: everything else that the format asks for.
    """

    kind: str
    path: str
    inputs: list[str]
    output: str
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> list[str]:
        """The inputs and the residual."""
        residual = self.fields.get("residual")
        return self.inputs if residual is None else [*self.inputs, residual]

    def rename(self, old: str, new: str) -> None:
        """Read ``new`` wherever ``old`` was read."""
        self.inputs = [new if name == old else name for name in self.inputs]
        if self.fields.get("residual") == old:
            self.fields["residual"] = new

    def weight_names(self) -> Iterator[tuple[str, str]]:
        """(field, name) of every weight that it reads."""
        for key in WEIGHT_FIELDS:
            # The scale of an attention and of a resize are numbers.
            if isinstance(self.fields.get(key), str):
                yield key, self.fields[key]

    def __str__(self) -> str:
        return f"{self.kind} at {self.path!r}"


@dataclass
class Graph:
    """Operations in order of execution.

    Attributes:
        inputs: name -> shape, with None for the batch.
        outputs: names of values.
        ops: the operations.
        weights: name -> array, dense, while a graph is built; a graph from a file has them in its `Model`.
        shapes: of every value, while a graph is built.
        entries: what a file says about each weight: its shape and its storage.
    """

    inputs: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, SymbolicShape] = field(default_factory=dict)
    entries: Mapping[str, Any] = field(default_factory=dict)

    def users(self) -> dict[str, list[Op]]:
        """The operations that read each value, once per reading."""
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in op.reads:
                found.setdefault(name, []).append(op)
        return found

    def replace(self, old: str, new: str) -> None:
        """Let everything that reads the value ``old`` read ``new``."""
        for op in self.ops:
            op.rename(old, new)
        self.outputs = [new if name == old else name for name in self.outputs]

    @property
    def document(self) -> dict[str, Any]:
        """The graph as the metadata of a file has it; how weights are stored is the writer's to add."""
        return {
            "inputs": [{"name": name, "shape": list(shape)} for name, shape in self.inputs.items()],
            "outputs": list(self.outputs),
            "weights": {**{name: {"shape": list(array.shape)} for name, array in self.weights.items()}, **self.entries},
            "ops": [
                {"op": op.kind, "path": op.path, "inputs": list(op.inputs), "output": op.output, **op.fields}
                for op in self.ops
            ],
        }
