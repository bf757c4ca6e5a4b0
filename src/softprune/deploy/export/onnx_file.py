"""ONNX files, with dense or sparse weights."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from softprune.budget.files import write_whole
from softprune.channels.program import Example
from softprune.deploy.export.exporting import to_graph
from softprune.deploy.export.graph import Array, Graph
from softprune.deploy.export.onnx_nodes import NODES, Nodes

OPSET = 20  # the first with Gelu
IR_VERSION = 9
# A sparse value takes its place in 8 bytes beside its own 4.
SPARSE_BELOW = 1 / 3


def export_onnx(module: nn.Module, path: str | os.PathLike[str], *, example: Example, sparse: bool = False) -> Path:
    """Write an ONNX file with norms folded and a batch of any size.

    Args:
        module: plain; left as it was.
        path: of the file; an existing one is replaced as a whole.
        example: one input or a tuple of them, float32.
        sparse: store weights with less than a third of nonzeros as sparse initializers: a smaller file, that not every
            runtime reads.

    Returns:
        The path.

    Raises:
        ImportError: if the package onnx is missing.
        ValueError: as `export`.
    """
    target = Path(path)
    if target.suffix != ".onnx":
        raise ValueError(f"the file must end in .onnx, got {target.name!r}")
    onnx = require_onnx()
    model = to_onnx(onnx, to_graph(module, example), sparse=sparse)
    onnx.checker.check_model(model)
    write_whole(target, lambda part: part.write_bytes(model.SerializeToString(deterministic=True)))
    return target


def require_onnx() -> Any:
    """The package onnx, or an error that says how to install it."""
    try:
        return import_module("onnx")
    except ImportError as error:
        raise ImportError("ONNX files need the package onnx: pip install 'softprune[onnx]'") from error


def to_onnx(onnx: Any, graph: Graph, *, sparse: bool) -> Any:
    """The graph as an ONNX model."""
    nodes = Nodes(graph, onnx.helper)
    for op in graph.ops:
        NODES[op.kind](nodes, op)
    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    inputs = [make.make_tensor_value_info(name, floats, ["batch", *shape[1:]]) for name, shape in graph.inputs.items()]
    outputs = [
        make.make_tensor_value_info(name, floats, [n if isinstance(n, int) else None for n in graph.shapes[name]])
        for name in graph.outputs
    ]
    body = make.make_graph(nodes.made, "softprune", inputs, outputs)
    for name, array in nodes.constants.items():
        thin = sparse and array.ndim > 1 and np.count_nonzero(array) < SPARSE_BELOW * array.size
        if thin:
            body.sparse_initializer.append(_sparse(onnx, name, array))
        else:
            body.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = make.make_model(body, opset_imports=[make.make_opsetid("", OPSET)], producer_name="softprune")
    model.ir_version = IR_VERSION
    return model


def _sparse(onnx: Any, name: str, array: Array) -> Any:
    places = np.flatnonzero(array)
    values = onnx.numpy_helper.from_array(array.reshape(-1)[places], name)
    indices = onnx.numpy_helper.from_array(places.astype(np.int64), f"{name}.places")
    return onnx.helper.make_sparse_tensor(values, indices, list(array.shape))
