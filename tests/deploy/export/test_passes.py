"""Folding and fusing, on graphs made by hand."""

import numpy as np
import pytest

from softprune.deploy.export.passes import (
    drop_unused,
    fold_scale_shift,
    fuse_activations,
    fuse_residuals,
    join_moves,
    lift_over_reshapes,
    simplify,
)
from softprune.deploy.format.graph import Graph, Op
from softprune.deploy.format.reference import run

IMAGE = ("s0", 2, 4, 4)
LAYER = {"bias": None, "activation": None, "residual": None}
CONV = {**LAYER, "weight": "k", "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}


def graph(*ops: Op, outputs: tuple[str, ...] = ("y",), **weights: np.ndarray) -> Graph:
    """A graph of images of one shape."""
    rng = np.random.default_rng(0)
    held = {
        "k": rng.standard_normal((2, 2, 1, 1)).astype(np.float32),
        "a": np.float32([2, -1]),
        "b": np.float32([1, 3]),
    }
    shapes = dict.fromkeys(["x", *(op.output for op in ops)], IMAGE)
    copies = [Op(op.kind, op.path, list(op.inputs), op.output, dict(op.fields)) for op in ops]
    return Graph({"x": (None, 2, 4, 4)}, list(outputs), copies, {**held, **weights}, shapes)


def assert_unchanged(made: Graph, *passes) -> Graph:
    """Apply passes; what is computed must stay."""
    x = np.random.default_rng(1).standard_normal((3, 2, 4, 4)).astype(np.float32)
    before = run(made.document, made.weights, [x])
    for change in passes:
        change(made)
    for old, new in zip(before, run(made.document, made.weights, [x]), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)
    return made


def norm(x: str, y: str) -> Op:
    return Op("scale_shift", "", [x], y, {"scale": "a", "shift": "b"})


def conv(x: str, y: str) -> Op:
    return Op("conv2d", "", [x], y, dict(CONV))


def test_a_norm_goes_into_the_convolution_before_it_and_not_into_one_that_shares_its_weight():
    made = assert_unchanged(
        graph(conv("x", "t"), norm("t", "u"), conv("u", "v"), Op("add", "", ["u", "v"], "y")), fold_scale_shift
    )
    assert [op.kind for op in made.ops] == ["conv2d", "conv2d", "add"]
    assert made.ops[0].fields["weight"] != "k" and made.ops[1].fields["weight"] == "k"


@pytest.mark.parametrize("ops", [
    [norm("x", "y")],  # nothing before it
    [conv("x", "t"), norm("t", "u"), Op("add", "", ["t", "u"], "y")],  # the sum is read twice
    [conv("x", "t"), Op("relu", "", ["t"], "u"), norm("u", "y")],  # not linear in between
])  # fmt: skip
def test_a_norm_that_cannot_be_folded_stays(ops):
    made = assert_unchanged(graph(*ops), fold_scale_shift)
    assert [op.kind for op in made.ops].count("scale_shift") == 1


def test_a_norm_whose_input_is_an_output_stays():
    made = assert_unchanged(graph(conv("x", "t"), norm("t", "y"), outputs=("t", "y")), fold_scale_shift)
    assert [op.kind for op in made.ops] == ["conv2d", "scale_shift"]


def test_two_norms_in_a_row_and_a_bias_are_one_convolution():
    biased = Op("conv2d", "", ["x"], "t", {**CONV, "bias": "b"})
    made = assert_unchanged(graph(biased, norm("t", "u"), norm("u", "y")), fold_scale_shift)
    assert [op.kind for op in made.ops] == ["conv2d"]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_norm_goes_into_a_transposed_convolution(groups):
    kernel = np.random.default_rng(2).standard_normal((2, 2 // groups, 1, 1)).astype(np.float32)
    up = Op("conv_transpose2d", "", ["x"], "t", {**CONV, "weight": "up", "output_padding": [0, 0], "groups": groups})
    made = assert_unchanged(graph(up, norm("t", "y"), up=kernel), fold_scale_shift)
    assert [op.kind for op in made.ops] == ["conv_transpose2d"]


def test_a_residual_and_an_activation_end_up_in_the_convolution():
    ops = [conv("x", "t"), conv("x", "side"), Op("add", "", ["t", "side"], "u"), Op("relu", "", ["u"], "y")]
    made = assert_unchanged(graph(*ops), fuse_residuals, fuse_activations)
    assert [(op.kind, op.output) for op in made.ops] == [("conv2d", "side"), ("conv2d", "y")]
    assert made.ops[1].fields["residual"] == "side" and made.ops[1].fields["activation"] == "relu"


def test_nothing_is_fused_behind_an_activation_or_with_another_shape():
    ops = [conv("x", "t"), Op("relu", "", ["t"], "u"), Op("add", "", ["u", "x"], "y")]
    made = assert_unchanged(graph(*ops), fuse_activations, fuse_residuals)
    assert [op.kind for op in made.ops] == ["conv2d", "add"]
    small = graph(
        conv("x", "t"), Op("mean", "", ["x"], "m", {"axes": [2, 3], "keepdim": True}), Op("add", "", ["t", "m"], "y")
    )
    small.shapes["m"] = ("s0", 2, 1, 1)
    assert [op.kind for op in assert_unchanged(small, fuse_residuals).ops] == ["conv2d", "mean", "add"]


def test_a_value_added_to_itself_is_no_residual():
    made = assert_unchanged(graph(conv("x", "t"), Op("add", "", ["t", "t"], "y")), fuse_residuals)
    assert [op.kind for op in made.ops] == ["conv2d", "add"]


def test_gelu_is_fused_only_in_its_exact_form():
    for approximate, expected in (("none", ["conv2d"]), ("tanh", ["conv2d", "gelu"])):
        made = graph(conv("x", "t"), Op("gelu", "", ["t"], "y", {"approximate": approximate}))
        assert [op.kind for op in assert_unchanged(made, fuse_activations).ops] == expected


def test_moves_are_joined_and_those_that_move_nothing_go():
    there, back = {"axes": [0, 2, 3, 1]}, {"axes": [0, 3, 1, 2]}
    made = graph(Op("permute", "", ["x"], "t", there), Op("permute", "", ["t"], "u", back), conv("u", "y"))
    made.shapes["t"] = ("s0", 4, 4, 2)
    assert [op.kind for op in assert_unchanged(made, join_moves).ops] == ["conv2d"]


def test_what_nobody_reads_goes_and_equal_weights_become_one():
    ops = [conv("x", "t"), Op("relu", "", ["x"], "unused"), Op("conv2d", "", ["t"], "y", {**CONV, "weight": "same"})]
    made = graph(*ops)
    made.weights["same"] = made.weights["k"].copy()
    assert_unchanged(made, drop_unused, simplify)
    assert list(made.weights) == ["w0"] and made.outputs == ["v1"] and [op.output for op in made.ops] == ["v0", "v1"]


def test_equal_weights_of_different_types_stay_two_and_layers_of_bytes_take_in_nothing():
    table = np.arange(256, dtype=np.uint8) // 2
    fields = {"zero": 0, **dict.fromkeys(("residual", "residual_factor", "residual_zero", "out_zero", "low", "high"))}
    layer = {
        "weight": "k8",
        "bias": None,
        "factor": "a",
        **{k: v for k, v in CONV.items() if k in ("stride", "groups")},
    }
    ops = [
        Op("quantize", "", ["x"], "q", {"scale": 0.1, "zero": 0}),
        Op("lookup", "", ["q"], "t", {"table": "table"}),
        Op("conv2d_int8", "", ["t"], "s", {**layer, "padding": [0, 0], "dilation": [1, 1], **fields}),
        Op("relu", "", ["s"], "u"),
        Op("add", "", ["u", "x"], "y"),
    ]
    made = graph(*ops, table=table, k8=np.int8([[1, 2], [3, 4]])[:, :, None, None])
    made.ops[2].fields["bias"] = "b32"
    made.weights |= {"b32": np.float32([2, -1]).view(np.int32)}  # the bytes of its factors
    assert_unchanged(made, simplify)
    assert [op.kind for op in made.ops] == ["quantize", "lookup", "conv2d_int8", "relu", "add"]
    assert [array.dtype.name for array in made.weights.values()] == ["uint8", "int8", "int32", "float32"]


def test_norms_and_activations_are_lifted_over_a_reshape_into_the_convolution():
    flat = Op("reshape", "", ["t"], "u", {"shape": [None, 2, 16]})
    made = graph(conv("x", "t"), flat, norm("u", "v"), Op("relu", "", ["v"], "y"))
    made.shapes.update(dict.fromkeys(["u", "v", "y"], ("s0", 2, 16)))
    assert_unchanged(made, lift_over_reshapes, fold_scale_shift, fuse_activations)
    assert [op.kind for op in made.ops] == ["conv2d", "reshape"] and made.ops[0].fields["activation"] == "relu"
    assert made.outputs == ["y"] and made.ops[1].output == "y"


def test_a_norm_of_other_channels_stays_behind_the_reshape():
    flat = Op("reshape", "", ["t"], "u", {"shape": [None, 32]})
    wide = Op("scale_shift", "", ["u"], "y", {"scale": "wide", "shift": "wide"})
    made = graph(conv("x", "t"), flat, wide, wide=np.arange(32, dtype=np.float32))
    made.shapes.update(dict.fromkeys(["u", "y"], ("s0", 32)))
    assert [op.kind for op in assert_unchanged(made, lift_over_reshapes).ops] == ["conv2d", "reshape", "scale_shift"]
