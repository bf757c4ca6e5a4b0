"""ONNX files, with dense or sparse weights, from a module or from a .spx file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from softprune.deploy.export.exporting import to_graph, with_suffix
from softprune.deploy.export.onnx_int8 import INT8_NODES, around_bytes, zeros_of_bytes
from softprune.deploy.format.graph import Array, Graph, Op, Weight
from softprune.deploy.format.operations import OPERATIONS, infer
from softprune.deploy.format.spx import check_built, read_spx
from softprune.deploy.format.value_kinds import EITHER
from softprune.records import write_whole
from softprune.structure.program import Example


class Nodes:
    """Nodes and constants while they are made."""

    def __init__(self, graph: Graph, make: Any) -> None:  # make: the module onnx.helper
        self.graph = graph
        self.made: list[Any] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self._make = make

    def node(self, kind: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        """Add a node; its output gets a name of its own if none is given."""
        name = output or f"n{len(self.made)}"
        self.made.append(self._make.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, array: NDArray[Any] | Sequence[int] | float) -> str:
        """Add an array; whole numbers are int64, others float32."""
        content = np.asarray(array)
        return self.exact(content.astype(np.int64 if content.dtype.kind in "iu" else np.float32))

    def exact(self, array: NDArray[Any] | np.generic) -> str:
        """Add an array of the type that it has."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(array).reshape(array.shape)
        return name

    def weight(self, op: Op, field: str, shape: Sequence[int] | None = None) -> str:
        """A weight of an operation, in its own or another shape."""
        name = op.fields[field]
        array = self.graph.weights[name]
        if shape is not None and (array := array.reshape(shape)).shape != self.graph.weights[name].shape:
            return self.exact(array)
        self.constants[name] = array
        return str(name)

    def bias(self, op: Op) -> list[str]:
        return [] if op.fields["bias"] is None else [self.weight(op, "bias")]


# Operations that ONNX has itself: its name for each, and which attribute takes which field.
SAME: dict[str, tuple[str, dict[str, str]]] = {
    "relu": ("Relu", {}),
    "hardswish": ("HardSwish", {}),
    "sigmoid": ("Sigmoid", {}),
    "tanh": ("Tanh", {}),
    "mish": ("Mish", {}),
    "identity": ("Identity", {}),
    "gelu": ("Gelu", {"approximate": "approximate"}),
    "softmax": ("Softmax", {"axis": "axis"}),
    "concat": ("Concat", {"axis": "axis"}),
    "permute": ("Transpose", {"perm": "axes"}),
    "matmul": ("MatMul", {}),
}


def _same(nodes: Nodes, op: Op) -> None:
    kind, attributes = SAME[op.kind]
    nodes.node(kind, op.inputs, op.output, **{name: op.fields[field] for name, field in attributes.items()})


def _activate(nodes: Nodes, kind: str, x: str, output: str) -> None:
    if kind == "relu6":
        nodes.node("Clip", [x, nodes.constant(0.0), nodes.constant(6.0)], output)
    elif kind == "silu":
        nodes.node("Mul", [x, nodes.node("Sigmoid", [x])], output)
    elif kind == "hardsigmoid":
        nodes.node("HardSigmoid", [x], output, alpha=1 / 6, beta=0.5)
    else:
        nodes.node(SAME[kind][0], [x], output, **({"approximate": "none"} if kind == "gelu" else {}))


def _softplus(nodes: Nodes, op: Op) -> None:
    """ONNX has neither beta nor threshold."""
    beta = float(op.fields["beta"])
    steep = nodes.node("Mul", [op.inputs[0], nodes.constant(beta)])
    smooth = nodes.node("Div", [nodes.node("Softplus", [steep]), nodes.constant(beta)])
    above = nodes.node("Greater", [steep, nodes.constant(float(op.fields["threshold"]))])
    nodes.node("Where", [above, op.inputs[0], smooth], op.output)


def _pad(nodes: Nodes, op: Op) -> None:
    top, bottom, left, right = op.fields["padding"]
    mode = {"reflect": "reflect", "circular": "wrap", "replicate": "edge"}[op.fields["mode"]]
    pads = nodes.constant([0, 0, top, left, 0, 0, bottom, right])
    nodes.node("Pad", [op.inputs[0], pads], op.output, mode=mode)


def _finish(nodes: Nodes, op: Op, x: str) -> None:
    """The residual and the activation of a layer."""
    if op.fields["residual"] is not None:
        x = nodes.node("Add", [x, op.fields["residual"]])
    _activate(nodes, op.fields["activation"] or "identity", x, op.output)


def _conv(nodes: Nodes, op: Op) -> None:
    fields = op.fields
    more = {"output_padding": fields["output_padding"]} if op.kind == "conv_transpose2d" else {}
    x = nodes.node(
        "ConvTranspose" if more else "Conv",
        [op.inputs[0], nodes.weight(op, "weight"), *nodes.bias(op)],
        strides=fields["stride"],
        pads=[*fields["padding"], *fields["padding"]],
        dilations=fields["dilation"],
        group=fields["groups"],
        kernel_shape=list(nodes.graph.weights[fields["weight"]].shape[2:]),
        **more,
    )
    _finish(nodes, op, x)


def _linear(nodes: Nodes, op: Op) -> None:
    x = op.inputs[0]
    if len(nodes.graph.shapes[x]) == 2:
        bias = nodes.bias(op)
        _finish(nodes, op, nodes.node("Gemm", [x, nodes.weight(op, "weight"), *bias], transB=1))
        return
    turned = nodes.constant(np.ascontiguousarray(nodes.graph.weights[op.fields["weight"]].T))
    x = nodes.node("MatMul", [x, turned])
    for name in nodes.bias(op):
        x = nodes.node("Add", [x, name])
    _finish(nodes, op, x)


def _pool(nodes: Nodes, op: Op) -> None:
    fields, largest = op.fields, op.kind == "max_pool2d"
    nodes.node(
        "MaxPool" if largest else "AveragePool",
        op.inputs,
        op.output,
        kernel_shape=fields["kernel"],
        strides=fields["stride"],
        pads=[*fields["padding"], *fields["padding"]],
        ceil_mode=int(fields["ceil_mode"]),
        **({"dilations": fields["dilation"]} if largest else {"count_include_pad": int(fields["count_include_pad"])}),
    )


def _adaptive(nodes: Nodes, op: Op) -> None:
    """Means as products with matrices that hold the windows, because windows may differ in size."""
    if op.fields["size"] == [1, 1]:
        nodes.node("GlobalAveragePool", op.inputs, op.output)
        return
    before = nodes.graph.shapes[op.inputs[0]][2:]
    rows, columns = (_windows(int(size), part) for size, part in zip(before, op.fields["size"], strict=True))
    across = nodes.node("MatMul", [op.inputs[0], nodes.constant(columns.T)])
    nodes.node("MatMul", [nodes.constant(rows), across], op.output)


def _windows(size: int, parts: int) -> NDArray[np.float32]:
    windows = np.zeros((parts, size), np.float32)
    for i in range(parts):
        first, last = i * size // parts, -(-(i + 1) * size // parts)
        windows[i, first:last] = 1 / (last - first)
    return windows


def _mean(nodes: Nodes, op: Op) -> None:
    axes = nodes.constant(op.fields["axes"])
    nodes.node("ReduceMean", [op.inputs[0], axes], op.output, keepdims=int(op.fields["keepdim"]))


def _binary(nodes: Nodes, op: Op) -> None:
    other = op.inputs[1] if len(op.inputs) == 2 else nodes.constant(float(op.fields["value"]))
    nodes.node(op.kind.capitalize(), [op.inputs[0], other], op.output)


def _scale_shift(nodes: Nodes, op: Op) -> None:
    shape = (-1,) + (1,) * (len(nodes.graph.shapes[op.inputs[0]]) - 2)
    scaled = nodes.node("Mul", [op.inputs[0], nodes.weight(op, "scale", shape)])
    nodes.node("Add", [scaled, nodes.weight(op, "shift", shape)], op.output)


def _layer_norm(nodes: Nodes, op: Op) -> None:
    shape = nodes.graph.shapes[op.inputs[0]]
    inside = [int(shape[axis]) for axis in op.fields["axes"]]
    weights = [nodes.weight(op, field, inside) for field in ("weight", "bias")]
    nodes.node(
        "LayerNormalization", [op.inputs[0], *weights], op.output, axis=min(op.fields["axes"]), epsilon=op.fields["eps"]
    )


def _attention(nodes: Nodes, op: Op) -> None:
    query, key, value = op.inputs
    axes = len(nodes.graph.shapes[key])
    turned = nodes.node("Transpose", [key], perm=[*range(axes - 2), axes - 1, axes - 2])
    scores = nodes.node("Mul", [nodes.node("MatMul", [query, turned]), nodes.constant(float(op.fields["scale"]))])
    if op.fields["mask"] is not None:
        scores = nodes.node("Add", [scores, nodes.weight(op, "mask")])
    nodes.node("MatMul", [nodes.node("Softmax", [scores], axis=-1), value], op.output)


def _reshape(nodes: Nodes, op: Op) -> None:
    sizes = op.fields["shape"]
    if sum(size in (None, -1) for size in sizes) <= 1:
        shape = nodes.constant([-1 if size is None else size for size in sizes])
    else:
        # Two sizes are open: the batch is read from the first input.
        whole = nodes.node("Shape", [next(iter(nodes.graph.inputs))], start=0, end=1)
        parts = [whole if size is None else nodes.constant([size]) for size in sizes]
        shape = nodes.node("Concat", parts, axis=0)
    nodes.node("Reshape", [op.inputs[0], shape], op.output)


def _slice(nodes: Nodes, op: Op) -> None:
    numbers = [nodes.constant([op.fields[key]]) for key in ("start", "stop", "axis", "step")]
    nodes.node("Slice", [op.inputs[0], *numbers], op.output)


def _resize(nodes: Nodes, op: Op) -> None:
    fields = op.fields
    if fields.get("size") is not None:
        target = ["", "", nodes.constant(fields["size"])]
    else:
        target = ["", nodes.constant(np.asarray(fields["scale"], np.float32))]
    if fields["mode"] == "nearest":
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        corners = "align_corners" if fields["align_corners"] else "half_pixel"
        how = {"mode": "linear", "coordinate_transformation_mode": corners}
    nodes.node("Resize", [op.inputs[0], *target], op.output, axes=[2, 3], **how)


NODES: dict[str, Callable[[Nodes, Op], object]] = {
    **INT8_NODES,
    **dict.fromkeys(SAME, _same),
    **dict.fromkeys(
        ("relu6", "silu", "hardsigmoid"), lambda nodes, op: _activate(nodes, op.kind, op.inputs[0], op.output)
    ),
    "elu": lambda nodes, op: nodes.node("Elu", op.inputs, op.output, alpha=float(op.fields["alpha"])),
    "softplus": _softplus,
    "conv2d": _conv,
    "conv_transpose2d": _conv,
    "linear": _linear,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "adaptive_avg_pool2d": _adaptive,
    "mean": _mean,
    "add": _binary,
    "mul": _binary,
    "scale_shift": _scale_shift,
    "layer_norm": _layer_norm,
    "attention": _attention,
    "reshape": _reshape,
    "slice": _slice,
    "pad": _pad,
    "resize": _resize,
    "constant": lambda nodes, op: nodes.node("Identity", [nodes.weight(op, "weight")], op.output),
}


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

    Raises:
        ImportError: if the package onnx is missing.
        ValueError: as `export`.
    """
    return _write(path, lambda: to_graph(module, example), sparse=sparse)


def write_onnx_int8(graph: Graph, path: str | os.PathLike[str]) -> Path:
    """Write a graph with integer operations as ONNX with QuantizeLinear and DequantizeLinear; replaces a file.

    ONNX Runtime's bytes and the graph's differ by one step at most.

    Raises:
        ImportError: if the package onnx is missing.
        ValueError: if a value, a weight or a bound does not fit its operation; nothing is written then.
    """

    def whole() -> Graph:
        check_built(graph)
        return _graph(graph, {name: Weight(array.shape, array) for name, array in graph.weights.items()})

    return _write(path, whole, sparse=False)


def _write(path: str | os.PathLike[str], graph: Callable[[], Graph], *, sparse: bool) -> Path:
    target = with_suffix(path, ".onnx")
    try:
        onnx = import_module("onnx")
    except ImportError as error:
        raise ImportError("ONNX files need the package onnx: pip install 'softprune[onnx]'") from error
    model = _to_onnx(onnx, graph(), sparse=sparse)
    onnx.checker.check_model(model)
    write_whole(target, lambda part: part.write_bytes(model.SerializeToString(deterministic=True)))
    return target


def _to_onnx(onnx: Any, graph: Graph, *, sparse: bool) -> Any:
    nodes = Nodes(graph, onnx.helper)
    zeros = zeros_of_bytes(graph.ops)
    for op in graph.ops:
        if op.kind in EITHER and op.output in zeros:
            around_bytes(nodes, op, zeros, NODES[op.kind])
        else:
            NODES[op.kind](nodes, op)
    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    inputs = [make.make_tensor_value_info(name, floats, ["batch", *shape[1:]]) for name, shape in graph.inputs.items()]
    outputs = [
        make.make_tensor_value_info(name, floats, [n if isinstance(n, int) else None for n in graph.shapes[name]])
        for name in graph.outputs
    ]
    body = make.make_graph(nodes.made, "softprune", inputs, outputs)
    for name, array in nodes.constants.items():
        if (
            sparse
            and array.ndim > 1
            and array.dtype == np.float32
            and np.count_nonzero(array) < SPARSE_BELOW * array.size
        ):
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


# What a slice without ends means.
WHOLE = {"start": 0, "stop": np.iinfo(np.int64).max}


def spx_to_onnx(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Write the network of a .spx file as ONNX, with dense weights; an existing file is replaced as a whole."""

    def whole() -> Graph:
        model = read_spx(Path(source))
        return _graph(model.graph, model.weights)

    return _write(path, whole, sparse=False)


def _graph(graph: Graph, held: Mapping[str, Weight]) -> Graph:
    few, more = (infer(graph, held, batch) for batch in (2, 3))
    return Graph(
        inputs=dict(graph.inputs),
        outputs=list(graph.outputs),
        ops=[Op(op.kind, op.path, list(op.inputs), op.output, _fields(op)) for op in graph.ops],
        weights={name: np.ascontiguousarray(weight.dense()) for name, weight in held.items()},
        # A size that changes with the batch is text.
        shapes={
            name: tuple(n if n == m else "batch" for n, m in zip(shape, more[name], strict=True))
            for name, shape in few.items()
        },
    )


def _fields(op: Any) -> dict[str, Any]:
    """All fields of the operation; the reader lets those be absent that may be null."""
    fields = {**dict.fromkeys(OPERATIONS[op.kind].fields), **op.fields}
    if op.kind == "slice":
        fields |= {key: end for key, end in WHOLE.items() if fields[key] is None}
    return fields
