"""Which values are float32 and which are bytes, and the bounds within which no sum of a layer of bytes overflows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format.graph import Graph, Op, Weight

# The kinds of values.
FLOAT, BYTE = "float32", "uint8"
INTEGER_LAYERS = ("conv2d_int8", "linear_int8")
# Operations that a file of version 1 does not have.
INTEGER = ("quantize", "dequantize", *INTEGER_LAYERS, "lookup")
# These move or compare values, all of one kind, and make that kind.
EITHER = ("identity", "reshape", "permute", "slice", "concat", "max_pool2d")

# Types of weights where they are not float32, by operation and field.
_LAYER_TYPES = {"weight": "int8", "bias": "int32"}
WEIGHT_TYPES: dict[str, dict[str, str]] = {
    **dict.fromkeys(INTEGER_LAYERS, _LAYER_TYPES),
    "lookup": {"table": "uint8"},
}

# Scales and factors: within these no product of them with a sum is subnormal.
LEAST_SCALE, MOST_SCALE = 1e-30, 1e30
LARGEST_WEIGHT = 127
LARGEST_SUM = (1 << 31) - 1
# In steps of the output: what is below can be converted to 32 bits.
LARGEST_STEPS = 1 << 30


def infer_kinds(graph: Graph, weights: Mapping[str, Weight]) -> dict[str, str]:
    """The kind of every value; a ValueError names the first operation that a value or a weight does not fit."""
    kinds = dict.fromkeys(graph.inputs, FLOAT)
    for op in graph.ops:
        for field, name in op.weight_names():
            wanted = WEIGHT_TYPES.get(op.kind, {}).get(field, FLOAT)
            found = str(weights[name].values.dtype)
            _need(op, found == wanted, f"{field} {name!r} is {found}, must be {wanted}")
        kinds[op.output] = _made(op, kinds)
    for name in graph.outputs:
        if kinds[name] != FLOAT:
            raise ValueError(f"output {name!r} of the graph is {kinds[name]}, must be {FLOAT}: dequantize it first")
    return kinds


def _need(op: Op, fits: bool, why: str) -> None:  # noqa: FBT001
    if not fits:
        raise ValueError(f"{op}: {why}")


def _made(op: Op, kinds: Mapping[str, str]) -> str:
    if op.kind in EITHER:
        found = sorted({kinds[name] for name in op.inputs})
        _need(op, len(found) == 1, f"its inputs are {' and '.join(found)}, must be of one kind")
        return found[0]
    wanted = BYTE if op.kind in INTEGER and op.kind != "quantize" else FLOAT
    made = BYTE if op.kind in ("quantize", "lookup") else FLOAT
    residual = op.fields.get("residual")
    if op.kind in INTEGER_LAYERS:
        made = FLOAT if op.fields.get("out_zero") is None else BYTE
        _check_together(op, made, residual)
    # What is added is of the kind of the output.
    for name, kind in [*((name, wanted) for name in op.inputs), *([(residual, made)] if residual is not None else [])]:
        _need(op, kinds[name] == kind, f"{name!r} is {kinds[name]}, must be {kind}")
    return made


def _check_together(op: Op, made: str, residual: str | None) -> None:
    given: dict[str, Any] = {key: op.fields.get(key) for key in ("low", "high", "residual_factor", "residual_zero")}
    wanted = {"low", "high"} if made == BYTE else set()
    wanted |= {"residual_factor", "residual_zero"} if made == BYTE and residual is not None else set()
    for key, value in given.items():
        rule = "a number" if key in wanted else "null"
        where = f"an output of {made} {'with' if residual is not None else 'without'} a residual"
        _need(op, (value is not None) == (key in wanted), f"{key} is {value!r}, must be {rule} for {where}")
    if made == BYTE:
        _need(op, given["low"] <= given["high"], f"low is {given['low']}, must be at most high, {given['high']}")


def check_integers(graph: Graph, weights: Mapping[str, Weight]) -> dict[str, str]:
    """The kind of every value, after a check that no sum and no output of a layer of bytes can overflow.

    Raises:
        ValueError: names the operation, what is out of its range, and the range.
    """
    kinds = infer_kinds(graph, weights)
    for op in graph.ops:
        if op.kind in INTEGER_LAYERS:
            _check_layer(op, weights, bytes_out=kinds[op.output] == BYTE)
    return kinds


def _check_layer(op: Op, weights: Mapping[str, Weight], *, bytes_out: bool) -> None:
    weight, factor, bias = (_weight(op, weights, field) for field in ("weight", "factor", "bias"))
    assert weight is not None and factor is not None
    axes = 4 if op.kind == "conv2d_int8" else 2
    _need(op, len(weight.shape) == axes and min(weight.shape) > 0, f"weight of shape {weight.shape} needs {axes} axes")
    outputs = weight.shape[0]
    for field, vector in (("factor", factor), ("bias", bias)):
        fits = vector is None or (vector.index is None and vector.values.size == outputs)
        _need(op, fits, f"{field} must be dense with {outputs} numbers")
    least = int(weight.values.min(initial=0))
    _need(op, least >= -LARGEST_WEIGHT, f"weight {least} is below -{LARGEST_WEIGHT}")
    factors = factor.values.reshape(-1)
    good = (factors >= np.float32(LEAST_SCALE)) & (factors <= np.float32(MOST_SCALE))
    if not good.all():
        at = int(np.argmin(good))
        _need(op, False, f"factor {factors[at]} of output {at} must be {LEAST_SCALE:g} to {MOST_SCALE:g}")
    shift = np.zeros(outputs) if bias is None else np.abs(bias.values.reshape(-1).astype(np.float64))
    span = max(op.fields["zero"], 255 - op.fields["zero"])
    more = 255 * (op.fields.get("residual_factor") or 0.0) if bytes_out else 0.0
    # Where as many of the largest weights as there may be are within the bounds, nothing is summed.
    per_output = math.prod(weight.shape[1:])
    sums = np.full(outputs, float(LARGEST_WEIGHT * min(per_output, weight.values.size)))
    if not _within(shift + sums * span, factors, more, bytes_out=bytes_out).all():
        places, values = weight.nonzeros()
        sums = np.bincount(places // per_output, np.abs(values.astype(np.float64)), outputs)
    largest = shift + sums * span
    good = _within(largest, factors, more, bytes_out=bytes_out)
    if not good.all():
        at = int(np.argmin(good))
        steps = largest[at] * float(factors[at]) + more
        _need(op, largest[at] <= LARGEST_SUM, f"output {at} may sum up to {largest[at]:.0f}, at most {LARGEST_SUM}")
        _need(op, False, f"output {at} may reach {steps:.6g} steps, at most {LARGEST_STEPS}")


def _within(largest: NDArray[Any], factors: NDArray[Any], more: float, *, bytes_out: bool) -> NDArray[np.bool_]:
    good = largest <= LARGEST_SUM
    return good & (largest * factors.astype(np.float64) + more <= LARGEST_STEPS) if bytes_out else good


def _weight(op: Op, weights: Mapping[str, Weight], field: str) -> Weight | None:
    name = op.fields.get(field)
    return None if name is None else weights[name]
