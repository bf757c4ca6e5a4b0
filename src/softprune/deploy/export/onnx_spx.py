"""From a .spx file to ONNX, so that other engines run the same network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from softprune.budget.files import write_whole
from softprune.deploy.export.graph import Graph, Op
from softprune.deploy.export.onnx_file import require_onnx, to_onnx
from softprune.deploy.runtime.graph import OPERATIONS
from softprune.deploy.runtime.shape import infer
from softprune.deploy.runtime.spx import Model, read_spx

# What a slice without ends means.
WHOLE = {"start": 0, "stop": np.iinfo(np.int64).max}


def spx_to_onnx(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Write the network of a .spx file as ONNX, with dense weights.

    Args:
        source: a .spx file.
        path: of the file; an existing one is replaced as a whole.

    Returns:
        The path.

    Raises:
        ImportError: if the package onnx is missing.
        ValueError: if the source is not a valid network, or the path does not end in .onnx.
    """
    target = Path(path)
    if target.suffix != ".onnx":
        raise ValueError(f"the file must end in .onnx, got {target.name!r}")
    onnx = require_onnx()
    model = to_onnx(onnx, _graph(read_spx(Path(source))), sparse=False)
    onnx.checker.check_model(model)
    write_whole(target, lambda part: part.write_bytes(model.SerializeToString(deterministic=True)))
    return target


def _graph(model: Model) -> Graph:
    few, more = (infer(model.graph, model.weights, batch) for batch in (2, 3))
    return Graph(
        inputs=dict(model.graph.inputs),
        outputs=list(model.graph.outputs),
        ops=[Op(op.kind, op.path, list(op.inputs), op.output, _fields(op)) for op in model.graph.ops],
        weights={name: np.ascontiguousarray(weight.dense()) for name, weight in model.weights.items()},
        # A size that changes with the batch is no number.
        shapes={
            name: tuple(n if n == m else "batch" for n, m in zip(shape, more[name], strict=True))
            for name, shape in few.items()
        },
    )


def _fields(op: Any) -> dict[str, Any]:
    """All fields of the operation; the reader lets those be absent that may be null."""
    fields = {**dict.fromkeys(OPERATIONS[op.kind][1]), **op.fields}
    if op.kind == "slice":
        fields |= {key: end for key, end in WHOLE.items() if fields[key] is None}
    return fields
