"""The operations of the format in one table: fields, shape, meaning in NumPy, and what each does to the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from softprune.deploy.format import compute, images, shapes
from softprune.deploy.format.compute import Array, Call
from softprune.deploy.format.graph import Graph, Op
from softprune.deploy.format.shapes import MAX_AXES, MAX_ELEMENTS, Scope, Shape
from softprune.deploy.format.storage import Weight, product, whole_numbers

Check = Callable[[Any], bool]
# Beyond these sizes products of sizes would leave the range of the kernels' numbers.
MAX_SIZE = 1 << 24
# The largest number in 32 bits.
MAX_FLOAT = 3.4028234663852886e38


def is_integer(value: Any) -> bool:
    """Whether a field is a whole number of a size that the kernels can work with."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_SIZE


def _number(value: Any) -> bool:
    # Compared, not converted: a whole number of a file may be larger than any float.
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_FLOAT <= value <= MAX_FLOAT


def _name(value: Any) -> bool:
    return isinstance(value, str)


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _pair(least: int) -> Check:
    return lambda value: whole_numbers(value) and len(value) == 2 and least <= min(value) and max(value) <= MAX_SIZE


def _axes(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 6 and all(is_integer(axis) for axis in value)


def _new_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 6 and all(n is None or (is_integer(n) and n >= -1) for n in value)


def _scales(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_number(n) and 0 < n <= 1024 for n in value)


def _steepness(value: Any) -> bool:
    # Beyond these the quotient by it would leave the range of the numbers.
    return _number(value) and 1e-6 <= value <= 1e6


def _frame(value: Any) -> bool:
    return whole_numbers(value) and len(value) == 4 and max(value) <= MAX_SIZE


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _one_of(*values: Any) -> Check:
    return lambda value: value in values


# The samples of a batch do not see each other in an operation if it leaves the first axis alone; the functions below
# say whether it does, given the shapes of all values and the names of those whose first axis is the batch.
Shapes = Mapping[str, Shape]


def _always(op: Op, shapes: Shapes, batched: Set[str]) -> bool:
    return True


def _rows(op: Op, shapes: Shapes, batched: Set[str]) -> bool:
    return len(shapes[op.inputs[0]]) > 1


def _reshapes(op: Op, shapes: Shapes, batched: Set[str]) -> bool:
    return bool(op.fields["shape"]) and op.fields["shape"][0] is None


def _permutes(op: Op, shapes: Shapes, batched: Set[str]) -> bool:
    return bool(op.fields["axes"][0] % len(shapes[op.inputs[0]]) == 0)


def _over_axes(op: Op, shapes: Shapes, batched: Set[str]) -> bool:
    return all(axis % len(shapes[op.inputs[0]]) for axis in op.fields["axes"])


def _along_axis(op: Op, shapes: Shapes, batched: Set[str]) -> bool:
    along = op.fields["axis"] % len(shapes[op.inputs[0]])
    return along != 0 and all(name in batched for name in op.inputs)


def _same_for_all(shape: Shape, out: Shape) -> bool:
    """Whether a constant is the same for all samples."""
    return len(shape) < len(out) or shape[0] == 1


def _broadcasts(op: Op, shapes: Shapes, batched: Set[str]) -> bool:
    out = shapes[op.output]
    return all(
        len(shapes[name]) == len(out) if name in batched else _same_for_all(shapes[name], out) for name in op.inputs
    )


def _multiplies(op: Op, shapes: Shapes, batched: Set[str]) -> bool:
    (first, second), out = op.inputs, shapes[op.output]
    rank = len(shapes[first])
    return (
        first in batched
        and len(out) == rank
        and (rank > 2 or second not in batched)
        and (len(shapes[second]) == rank if second in batched else _same_for_all(shapes[second], out))
    )


def _attends(op: Op, shapes: Shapes, batched: Set[str]) -> bool:
    inputs = all(name in batched for name in op.inputs)
    return len(shapes[op.inputs[0]]) > 2 and inputs and op.fields.get("mask") is None


@dataclass(frozen=True)
class Operation:
    """What the format says about one operation.

    Attributes:
        shape: the shape of its value, or an error if inputs, fields and weights do not fit together.
        compute: its value in NumPy.
        fields: name -> whether a value is allowed; a field that may be None may be absent.
        inputs: how many values it may read.
        keeps_batch: whether it leaves the first axis alone, so that a batch may run in parts.
    """

    shape: Callable[[Scope], Shape]
    compute: Callable[[Call], Array]
    fields: Mapping[str, Check] = field(default_factory=dict)
    inputs: range = range(1, 2)
    keeps_batch: Callable[[Op, Shapes, Set[str]], bool] = _always


# What a layer can do with its sums before it stores them.
FUSED = ("relu", "relu6", "hardswish", "silu", "gelu", "sigmoid", "tanh", "mish")
_AFTER: dict[str, Check] = {
    "bias": _optional(_name),
    "activation": _optional(_one_of(*FUSED)),
    "residual": _optional(_name),
}
_CONV: dict[str, Check] = {
    "weight": _name,
    "stride": _pair(1),
    "padding": _pair(0),
    "dilation": _pair(1),
    "groups": lambda n: is_integer(n) and n > 0,
    **_AFTER,
}
_POOL: dict[str, Check] = {"kernel": _pair(1), "stride": _pair(1), "padding": _pair(0), "ceil_mode": _boolean}
_TERMS: dict[str, Check] = {"value": _optional(_number)}

OPERATIONS: dict[str, Operation] = {
    "conv2d": Operation(shapes.conv, images.conv2d, _CONV),
    "conv_transpose2d": Operation(
        shapes.conv_transpose, images.conv_transpose2d, {**_CONV, "output_padding": _pair(0)}
    ),
    "linear": Operation(shapes.linear, images.linear, {"weight": _name, **_AFTER}, keeps_batch=_rows),
    "max_pool2d": Operation(shapes.pool, images.max_pool2d, {**_POOL, "dilation": _pair(1)}),
    "avg_pool2d": Operation(shapes.pool, images.avg_pool2d, {**_POOL, "count_include_pad": _boolean}),
    "adaptive_avg_pool2d": Operation(shapes.adaptive, images.adaptive_avg_pool2d, {"size": _pair(1)}),
    "mean": Operation(shapes.mean, compute.mean, {"axes": _axes, "keepdim": _boolean}, keeps_batch=_over_axes),
    "add": Operation(shapes.binary, compute.add, _TERMS, range(1, 3), _broadcasts),
    "mul": Operation(shapes.binary, compute.mul, _TERMS, range(1, 3), _broadcasts),
    "concat": Operation(shapes.concat, compute.concat, {"axis": is_integer}, range(1, 1025), _along_axis),
    **{kind: Operation(shapes.same, compute.plain(kind)) for kind in ("relu", "relu6", "hardswish")},
    "hardsigmoid": Operation(shapes.same, compute.hardsigmoid),
    **{kind: Operation(shapes.same, compute.plain(kind)) for kind in ("silu", "sigmoid", "tanh", "mish")},
    "identity": Operation(shapes.same, compute.identity),
    "elu": Operation(shapes.same, compute.elu, {"alpha": _number}),
    "softplus": Operation(shapes.same, compute.softplus, {"beta": _steepness, "threshold": _number}),
    "gelu": Operation(shapes.same, compute.gelu, {"approximate": _one_of("none", "tanh")}),
    "softmax": Operation(shapes.softmax, compute.softmax, {"axis": is_integer}, keeps_batch=_along_axis),
    "layer_norm": Operation(
        shapes.layer_norm,
        compute.layer_norm,
        {"weight": _optional(_name), "bias": _optional(_name), "eps": _number, "axes": _axes},
        keeps_batch=_over_axes,
    ),
    "scale_shift": Operation(shapes.scale_shift, compute.scale_shift, {"scale": _name, "shift": _name}),
    "reshape": Operation(shapes.reshape, compute.reshape, {"shape": _new_shape}, keeps_batch=_reshapes),
    "permute": Operation(shapes.permute, compute.permute, {"axes": _axes}, keeps_batch=_permutes),
    "slice": Operation(
        shapes.take,
        compute.take,
        {
            "axis": is_integer,
            "start": _optional(lambda n: isinstance(n, int)),
            "stop": _optional(lambda n: isinstance(n, int)),
            "step": lambda n: is_integer(n) and n > 0,
        },
        keeps_batch=_along_axis,
    ),
    "matmul": Operation(shapes.matmul, compute.matmul, {}, range(2, 3), _multiplies),
    "attention": Operation(
        shapes.attention, compute.attention, {"scale": _number, "mask": _optional(_name)}, range(3, 4), _attends
    ),
    "resize": Operation(
        shapes.resize,
        images.resize,
        {
            "size": _optional(_pair(1)),
            "scale": _optional(_scales),
            "mode": _one_of("nearest", "bilinear"),
            "align_corners": _optional(_boolean),
        },
    ),
    "pad": Operation(shapes.pad, compute.pad, {"padding": _frame, "mode": _one_of("reflect", "circular", "replicate")}),
    "constant": Operation(shapes.constant, compute.constant, {"weight": _name}, range(0, 1)),
}
# Operations with weights, which can add a residual and apply an activation before they store their sums.
LAYERS = tuple(kind for kind, operation in OPERATIONS.items() if "activation" in operation.fields)


def infer(graph: Graph, weights: Mapping[str, Weight], batch: int) -> dict[str, Shape]:
    """The shape of every value.

    Raises:
        ValueError: if an operation does not fit its inputs, or a value would be too large.
    """
    shapes: dict[str, Shape] = {}
    for name, declared in graph.inputs.items():
        shapes[name] = _bounded(name, tuple(batch if n is None else n for n in declared))
    for op in graph.ops:
        shape = OPERATIONS[op.kind].shape(Scope(op, shapes, weights, batch))
        shapes[op.output] = _bounded(str(op), shape)
    return shapes


def _bounded(what: str, shape: Shape) -> Shape:
    if len(shape) > MAX_AXES or product(shape) > MAX_ELEMENTS:
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
        if not OPERATIONS[op.kind].keeps_batch(op, shapes, batched):
            return False
        batched.add(op.output)
    return all(name in batched for name in graph.outputs)
