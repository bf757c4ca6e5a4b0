"""Small .spx files, written by hand: the tests of the reader must not depend on the writer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAMES = {np.dtype("<f4"): "F32", np.dtype("u1"): "U8", np.dtype("<u2"): "U16"}


def stored(name: str, weight: NDArray[np.float32], storage: str) -> dict[str, NDArray[Any]]:
    """The tensors of a weight."""
    flat = weight.reshape(-1)
    if storage == "dense":
        return {name: weight}
    if storage == "mask":
        return {f"{name}.mask": np.packbits(flat != 0, bitorder="little"), f"{name}.values": flat[flat != 0]}
    gaps: list[int] = []
    values: list[float] = []
    zeros = 0
    for x in flat:
        if x != 0 or zeros == 255:
            gaps.append(zeros)
            values.append(float(x))
            zeros = 0
        else:
            zeros += 1
    return {f"{name}.gaps": np.array(gaps, np.uint8), f"{name}.values": np.array(values, np.float32)}


def write_file(path: Path, graph: Any, tensors: Mapping[str, NDArray[Any]], **metadata: str) -> Path:
    """Write a safetensors file with the graph in its metadata."""
    header: dict[str, Any] = {"__metadata__": {"format": "spx", "version": "1", "graph": json.dumps(graph), **metadata}}
    body = b""
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):
        data = tensor.tobytes()
        entry = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = {**entry, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def op(kind: str, inputs: Sequence[str], output: str, **fields: Any) -> dict[str, Any]:
    """An operation of a graph."""
    return {"op": kind, "path": f"net.{output}", "inputs": list(inputs), "output": output, **fields}


def write_net(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    ops: Sequence[Mapping[str, Any]],
    weights: Mapping[str, NDArray[np.float32]],
    *,
    outputs: Sequence[str] | None = None,
) -> Path:
    """Write a network; weights with two axes or more are stored in turn as dense, mask and gaps."""
    tensors: dict[str, NDArray[Any]] = {}
    entries = {}
    for i, (name, weight) in enumerate(weights.items()):
        storage = ("dense", "mask", "gaps")[i % 3] if weight.ndim > 1 else "dense"
        tensors.update(stored(name, weight, storage))
        entries[name] = {"shape": list(weight.shape), "storage": storage}
    graph = {
        "inputs": [{"name": name, "shape": [None, *shape]} for name, shape in shapes.items()],
        "outputs": list(outputs or [ops[-1]["output"]]),
        "weights": entries,
        "ops": list(ops),
    }
    return write_file(path, graph, tensors)
