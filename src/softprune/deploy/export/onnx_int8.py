"""Integer operations in ONNX, as other tools read them: between DequantizeLinear and QuantizeLinear.

A byte is written as the real number q - zero, in steps of its scale: so a layer's weights stand for weight * factor,
and what ONNX computes are the steps of its output, which are then rounded and moved to its zero. Scales appear where a
graph has them, where numbers become bytes and bytes become numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from softprune.deploy.format.graph import Op
from softprune.deploy.format.value_kinds import EITHER, INTEGER_LAYERS

if TYPE_CHECKING:
    from softprune.deploy.export.onnx import Nodes

STEP = np.float32(1)  # the scale of a byte that is counted in its own steps


def zeros_of_bytes(ops: list[Op]) -> dict[str, int]:
    """The zero of every value of bytes; one of a table, which says no zero, has 0."""
    zeros: dict[str, int] = {}
    for op in ops:
        zero = op.fields.get("zero" if op.kind == "quantize" else "out_zero")
        if op.kind == "quantize" or (op.kind in INTEGER_LAYERS and zero is not None):
            zeros[op.output] = int(zero)  # type: ignore[arg-type]
        elif op.kind == "lookup":
            zeros[op.output] = 0
        elif op.kind in EITHER and op.inputs[0] in zeros:
            zeros[op.output] = zeros[op.inputs[0]]
    return zeros


def _numbers(nodes: Nodes, x: str, zero: int, scale: Any = STEP) -> str:
    """The real numbers of bytes."""
    return nodes.node("DequantizeLinear", [x, _scale(nodes, scale), _zero(nodes, zero)])


def _bytes(nodes: Nodes, x: str, zero: int, output: str, scale: Any = STEP) -> None:
    nodes.node("QuantizeLinear", [x, _scale(nodes, scale), _zero(nodes, zero)], output)


def _scale(nodes: Nodes, scale: Any) -> str:
    return nodes.constant(np.float32(scale))


def _zero(nodes: Nodes, zero: int) -> str:
    return nodes.exact(np.uint8(zero))


def _weights(nodes: Nodes, op: Op, *, turned: bool = False) -> list[str]:
    """Weight and bias of a layer, which make steps of its output; a turned weight has its outputs in the last axis."""
    graph = nodes.graph
    factor = nodes.weight(op, "factor", (-1,))
    weight = nodes.exact(graph.weights[op.fields["weight"]].T) if turned else nodes.weight(op, "weight")
    zeros = nodes.exact(np.zeros(graph.weights[op.fields["factor"]].size, np.int8))
    found = [nodes.node("DequantizeLinear", [weight, factor, zeros], axis=int(turned))]
    if op.fields["bias"] is not None:
        found.append(nodes.node("DequantizeLinear", [nodes.weight(op, "bias", (-1,)), factor], axis=0))
    return found


def _conv(nodes: Nodes, op: Op) -> None:
    fields = op.fields
    x = nodes.node(
        "Conv",
        [_numbers(nodes, op.inputs[0], fields["zero"]), *_weights(nodes, op)],
        strides=fields["stride"],
        pads=[*fields["padding"], *fields["padding"]],
        dilations=fields["dilation"],
        group=fields["groups"],
        kernel_shape=list(nodes.graph.weights[fields["weight"]].shape[2:]),
    )
    _finish(nodes, op, x)


def _linear(nodes: Nodes, op: Op) -> None:
    x = _numbers(nodes, op.inputs[0], op.fields["zero"])
    if len(nodes.graph.shapes[op.inputs[0]]) == 2:
        _finish(nodes, op, nodes.node("Gemm", [x, *_weights(nodes, op)], transB=1))
        return
    weight, *bias = _weights(nodes, op, turned=True)
    x = nodes.node("MatMul", [x, weight])
    for name in bias:
        x = nodes.node("Add", [x, name])
    _finish(nodes, op, x)


def _finish(nodes: Nodes, op: Op, x: str) -> None:
    """The residual, the bounds and the rounding of a layer."""
    fields = op.fields
    zero, residual = fields["out_zero"], fields["residual"]
    if zero is None:
        nodes.node("Identity" if residual is None else "Add", [x] if residual is None else [x, residual], op.output)
        return
    if residual is not None:
        x = nodes.node("Add", [x, _numbers(nodes, residual, fields["residual_zero"], fields["residual_factor"])])
    low, high = fields["low"], fields["high"]
    if (low, high) == (zero, 255):
        x = nodes.node("Relu", [x])
    elif (low, high) != (0, 255):
        x = nodes.node("Clip", [x, nodes.constant(float(low - zero)), nodes.constant(float(high - zero))])
    _bytes(nodes, x, zero, op.output)


def _quantize(nodes: Nodes, op: Op) -> None:
    _bytes(nodes, op.inputs[0], op.fields["zero"], op.output, op.fields["scale"])


def _dequantize(nodes: Nodes, op: Op) -> None:
    scale, zero = _scale(nodes, op.fields["scale"]), _zero(nodes, op.fields["zero"])
    nodes.node("DequantizeLinear", [op.inputs[0], scale, zero], op.output)


def _lookup(nodes: Nodes, op: Op) -> None:
    places = nodes.node("Cast", op.inputs, to=INT32)
    nodes.node("Gather", [nodes.weight(op, "table", (256,)), places], op.output)


INT32 = 6  # as ONNX numbers its types

INT8_NODES: Mapping[str, Callable[[Nodes, Op], None]] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "conv2d_int8": _conv,
    "linear_int8": _linear,
    "lookup": _lookup,
}


def around_bytes(nodes: Nodes, op: Op, zeros: Mapping[str, int], write: Callable[[Nodes, Op], object]) -> None:
    """An operation that moves or compares bytes, written between DequantizeLinear and QuantizeLinear."""
    inside = f"{op.output}.numbers"
    zero = zeros[op.output]
    write(nodes, Op(op.kind, op.path, [_numbers(nodes, name, zero) for name in op.inputs], inside, op.fields))
    _bytes(nodes, inside, zero, op.output)
