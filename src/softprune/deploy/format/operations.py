"""The operations of the format in one table: fields, shape, meaning in NumPy, and what each does to the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format import compute, integer_compute, shapes, spatial
from softprune.deploy.format.compute import OpCall
from softprune.deploy.format.graph import Graph, Op, Weight
from softprune.deploy.format.shapes import MAX_AXES, MAX_ELEMENTS, Scope, Shape
from softprune.deploy.format.storage import whole_numbers
from softprune.deploy.format.value_kinds import LEAST_SCALE, MOST_SCALE, infer_kinds

# Beyond these sizes products of sizes would leave the range of the kernels' numbers.
MAX_SIZE = 1 << 24
# The largest number in 32 bits.
MAX_FLOAT = 3.4028234663852886e38

# What a field may hold. Nothing is converted: a whole number of a file may be larger than any float.
Check = Callable[[Any], bool]


def is_integer(value: Any) -> bool:
    """Whether a field is a whole number of a size that the kernels can work with."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_SIZE


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_FLOAT <= value <= MAX_FLOAT


def _instance(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


def _positive(value: Any) -> bool:
    return is_integer(value) and value > 0


def _axes(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 6 and all(is_integer(axis) for axis in value)


def _new_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 6 and all(n is None or (is_integer(n) and n >= -1) for n in value)


def _scales(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_number(n) and 0 < n <= 1024 for n in value)


def _steepness(value: Any) -> bool:
    # Beyond these the quotient by it would leave the range of the numbers.
    return _number(value) and 1e-6 <= value <= 1e6


@dataclass(frozen=True)
class Within:
    """Whether a number lies in a range; as a text, what it must be."""

    low: float
    high: float
    whole: bool = True
    null: bool = False  # whether there may be none

    def __call__(self, value: Any) -> bool:
        if value is None:
            return self.null
        return (is_integer(value) or (not self.whole and _number(value))) and self.low <= value <= self.high

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}{' or null' if self.null else ''}"


def _sizes(count: int, least: int = 0) -> Check:
    return lambda value: whole_numbers(value) and len(value) == count and least <= min(value) and max(value) <= MAX_SIZE


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _one_of(*values: Any) -> Check:
    return lambda value: value in values


# The samples of a batch do not see each other in an operation if it leaves the first axis alone; these functions say
# whether it does, given the names of the values whose first axis is the batch.
KeepsBatch = Callable[[Scope, Set[str]], bool]


def _over_axes(scope: Scope, batched: Set[str]) -> bool:
    return all(axis % len(scope.inputs[0]) for axis in scope.op.fields["axes"])


def _along_axis(scope: Scope, batched: Set[str]) -> bool:
    return scope.op.fields["axis"] % len(scope.inputs[0]) != 0 and batched >= set(scope.op.inputs)


def _keeps_samples(shape: Shape, out: Shape, batched: bool) -> bool:  # noqa: FBT001
    """Whether a value's first axis stays the batch; a constant is the same for all samples."""
    return len(shape) == len(out) if batched else len(shape) < len(out) or shape[0] == 1


def _broadcasts(scope: Scope, batched: Set[str]) -> bool:
    out = scope.shapes[scope.op.output]
    return all(_keeps_samples(scope.shapes[name], out, name in batched) for name in scope.op.inputs)


def _multiplies(scope: Scope, batched: Set[str]) -> bool:
    (first, second), out = scope.op.inputs, scope.shapes[scope.op.output]
    kept = first in batched and len(out) == len(scope.inputs[0]) and (len(out) > 2 or second not in batched)
    return kept and _keeps_samples(scope.inputs[1], out, second in batched)


def _attends(scope: Scope, batched: Set[str]) -> bool:
    return len(scope.inputs[0]) > 2 and batched >= set(scope.op.inputs) and scope.op.fields.get("mask") is None


@dataclass(frozen=True)
class Operation:
    """What the format says about one operation."""

    shape: Callable[[Scope], Shape]  # or an error if inputs, fields and weights do not fit together
    compute: Callable[[OpCall], NDArray[Any]]
    # name -> whether a value is allowed; a field that may be None may be absent
    fields: Mapping[str, Check] = field(default_factory=dict)
    inputs: range = range(1, 2)  # how many values it may read
    keeps_batch: KeepsBatch = lambda scope, batched: True


# What a layer can do with its sums before it stores them.
FUSED = tuple(compute.ACTIVATIONS)
_name, _boolean, _bound = _instance(str), _instance(bool), _optional(_instance(int))
_AFTER = {"bias": _optional(_name), "activation": _optional(_one_of(*FUSED)), "residual": _optional(_name)}
_STEPS = {"stride": _sizes(2, 1), "padding": _sizes(2)}
_CONV = {"weight": _name, **_STEPS, "dilation": _sizes(2, 1), "groups": _positive, **_AFTER}
_POOL = {"kernel": _sizes(2, 1), **_STEPS, "ceil_mode": _boolean}
_NORM = {"weight": _optional(_name), "bias": _optional(_name), "eps": _number, "axes": _axes}
_SLICE = {"axis": is_integer, "start": _bound, "stop": _bound, "step": _positive}
_RESIZE = {
    "size": _optional(_sizes(2, 1)),
    "scale": _optional(_scales),
    "mode": _one_of("nearest", "bilinear"),
    "align_corners": _optional(_boolean),
}
_PAD = {"padding": _sizes(4), "mode": _one_of("reflect", "circular", "replicate")}
_SCALE, _BYTE = Within(LEAST_SCALE, MOST_SCALE, whole=False), Within(0, 255)
_STEP = {"scale": _SCALE, "zero": _BYTE}
_INTEGER: dict[str, Check] = {
    **{"weight": _name, "bias": _optional(_name), "factor": _name, "zero": _BYTE, "residual": _optional(_name)},
    "residual_factor": replace(_SCALE, null=True),
    **dict.fromkeys(("residual_zero", "out_zero", "low", "high"), replace(_BYTE, null=True)),
}
_TERMS = {"value": _optional(_number)}
_TRANSPOSED = {**_CONV, "output_padding": _sizes(2)}


def _has_rows(scope: Scope, batched: Set[str]) -> bool:
    """Whether an input of a linear layer has more than the axis that it sums over."""
    return len(scope.inputs[0]) > 1


def _elementwise(kind: str) -> Operation:
    return Operation(Scope.same, lambda call: compute.ACTIVATIONS[kind](call.inputs[0]))


OPERATIONS: dict[str, Operation] = {
    "conv2d": Operation(shapes.conv, spatial.conv2d, _CONV),
    "conv_transpose2d": Operation(shapes.conv_transpose, spatial.conv_transpose2d, _TRANSPOSED),
    "linear": Operation(shapes.linear, spatial.linear, {"weight": _name, **_AFTER}, keeps_batch=_has_rows),
    "max_pool2d": Operation(shapes.pool, spatial.max_pool2d, {**_POOL, "dilation": _sizes(2, 1)}),
    "avg_pool2d": Operation(shapes.pool, spatial.avg_pool2d, {**_POOL, "count_include_pad": _boolean}),
    "adaptive_avg_pool2d": Operation(shapes.adaptive, spatial.adaptive_avg_pool2d, {"size": _sizes(2, 1)}),
    "mean": Operation(shapes.mean, compute.mean, {"axes": _axes, "keepdim": _boolean}, keeps_batch=_over_axes),
    "add": Operation(shapes.binary, lambda call: call.inputs[0] + call.second, _TERMS, range(1, 3), _broadcasts),
    "mul": Operation(shapes.binary, lambda call: call.inputs[0] * call.second, _TERMS, range(1, 3), _broadcasts),
    "concat": Operation(
        shapes.concat,
        lambda call: np.concatenate(call.inputs, int(call.op["axis"])),
        {"axis": is_integer},
        range(1, 1025),
        _along_axis,
    ),
    **{kind: _elementwise(kind) for kind in FUSED if kind != "gelu"},
    "hardsigmoid": Operation(Scope.same, lambda call: compute.hardsigmoid(call.inputs[0])),
    "identity": Operation(Scope.same, lambda call: call.inputs[0]),
    "elu": Operation(Scope.same, compute.elu, {"alpha": _number}),
    "softplus": Operation(Scope.same, compute.softplus, {"beta": _steepness, "threshold": _number}),
    "gelu": Operation(Scope.same, compute.gelu, {"approximate": _one_of("none", "tanh")}),
    "softmax": Operation(
        shapes.softmax,
        lambda call: compute.softmax(call.inputs[0], int(call.op["axis"])),
        {"axis": is_integer},
        keeps_batch=_along_axis,
    ),
    "layer_norm": Operation(shapes.layer_norm, compute.layer_norm, _NORM, keeps_batch=_over_axes),
    "scale_shift": Operation(shapes.scale_shift, compute.scale_shift, {"scale": _name, "shift": _name}),
    "reshape": Operation(
        shapes.reshape,
        compute.reshape,
        {"shape": _new_shape},
        keeps_batch=lambda scope, _: scope.op.fields["shape"][:1] == [None],
    ),
    "permute": Operation(
        shapes.permute,
        lambda call: np.ascontiguousarray(call.inputs[0].transpose(call.op["axes"])),
        {"axes": _axes},
        keeps_batch=lambda scope, _: scope.op.fields["axes"][0] % len(scope.inputs[0]) == 0,
    ),
    "slice": Operation(shapes.take, compute.take, _SLICE, keeps_batch=_along_axis),
    "matmul": Operation(shapes.matmul, lambda call: np.matmul(*call.inputs), {}, range(2, 3), _multiplies),
    "attention": Operation(
        shapes.attention, compute.attention, {"scale": _number, "mask": _optional(_name)}, range(3, 4), _attends
    ),
    "resize": Operation(shapes.resize, spatial.resize, _RESIZE),
    "pad": Operation(shapes.pad, compute.pad, _PAD),
    "constant": Operation(Scope.weight, lambda call: call.needed("weight"), {"weight": _name}, range(0, 1)),
    "quantize": Operation(Scope.same, integer_compute.quantize, _STEP),
    "dequantize": Operation(Scope.same, integer_compute.dequantize, _STEP),
    "conv2d_int8": Operation(
        shapes.conv, integer_compute.conv2d, {**_INTEGER, **_STEPS, "dilation": _sizes(2, 1), "groups": _positive}
    ),
    "linear_int8": Operation(shapes.linear, integer_compute.linear, _INTEGER, keeps_batch=_has_rows),
    "lookup": Operation(shapes.lookup, integer_compute.lookup, {"table": _name}),
}
# Operations with weights, which can add a residual and apply an activation before they store their sums.
LAYERS = tuple(kind for kind, operation in OPERATIONS.items() if "activation" in operation.fields)


def infer(graph: Graph, weights: Mapping[str, Weight], batch: int) -> dict[str, Shape]:
    """The shape of every value; a ValueError if an operation does not fit its inputs, or a value would be too large."""
    infer_kinds(graph, weights)
    shapes: dict[str, Shape] = {}
    for name, declared in graph.inputs.items():
        shapes[name] = _bounded(name, tuple(batch if n is None else n for n in declared))
    for op in graph.ops:
        shapes[op.output] = _bounded(op, OPERATIONS[op.kind].shape(Scope(op, shapes, weights, batch)))
    return shapes


def _bounded(what: str | Op, shape: Shape) -> Shape:
    if len(shape) > MAX_AXES or math.prod(shape) > MAX_ELEMENTS:
        raise ValueError(f"{what}: shape {shape} is too large, at most {MAX_AXES} axes and {MAX_ELEMENTS} numbers")
    return shape


# Any size that is unlikely to be a size of the network itself.
PROBE = 11


def splits(graph: Graph, weights: Mapping[str, Weight]) -> bool:
    """Whether the first axis of every value that depends on an input is the batch, and no operation mixes it."""
    if any(shape[0] is not None for shape in graph.inputs.values()):
        return False
    try:
        shapes = infer(graph, weights, PROBE)
    except ValueError:
        return False
    batched = set(graph.inputs)
    for op in graph.ops:
        reads = [name for name in op.reads if name in batched]
        if not reads:
            continue
        if any(not shapes[name] or shapes[name][0] != PROBE for name in (*reads, op.output)):
            return False
        if not OPERATIONS[op.kind].keeps_batch(Scope(op, shapes, weights, PROBE), batched):
            return False
        batched.add(op.output)
    return batched >= set(graph.outputs)
