"""Kinds of values and bounds of sums: what is outside of them is refused, in a graph and in its file alike."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
from integer_graphs import IntegerGraph, residual_network, token_network

from softprune.deploy.export.exporting import write_spx
from softprune.deploy.format import spx
from softprune.deploy.format.graph import Graph, Op, Weight
from softprune.deploy.format.operations import infer
from softprune.deploy.format.spx import check_built, read_spx
from softprune.deploy.format.value_kinds import infer_kinds


def as_weights(graph):
    return {name: Weight(array.shape, array) for name, array in graph.weights.items()}


def refusal(graph, tmp_path):
    """What a graph is refused with when it is built; its file must be refused with the same."""
    with pytest.raises(ValueError) as built:
        check_built(graph)
    with pytest.raises(ValueError):
        write_spx(graph, tmp_path / "a.spx")
    assert not list(tmp_path.iterdir())
    try:
        with mock.patch.object(spx, "check_built"):
            write_spx(graph, tmp_path / "b.spx")
    except ValueError as error:
        assert "JSON" in str(error)  # NaN and infinities are not written
    else:
        with pytest.raises(ValueError) as read:
            read_spx(tmp_path / "b.spx")
        assert str(read.value) == str(built.value)
    return str(built.value)


def test_the_kind_of_every_value_follows_from_the_operations():
    graph = residual_network()
    kinds = check_built(graph)
    assert kinds == infer_kinds(graph, as_weights(graph))
    floats = {op.output for op in graph.ops if op.kind in ("dequantize", "mean")} | {"x", graph.outputs[0]}
    assert {name for name, kind in kinds.items() if kind == "float32"} == floats
    assert set(kinds.values()) == {"float32", "uint8"}


# Field of an operation of the residual network, values that it must not have, and what the error says.
HUGE = [0, -1, 0.0, -0.5, math.nan, math.inf, 1e-40, 9e-31, 1.1e30, 1e39, 10**400, None, "1", True, [1.0]]
NO_BYTE = [-1, 256, 0.5, 1.0, math.nan, "0", True, [0], 1 << 70]
FIELDS = [
    ("quantize", "scale", HUGE, "scale is .*, must be a number from 1e-30 to 1e\\+30$"),
    ("dequantize", "scale", HUGE, "scale is .*, must be a number from 1e-30 to 1e\\+30$"),
    ("quantize", "zero", [*NO_BYTE, None], "zero is .*, must be a whole number from 0 to 255$"),
    ("dequantize", "zero", [*NO_BYTE, None], "zero is .*, must be a whole number from 0 to 255$"),
    ("conv2d_int8", "zero", [*NO_BYTE, None], "zero is .*, must be a whole number from 0 to 255$"),
    *(
        ("conv2d_int8", key, NO_BYTE, f"{key} is .*, must be a whole number from 0 to 255 or null$")
        for key in ("out_zero", "low", "high", "residual_zero")
    ),
    ("conv2d_int8", "residual_factor", [x for x in HUGE if x is not None], "residual_factor is .* or null$"),
    ("conv2d_int8", "factor", [None, 1.0], "factor is"),
    ("conv2d_int8", "factor", ["w99"], "there is no weight 'w99'"),
    ("conv2d_int8", "stride", [[0, 1], None, 2], "stride is"),
    ("lookup", "table", [None, 3], "table is"),
    ("conv2d_int8", "activation", ["relu"], "fields that the format does not know: activation"),
]


@pytest.mark.parametrize(("kind", "field", "values", "message"), FIELDS)
def test_fields_outside_of_their_range_are_refused(kind, field, values, message, tmp_path):
    for value in values:
        graph = residual_network()
        op = next(op for op in graph.ops if op.kind == kind)
        op.fields[field] = value
        with pytest.raises(ValueError, match=message) as refused:
            check_built(graph)
        assert str(refused.value).startswith(f"{kind} at {op.path!r}"), value


def layer(**changes):
    """A linear layer of two inputs and one output, with other fields and weights; its float32 output may be asked."""
    net = IntegerGraph((2,))
    q = net.add("quantize", "x", scale=0.1, zero=changes.get("zero", 0))
    net.linear(q, (1, 2), residual=q if "residual" in changes else None)
    op = net.graph.ops[-1]
    weights = {"weight": np.int8([[3, -4]]), "bias": np.int32([5]), "factor": np.float32([0.5])}
    for field, array in weights.items():
        net.graph.weights[op.fields[field]] = changes.pop(field, array)
    changes.pop("residual", None)
    op.fields |= changes
    y = op.output if op.fields["out_zero"] is None else net.add("dequantize", op.output, scale=1.0, zero=0)
    return net.finish(y)


MOST = (1 << 31) - 1
BYTES_WRONG = "must be a number for an output of uint8"
LAYERS = {
    "weight of floats": ({"weight": np.float32([[3, -4]])}, "weight 'w0' is float32, must be int8"),
    "weight of bytes": ({"weight": np.uint8([[3, 4]])}, "weight 'w0' is uint8, must be int8"),
    "bias of floats": ({"bias": np.float32([3])}, "bias 'w1' is float32, must be int32"),
    "factor of whole numbers": ({"factor": np.int32([3])}, "factor 'w2' is int32, must be float32"),
    "-128": ({"weight": np.int8([[3, -128]])}, "weight -128 is below -127"),
    "one axis": ({"weight": np.int8([3, -4])}, r"weight of shape \(2,\) needs 2 axes"),
    "no outputs": ({"weight": np.zeros((0, 2), np.int8)}, r"weight of shape \(0, 2\) needs 2 axes"),
    "two factors": ({"factor": np.float32([1, 1])}, "factor must be dense with 1 numbers"),
    "two biases": ({"bias": np.int32([1, 1])}, "bias must be dense with 1 numbers"),
    **{
        f"factor {factor}": ({"factor": np.float32([factor])}, f"factor {factor} of output 0 must be 1e-30 to 1e\\+30")
        for factor in ("0.0", "-1.0", "nan", "inf")
    },
    "factor subnormal": ({"factor": np.float32([1e-40])}, r"factor 9\.9.*e-41 of output 0 must be 1e-30"),
    "factor small": ({"factor": np.float32([9e-31])}, r"factor 9.*e-31 of output 0 must be 1e-30"),
    "factor large": ({"factor": np.float32([2e30])}, r"factor 2.* of output 0 must be 1e-30 to 1e\+30"),
    "large bias": (
        {"bias": np.int32([MOST - 7 * 255 + 1]), "factor": np.float32([1e-3])},
        f"output 0 may sum up to {MOST + 1}, at most {MOST}",
    ),
    "large negative bias": (
        {"bias": np.int32([-MOST + 7 * 128 - 1]), "factor": np.float32([1e-3]), "zero": 128},
        f"output 0 may sum up to {MOST + 1}, at most {MOST}",
    ),
    "the most negative bias": ({"bias": np.int32([-(1 << 31)])}, f"output 0 may sum up to .*, at most {MOST}"),
    "many steps": ({"factor": np.float32([1e6])}, "output 0 may reach 1.79e\\+09 steps, at most 1073741824"),
    "residual of many steps": (
        {"residual": "q", "residual_zero": 0, "residual_factor": 1e30, "weight": np.int8([[3, -4]])},
        "output 0 may reach 2.55e\\+32 steps",
    ),
    "low above high": ({"low": 9, "high": 8}, "low is 9, must be at most high, 8"),
    "no low": ({"low": None}, f"low is None, {BYTES_WRONG} without a residual"),
    "no high": ({"high": None}, f"high is None, {BYTES_WRONG} without a residual"),
    "low of floats": ({"out_zero": None, "high": None}, "low is 0, must be null for an output of float32"),
    "factor of no residual": ({"residual_factor": 1.0}, "residual_factor is 1.0, must be null .* without a residual"),
    "zero of no residual": ({"residual_zero": 1}, "residual_zero is 1, must be null .* without a residual"),
    "residual without factor": (
        {"residual": "q", "residual_factor": None},
        f"residual_factor is None, {BYTES_WRONG} with a residual",
    ),
    "residual of bytes on floats": (
        {"residual": "q", **dict.fromkeys(("out_zero", "low", "high", "residual_factor", "residual_zero"))},
        "'v0' is uint8, must be float32",
    ),
}


@pytest.mark.parametrize("what", LAYERS)
def test_layers_outside_of_their_bounds_are_refused(what, tmp_path):
    changes, message = LAYERS[what]
    with np.errstate(over="ignore"):
        graph = layer(**changes)
    found = refusal(graph, tmp_path)
    assert found.startswith("linear_int8 at 'net.v1': ")
    with pytest.raises(ValueError, match=message):
        raise ValueError(found)


def test_what_is_just_inside_of_the_bounds_is_read(tmp_path):
    inside = [
        {"bias": np.int32([MOST - 7 * 255]), "factor": np.float32([0.5])},
        {"bias": np.int32([-MOST + 7 * 255]), "factor": np.float32([1e-30])},
        {"bias": np.int32([MOST - 7 * 128]), "factor": np.float32([0.5]), "zero": 128},
        {"factor": np.float32([1e30]), **dict.fromkeys(("out_zero", "low", "high"))},
        {"weight": np.int8([[127, -127]]), "bias": np.int32([0]), "factor": np.float32([(1 << 30) / 64771])},
    ]
    for changes in inside:
        graph = layer(**changes)
        write_spx(graph, tmp_path / "net.spx")
        assert read_spx(tmp_path / "net.spx").graph.document["ops"] == graph.document["ops"]


def with_op(graph, kind, *inputs, **fields):
    """A graph with one more operation, whose output is one of the graph."""
    graph.ops.append(Op(kind, "net.last", list(inputs), "last", fields))
    graph.outputs.append("last")
    return graph


POOL = {"kernel": [2, 2], "stride": [1, 1], "padding": [0, 0], "ceil_mode": False}
WRONG_KINDS = {
    "activation": lambda g: with_op(g, "relu", "v1"),
    "sum": lambda g: with_op(g, "add", "x", "v0"),
    "mean of bytes": lambda g: with_op(g, "avg_pool2d", "v1", **POOL, count_include_pad=True),
    "bytes to bytes": lambda g: with_op(g, "quantize", "v1", scale=1.0, zero=0),
    "floats from floats": lambda g: with_op(g, "dequantize", "x", scale=1.0, zero=0),
    "table of floats": lambda g: with_op(g, "lookup", "x", table="w12"),
    "layer of floats": lambda g: with_op(g, "conv2d_int8", "x", **g.ops[1].fields),
}


@pytest.mark.parametrize("what", WRONG_KINDS)
def test_operations_on_values_of_another_kind_are_refused(what, tmp_path):
    graph = WRONG_KINDS[what](residual_network())
    if what == "layer of floats":
        assert graph.ops[-1].fields["residual"] is None
    found = refusal(graph, tmp_path)
    assert found.startswith(f"{graph.ops[-1]}: ") and ("is uint8, must be float32" in found) != ("is float32" in found)
    with pytest.raises(ValueError, match=r"must be (float32|uint8)"):
        infer(graph, as_weights(graph), 2)


def test_mixed_kinds_tables_and_outputs_of_bytes_are_refused(tmp_path):
    graph = with_op(residual_network(), "concat", "x", "v0", axis=1)
    assert "inputs are float32 and uint8, must be of one kind" in refusal(graph, tmp_path)
    graph = residual_network()
    graph.outputs.append("v3")
    (tmp_path / "b.spx").unlink()
    assert refusal(graph, tmp_path) == "output 'v3' of the graph is uint8, must be float32: dequantize it first"
    for table in (np.zeros(255, np.uint8), np.zeros(257, np.uint8), np.zeros(0, np.uint8)):
        graph = residual_network()
        graph.weights[next(op for op in graph.ops if op.kind == "lookup").fields["table"]] = table
        for check in (check_built, lambda graph: infer(graph, as_weights(graph), 2)):
            with pytest.raises(ValueError, match=r"table of shape .* must be dense with 256 numbers"):
                check(graph)


def test_layers_of_floats_take_no_weights_of_whole_numbers(tmp_path):
    fields = {"weight": "w", "bias": None, "activation": None, "residual": None}
    graph = Graph({"x": (None, 2)}, ["y"], [Op("linear", "fc", ["x"], "y", fields)], {"w": np.ones((2, 2), np.int8)})
    assert refusal(graph, tmp_path) == "linear at 'fc': weight 'w' is int8, must be float32"


def test_a_file_of_the_first_version_has_no_operations_on_bytes(tmp_path):
    with mock.patch.object(spx, "VERSIONS", ("1", "1")):
        write_spx(token_network(), tmp_path / "net.spx")
    with pytest.raises(ValueError, match="version 1 of the format, in which there is no dequantize"):
        read_spx(tmp_path / "net.spx")
