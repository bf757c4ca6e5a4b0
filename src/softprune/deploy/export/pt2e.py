"""Reading programs that PyTorch's export-based quantisation (PT2E) has made, as `convert_pt2e` returns them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node

from softprune.deploy.export.aten import RULES
from softprune.deploy.export.qdq import CODES, CURVES, Code, Numbers, QdqBuilder, Stored
from softprune.deploy.export.translate import GraphBuilder, UnsupportedError, translate
from softprune.deploy.format.graph import Graph, Op
from softprune.structure.program import Example, batch_of_two

PREFIX = "quantized_decomposed."
SHIFTS = {torch.uint8: 0, torch.int8: 128}


def read_pt2e(model: GraphModule | ExportedProgram, example: Example | None = None) -> Graph:
    """A quantised program as operations of the format, whose bytes are those of the program.

    Args:
        model: what ``convert_pt2e`` returns, or the program that ``torch.export.export`` makes of it with a batch of
            any size.
        example: one input or a tuple of them, float32; only a program goes without.

    Raises:
        ValueError: if an operation is not in the format, or is quantised in a way that is not read; names it.
    """
    program = model if isinstance(model, ExportedProgram) else _program(model, example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch warns of its own code
        program = program.run_decompositions({})
    return _integers(translate(program, {**RULES, **QUANTISATION}), _stored(program))


def _program(model: GraphModule, example: Example | None) -> ExportedProgram:
    if example is None:
        raise ValueError("a module needs an example: one input or a tuple of them, float32")
    inputs = batch_of_two(example)
    batch = Dim("batch", min=1)
    try:
        return torch.export.export(model, inputs, dynamic_shapes=tuple({0: batch} for _ in inputs))
    except Exception as error:  # torch.export fails with whatever the module's code stumbles over
        raise ValueError(
            f"torch.export cannot follow the module with a batch of any size: export it so before it is quantised: "
            f"{error}"
        ) from error


def _zero(zero: Any, kind: torch.dtype, least: int, most: int) -> int:
    if kind not in SHIFTS or not isinstance(zero, int):
        raise UnsupportedError(f"makes {kind}, only uint8 and int8 with constant scales are read")
    whole = torch.iinfo(kind)
    if (least, most) != (whole.min, whole.max):
        raise UnsupportedError(f"has values of {least} to {most}, must be all of {kind}")
    return zero + SHIFTS[kind]


def _quantize(
    builder: GraphBuilder, x: Node, scale: float, zero: int, least: int, most: int, kind: torch.dtype, **more: Any
) -> str:
    return builder.emit("quantize", [x], scale=float(scale), zero=_zero(zero, kind, least, most))


def _dequantize(
    builder: GraphBuilder, x: Node, scale: float, zero: int, least: int, most: int, kind: torch.dtype, **more: Any
) -> str:
    return builder.emit("dequantize", [x], scale=float(scale), zero=_zero(zero, kind, least, most))


QUANTISATION = {
    f"{PREFIX}quantize_per_tensor.default": _quantize,
    f"{PREFIX}dequantize_per_tensor.default": _dequantize,
}


def _stored(program: ExportedProgram) -> dict[bytes, Stored]:
    """The constants of whole numbers, by the bytes of the float32 numbers that they stand for."""
    held = {**program.state_dict, **program.constants}
    names = {
        spec.arg.name: held[spec.target]
        for spec in program.graph_signature.input_specs
        if spec.target in held and isinstance(held[spec.target], Tensor)
    }
    found = {}
    for node in program.graph.nodes:
        given: list[Any] = [names.get(arg.name) if isinstance(arg, Node) else arg for arg in node.args]
        if not str(node.target).startswith(f"{PREFIX}dequantize") or not isinstance(given[0], Tensor):
            continue
        scale, zero = (np.asarray(arg).reshape(-1) for arg in given[1:3])
        axis = int(given[3]) if "per_channel" in str(node.target) else 0
        symmetric = bool((zero == 0).all()) and given[0].dtype == torch.int8
        stored = Stored(given[0].numpy(), zero.astype(np.int64), scale.astype(np.float32), axis, symmetric)
        numbers = node.target(*given, **node.kwargs)
        found[numbers.detach().contiguous().numpy().tobytes()] = stored
    return found


# The second walk: from operations of the format, with numbers between quantize and dequantize, to those on bytes.

MOVES = ("identity", "reshape", "permute", "slice", "max_pool2d")
AFTER = ("weight", "bias", "residual", "activation")


def _integers(graph: Graph, stored: Mapping[bytes, Stored]) -> Graph:
    builder = QdqBuilder()
    values: dict[str, Any] = {name: builder.input(name, shape) for name, shape in graph.inputs.items()}
    uses = Counter(name for op in graph.ops for name in op.reads)
    uses.update(dict.fromkeys(graph.outputs, 2))
    for op in graph.ops:
        builder.path = op.path
        made = _made(builder, op, [values[name] for name in op.inputs], graph.weights, stored)
        shared = uses[op.output] > 1 and not isinstance(made, CODES)
        values[op.output] = builder.number(made) if shared else made
    return builder.finish([values[name] for name in graph.outputs])


def _made(
    b: QdqBuilder, op: Op, inputs: list[Any], weights: Mapping[str, NDArray[Any]], stored: Mapping[bytes, Stored]
) -> Any:
    """What an operation makes, from what its inputs are."""
    fields = op.fields
    if op.kind == "quantize":
        return b.quantize(inputs[0], fields["scale"], fields["zero"])
    if op.kind == "dequantize":
        return Numbers(Code(inputs[0].name, fields["scale"], fields["zero"]))
    if op.kind in ("conv2d", "linear"):
        weight = weights[fields["weight"]]
        found = stored.get(weight.tobytes())
        same = found is not None and found.held.size == weight.size and found.held.shape[:1] == weight.shape[:1]
        whole = found.reshaped(weight.shape) if same and found is not None else weight
        bias = None if fields["bias"] is None else weights[fields["bias"]]
        return b.layer(op.kind, inputs[0], whole, bias, {k: v for k, v in fields.items() if k not in AFTER})
    if op.kind == "add" and len(inputs) == 2:
        return b.add(*inputs)
    if op.kind in CURVES:
        return b.curve(op.kind, inputs[0])
    if op.kind in MOVES:
        return b.move(op.kind, inputs[0], **fields)
    if op.kind == "concat":
        return b.concat(inputs, fields["axis"])
    named = {key: b.weight(weights[name]) for key, name in op.weight_names()}
    return b.emit(op.kind, [b.number(x) for x in inputs], **{**fields, **named})
