"""Reading .spx files; nothing in them is trusted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from softprune.deploy.runtime.graph import Graph, read_graph
from softprune.deploy.runtime.tensorfile import TensorFile, read_tensors
from softprune.deploy.runtime.weight import Weight, read_weight

VERSIONS = ("1",)


@dataclass(frozen=True)
class Model:
    """A network from a file: its graph and its weights."""

    path: Path
    graph: Graph
    weights: Mapping[str, Weight]
    file: TensorFile

    @cached_property
    def digest(self) -> str:
        """A hash of the content; equal networks have equal ones."""
        whole = hashlib.sha256(self.file.metadata["graph"].encode())
        for name in sorted(self.file.tensors):
            tensor = self.file.tensors[name]
            whole.update(f"{name}{tensor.dtype}{tensor.shape}".encode())
            whole.update(tensor.data if tensor.size else b"")
        return whole.hexdigest()


def read_spx(path: str | Path) -> Model:
    """Read and check a .spx file; the weights stay as the file has them until they are used.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not a valid file of a known version; says what is wrong.
    """
    path = Path(path)
    file = read_tensors(path)
    if file.metadata.get("format") != "spx":
        raise ValueError(f"{path} is no .spx file: its metadata does not say so")
    version = file.metadata.get("version")
    if version not in VERSIONS:
        known = ", ".join(VERSIONS)
        raise ValueError(f"{path} has version {version!r:.20} of the format, known are {known}: update softprune")
    try:
        document: Any = json.loads(file.metadata.get("graph", ""))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: the graph is not JSON") from error
    graph = read_graph(document)
    weights = {name: read_weight(name, entry, file.tensors) for name, entry in document["weights"].items()}
    return Model(path, graph, weights, file)
