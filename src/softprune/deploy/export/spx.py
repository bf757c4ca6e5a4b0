"""Writing a graph into a .spx file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from softprune.deploy.export.graph import Graph
from softprune.deploy.export.storage import stored
from softprune.deploy.export.tensor_file import write_safetensors

FORMAT, VERSION = "spx", "1"


def write_spx(graph: Graph, path: Path) -> None:
    """Write the graph and its weights, each in its smallest form; equal graphs give equal bytes."""
    document = graph.document()
    tensors: dict[str, NDArray[Any]] = {}
    for name, weight in graph.weights.items():
        form, parts = stored(name, weight)
        document["weights"][name]["storage"] = form
        tensors.update(parts)
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    write_safetensors(path, tensors, {"format": FORMAT, "version": VERSION, "graph": text})
