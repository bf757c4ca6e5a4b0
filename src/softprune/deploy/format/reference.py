"""The reference engine: a graph computed in NumPy, simple, right, and the measure of the compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format.compute import OpCall
from softprune.deploy.format.graph import Array
from softprune.deploy.format.operations import OPERATIONS


def run(graph: Mapping[str, Any], weights: Mapping[str, NDArray[Any]], inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a network, one array each.

    Args:
        graph: the document in the metadata of the file.
        weights: every weight of the graph, dense, by name.
        inputs: one float32 array per input of the graph; the first axis is the batch.

    Raises:
        ValueError: if the inputs do not fit, or the graph has an operation that is not in the format.
    """
    batch = _batch(graph, inputs)
    if unknown := sorted({op["op"] for op in graph["ops"]} - OPERATIONS.keys()):
        raise ValueError(f"the graph has operations that are not in the format: {', '.join(unknown)}")
    values: dict[str, NDArray[Any]] = {spec["name"]: value for spec, value in zip(graph["inputs"], inputs, strict=True)}
    touched = [{*op["inputs"], op.get("residual"), op["output"]} - {None} for op in graph["ops"]]
    # Where each value is read for the last time, so that its memory can go; outputs stay to the end.
    last = {name: position for position, names in enumerate(touched) for name in names}
    last |= dict.fromkeys(graph["outputs"], len(touched))
    for position, op in enumerate(graph["ops"]):
        read = tuple(values[name] for name in op["inputs"])
        residual = op.get("residual")
        call = OpCall(op, read, None if residual is None else values[residual], weights, batch)
        values[op["output"]] = OPERATIONS[op["op"]].compute(call)
        for name in touched[position]:
            if last[name] <= position:
                del values[name]
    return [np.ascontiguousarray(values[name]) for name in graph["outputs"]]


def _batch(graph: Mapping[str, Any], inputs: Sequence[Array]) -> int:
    """The size of the batch, after a check of every input."""
    if len(inputs) != len(graph["inputs"]):
        raise ValueError(f"the network takes {len(graph['inputs'])} inputs, got {len(inputs)}")
    batches = set()
    for spec, value in zip(graph["inputs"], inputs, strict=True):
        shape = spec["shape"]
        fits = value.ndim == len(shape) and all(s is None or s == n for s, n in zip(shape, value.shape, strict=True))
        if value.dtype != np.float32 or not fits:
            wanted = ", ".join("batch" if size is None else str(size) for size in shape)
            got = f"{value.dtype} of shape {value.shape}"
            raise ValueError(f"input {spec['name']} must be float32 of shape ({wanted}), got {got}")
        if shape and shape[0] is None:
            batches.add(value.shape[0])
    if len(batches) > 1:
        raise ValueError(f"all inputs must have the same batch size, got {sorted(batches)}")
    return batches.pop() if batches else 1
