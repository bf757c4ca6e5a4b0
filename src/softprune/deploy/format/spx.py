"""The .spx file: what is written into it, and how it is read; nothing in a file is trusted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format.graph import WEIGHT_FIELDS, Graph, Op, Weight
from softprune.deploy.format.operations import MAX_SIZE, OPERATIONS, Within, infer, is_integer
from softprune.deploy.format.storage import TensorFile, read_tensors, read_weight, stored, whole_numbers
from softprune.deploy.format.value_kinds import INTEGER, check_integers

FORMAT = "spx"
# Those that are read: the second has operations on bytes, and is written where there is one.
VERSIONS = ("1", "2")
MAX_OPS = 100_000


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
    if file.metadata.get("format") != FORMAT:
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
    used = sorted({op.kind for op in graph.ops} & set(INTEGER))
    if used and version == VERSIONS[0]:
        raise ValueError(f"{path} has version {version} of the format, in which there is no {used[0]}")
    weights = {name: read_weight(name, entry, file.tensors) for name, entry in document["weights"].items()}
    check_integers(graph, weights)
    return Model(path, graph, weights, file)


def check_built(graph: Graph) -> dict[str, str]:
    """The kind of every value of a graph that has its weights; a ValueError if its file could not be loaded again."""
    read_graph(json.loads(json.dumps(graph.document)))
    weights = {name: Weight(array.shape, array) for name, array in graph.weights.items()}
    kinds = check_integers(graph, weights)
    infer(graph, weights, 1)
    return kinds


def read_graph(document: Any) -> Graph:
    """Check a graph as a file has it; a ValueError names what is not in the format."""
    parts = ("inputs", "outputs", "ops")
    if not isinstance(document, dict) or not all(isinstance(document.get(part), list) for part in parts):
        raise ValueError("the graph must have lists of inputs, outputs and ops")
    if not isinstance(document.get("weights"), dict):
        raise ValueError("the graph must have an object of weights")
    if len(document["ops"]) > MAX_OPS:
        raise ValueError(f"the graph has {len(document['ops'])} operations, at most {MAX_OPS} are allowed")
    inputs = dict(_read_input(entry) for entry in document["inputs"])
    if len(inputs) != len(document["inputs"]) or not inputs:
        raise ValueError("the inputs of the graph must be one or more, with different names")
    known = set(inputs)
    ops = []
    for entry in document["ops"]:
        op = _read_op(entry, document["weights"])
        missing = [name for name in op.reads if name not in known]
        if missing or op.output in known:
            what = f"reads {missing[0]!r} before it is made" if missing else f"makes {op.output!r} a second time"
            raise ValueError(f"{op} {what}")
        known.add(op.output)
        ops.append(op)
    outputs = document["outputs"]
    if not outputs or not all(isinstance(name, str) and name in known for name in outputs):
        raise ValueError(f"the outputs {outputs!r} must be values of the graph")
    return Graph(inputs, list(outputs), ops, entries=document["weights"])


def _read_input(entry: Any) -> tuple[str, tuple[int | None, ...]]:
    fits = isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("shape"), list)
    shape = entry["shape"] if fits else []
    if not fits or not 1 <= len(shape) <= 6 or not whole_numbers(shape[1:]) or max([1, *shape[1:]]) > MAX_SIZE:
        raise ValueError(f"an input must have a name and a shape of 1 to 6 sizes, got {entry!r:.200}")
    if shape[0] is not None and not (is_integer(shape[0]) and shape[0] >= 0):
        raise ValueError(f"the first size of input {entry['name']!r} must be null or a number, got {shape[0]!r:.50}")
    return entry["name"], tuple(shape)


def _read_op(entry: Any, weights: Mapping[str, Any]) -> Op:
    if not isinstance(entry, dict) or not isinstance(entry.get("op"), str) or entry["op"] not in OPERATIONS:
        kind = entry.get("op") if isinstance(entry, dict) else entry
        raise ValueError(f"operation {kind!r:.100} is not in the format; known are {', '.join(OPERATIONS)}")
    path, output = entry.get("path", ""), entry.get("output")
    inputs: Any = entry.get("inputs")
    named = isinstance(inputs, list) and all(isinstance(name, str) for name in inputs)
    if not isinstance(path, str) or not named or not isinstance(output, str):
        raise ValueError(f"operation {entry['op']!r} must have a path, inputs and an output, all texts")
    operation = OPERATIONS[entry["op"]]
    counts, checks = operation.inputs, operation.fields
    if len(inputs) not in counts:
        raise ValueError(f"{entry['op']} at {path!r} has {len(inputs)} inputs, must have {counts[0]} to {counts[-1]}")
    fields = {key: value for key, value in entry.items() if key not in ("op", "path", "inputs", "output")}
    for key, check in checks.items():
        if not check(fields.get(key)):
            why = f"must be {check}" if isinstance(check, Within) else "which does not fit"
            raise ValueError(f"{entry['op']} at {path!r}: {key} is {fields.get(key)!r:.100}, {why}")
    unknown = sorted(set(fields) - set(checks))
    if unknown:
        raise ValueError(f"{entry['op']} at {path!r} has fields that the format does not know: {', '.join(unknown)}")
    for key in WEIGHT_FIELDS:
        if isinstance(fields.get(key), str) and fields[key] not in weights:
            raise ValueError(f"{entry['op']} at {path!r}: there is no weight {fields[key]!r}")
    return Op(entry["op"], path, list(inputs), output, fields)


def spx_content(graph: Graph) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The tensors and the metadata of a graph's file, each weight in its smallest form."""
    integer = any(op.kind in INTEGER for op in graph.ops)
    if integer or any(array.dtype != np.float32 for array in graph.weights.values()):
        check_built(graph)
    document = graph.document
    tensors: dict[str, NDArray[Any]] = {}
    for name, weight in graph.weights.items():
        form, parts = stored(name, weight)
        document["weights"][name]["storage"] = form
        tensors.update(parts)
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return tensors, {"format": FORMAT, "version": VERSIONS[integer], "graph": text}
