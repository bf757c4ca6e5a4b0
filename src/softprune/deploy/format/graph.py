"""A network as operations of the format and their weights, while it is built and after it was read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format.rice import rice_decode

Array = NDArray[np.float32]
# A size that is no number is an expression of the batch, such as "s0" or "4*s0".
SymbolicShape = tuple[int | str, ...]

# Fields of operations that name a weight.
WEIGHT_FIELDS = ("weight", "bias", "scale", "shift", "mask", "factor", "table")


@dataclass(frozen=True)
class Weight:
    """A weight of the network as the file has it, until it is used."""

    shape: tuple[int, ...]  # of the weight
    values: NDArray[Any]  # the stored values: float32, int8, int32 or uint8; may contain zeros
    storage: str = "dense"  # "dense", "mask", "gaps" or "rice"
    index: NDArray[Any] | None = None  # the mask, the gaps, or k and the Rice codes of the gaps

    def _places(self, index: NDArray[Any]) -> NDArray[np.int64]:
        """Flat places of the stored values in ascending order."""
        if self.storage == "mask":
            return np.flatnonzero(np.unpackbits(index, bitorder="little"))
        coded = self.storage == "rice"
        gaps = rice_decode(index[1:], len(self.values), int(index[0])) if coded else index.astype(np.int64)
        return np.cumsum(gaps + 1) - 1

    def dense(self) -> NDArray[Any]:
        if self.index is None:
            return self.values.reshape(self.shape)
        flat = np.zeros(math.prod(self.shape), self.values.dtype)
        flat[self._places(self.index)] = self.values
        return flat.reshape(self.shape)

    def nonzeros(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Flat places and values of the nonzeros."""
        flat = self.values.reshape(-1)
        kept = np.flatnonzero(flat)
        return (kept if self.index is None else self._places(self.index)[kept]), flat[kept]

    def count(self) -> int:
        """The number of nonzeros."""
        return int(np.count_nonzero(self.values))

    def reshaped(self, shape: tuple[int, ...]) -> Weight:
        return replace(self, shape=shape)


@dataclass
class Op:
    """One operation: its name in the format, the module it comes from, the values it reads and the one it makes."""

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
    """Operations in order of execution."""

    inputs: dict[str, tuple[int | None, ...]] = field(default_factory=dict)  # name -> shape, with None for the batch
    outputs: list[str] = field(default_factory=list)  # names of values
    ops: list[Op] = field(default_factory=list)  # the operations
    # name -> array, dense, while a graph is built; a graph from a file has them in its `Model`
    weights: dict[str, NDArray[Any]] = field(default_factory=dict)
    shapes: dict[str, SymbolicShape] = field(default_factory=dict)  # of every value, while a graph is built
    # what a file says about each weight: its shape and its storage
    entries: Mapping[str, Any] = field(default_factory=dict)

    def last_reads(self) -> dict[str, int]:
        """For each value that an operation makes or reads, where it is needed last; outputs after all operations."""
        last = {op.output: place for place, op in enumerate(self.ops)}
        for place, op in enumerate(self.ops):
            last.update(dict.fromkeys(op.reads, place))
        return last | dict.fromkeys(self.outputs, len(self.ops))

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
