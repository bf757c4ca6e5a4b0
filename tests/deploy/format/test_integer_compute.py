"""Operations on bytes against loops over whole numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softprune.deploy.format.compute import OpCall
from softprune.deploy.format.operations import OPERATIONS
from softprune.deploy.format.reference import run

SMALL = settings(max_examples=30, deadline=None)
PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))
f32 = np.float32


def one(kind, *inputs, weights=None, **fields):
    """The result of one operation on arrays of any kind; its weights are given by field."""
    named = {field: None if w is None else f"w.{field}" for field, w in (weights or {}).items()}
    held = {f"w.{field}": w for field, w in (weights or {}).items() if w is not None}
    op = {"op": kind, "path": "", "inputs": ["x0"], "output": "y", **dict.fromkeys(OPERATIONS[kind].fields), **fields}
    residual = inputs[1] if op.get("residual") else None
    return OPERATIONS[kind].compute(OpCall({**op, **named}, inputs[:1], residual, held, len(inputs[0])))


def rounded(sum_, factor, residual, fields):
    """One output from its exact sum, each step rounded to 32 bits."""
    y = f32(sum_) * f32(factor)
    if fields["out_zero"] is None:
        return y if residual is None else y + residual
    if residual is not None:
        y = y + f32(int(residual) - fields["residual_zero"]) * f32(fields["residual_factor"])
    # round() of Python takes ties to even.
    return min(max(round(float(y)) + fields["out_zero"], fields["low"]), fields["high"])


def loops(x, weight, bias, factor, residual, fields):
    """A convolution, number by number."""
    (n, _, h, w), (outputs, inputs, kh, kw) = x.shape, weight.shape
    (sh, sw), (ph, pw), (dh, dw) = fields["stride"], fields["padding"], fields["dilation"]
    rows, columns = (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (w + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    out = np.zeros((n, outputs, rows, columns), np.uint8 if fields["out_zero"] is not None else f32)
    for b, o, i, j in np.ndindex(out.shape):
        total = 0 if bias is None else int(bias[o])
        first = o // (outputs // fields["groups"]) * inputs
        for c, r, s in itertools.product(range(inputs), range(kh), range(kw)):
            row, column = i * sh + r * dh - ph, j * sw + s * dw - pw
            if 0 <= row < h and 0 <= column < w:
                total += int(weight[o, c, r, s]) * (int(x[b, first + c, row, column]) - fields["zero"])
        out[b, o, i, j] = rounded(total, factor[o], None if residual is None else residual[b, o, i, j], fields)
    return out


def bytes_of(generator, *shape):
    return generator.integers(0, 256, shape, dtype=np.uint8)


def endings(draw, shape, generator):
    """Fields of an output, and a residual for it or None."""
    kind = draw(st.sampled_from(["bytes", "bytes + residual", "float32", "float32 + residual"]))
    fields = dict.fromkeys(("residual", "residual_factor", "residual_zero", "out_zero", "low", "high"))
    residual = None
    if kind.startswith("bytes"):
        low = draw(st.integers(0, 255))
        fields |= {"out_zero": draw(st.integers(0, 255)), "low": low, "high": draw(st.integers(low, 255))}
        if residual_wanted := kind.endswith("residual"):
            fields |= {"residual_factor": draw(st.floats(1e-3, 3)), "residual_zero": draw(st.integers(0, 255))}
        residual = bytes_of(generator, *shape) if residual_wanted else None
    elif kind.endswith("residual"):
        residual = generator.standard_normal(shape).astype(f32)
    if residual is not None:
        fields["residual"] = "x1"
    return fields, residual


@SMALL
@given(st.data(), PAIR, PAIR, PAIR, PAIR, st.sampled_from([1, 2, 4]), st.integers(0, 255), st.integers(0, 99))
def test_convolutions_are_exact_sums_that_are_rounded_step_by_step(
    data, kernel, stride, padding, dilation, groups, zero, seed
):
    generator = np.random.default_rng(seed)
    x = bytes_of(generator, 2, 4, 6, 5)
    kernel = tuple(min(k, 2) for k in kernel)
    weight = generator.integers(-127, 128, (4, 4 // groups, *kernel), dtype=np.int8)
    bias = generator.integers(-5000, 5000, 4, dtype=np.int32) if data.draw(st.booleans()) else None
    factor = generator.uniform(1e-4, 1e-2, 4).astype(f32)
    sizes = (
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip((6, 5), padding, dilation, kernel, stride, strict=True)
    )
    ending, residual = endings(data.draw, (2, 4, *sizes), generator)
    fields = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "zero": zero, **ending}
    wanted = loops(x, weight, bias, factor, residual, fields)
    inputs = [x] if residual is None else [x, residual]
    found = one("conv2d_int8", *inputs, weights={"weight": weight, "bias": bias, "factor": factor}, **fields)
    assert found.dtype == wanted.dtype and np.array_equal(found, wanted)


@SMALL
@given(st.data(), st.integers(1, 7), st.integers(0, 255), st.integers(0, 99))
def test_linear_layers_are_convolutions_of_one_pixel(data, inputs, zero, seed):
    generator = np.random.default_rng(seed)
    x, weight = bytes_of(generator, 2, 3, inputs), generator.integers(-127, 128, (5, inputs), dtype=np.int8)
    bias, factor = generator.integers(-5000, 5000, 5, dtype=np.int32), generator.uniform(1e-3, 1e-1, 5).astype(f32)
    ending, residual = endings(data.draw, (2, 3, 5), generator)
    pixel = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    flat = None if residual is None else residual.reshape(6, 5, 1, 1)
    ending |= {"zero": zero}
    image, kernel = x.reshape(6, inputs, 1, 1), weight[:, :, None, None]
    wanted = loops(image, kernel, bias, factor, flat, {**ending, **pixel})
    values = [x] if residual is None else [x, residual]
    found = one("linear_int8", *values, weights={"weight": weight, "bias": bias, "factor": factor}, **ending)
    assert found.dtype == wanted.dtype and np.array_equal(found, wanted.reshape(2, 3, 5))


def test_large_sums_are_rounded_to_the_nearest_number_once():
    x, weight = np.uint8([[255, 0]]), np.int8([[1, 0]])
    for bias in (1 << 24, (1 << 24) + 1, (1 << 24) + 2, (1 << 30) + 32, (1 << 31) - 1 - 255, -(1 << 31) + 1 + 255):
        for factor in (1.0, 0.3):
            weights = {"weight": weight, "bias": np.int32([bias]), "factor": f32([factor])}
            found = one("linear_int8", x, weights=weights, zero=0)
            assert found.tolist() == [[f32(np.int64(bias + 255)) * f32(factor)]]
            found = one("linear_int8", x, weights=weights, zero=0, out_zero=7, low=1, high=200)
            assert found.tolist() == [[200 if bias > 0 else 1]]


def test_numbers_become_the_nearest_bytes_and_ties_the_even_ones():
    x = f32([[-1000, -0.75, -0.25, 0.25, 0.75, 1.25, 63.9, 1e30, np.inf, -np.inf, np.nan, 1e-45]])
    # In steps of 0.5: -1.5, -0.5, 0.5, 1.5, 2.5, 127.8.
    found = one("quantize", x, scale=0.5, zero=100)
    assert found.dtype == np.uint8 and found.tolist() == [[0, 98, 100, 100, 102, 102, 228, 255, 255, 0, 0, 100]]
    assert one("quantize", x, scale=1e-30, zero=3).tolist()[0][:4] == [0, 0, 0, 255]
    assert one("quantize", x, scale=1e30, zero=3).tolist()[0][:8] == [3, 3, 3, 3, 3, 3, 3, 4]
    back = one("dequantize", found, scale=0.5, zero=100)
    assert back.dtype == f32 and back.tolist()[0][:7] == [-50, -1, 0, 0, 1, 1, 64]


@pytest.mark.parametrize("zero", [0, 128, 255])
def test_every_byte_comes_back(zero):
    every = np.arange(256, dtype=np.uint8).reshape(1, -1)
    for scale in (0.017, 3.0, 1e-30, 1e30):
        assert np.array_equal(
            one("quantize", one("dequantize", every, scale=scale, zero=zero), scale=scale, zero=zero), every
        )


def test_a_lookup_takes_the_entry_of_each_byte():
    table = np.random.default_rng(0).permutation(256).astype(np.uint8)
    x = bytes_of(np.random.default_rng(1), 2, 3, 4)
    found = one("lookup", x, weights={"table": table})
    assert found.dtype == np.uint8 and found.tolist() == [[[table[q] for q in row] for row in part] for part in x]


def test_a_maximum_of_bytes_sees_zeros_in_the_padding():
    x = np.zeros((1, 1, 2, 3), np.uint8) + np.uint8([5, 0, 7])
    fields = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "ceil_mode": False}
    found = one("max_pool2d", x, **fields)
    assert found.dtype == np.uint8 and found.tolist() == [[[[5, 7]]]]
    assert not one("max_pool2d", 0 * x, **fields).any()


def test_bytes_go_through_a_whole_graph():
    ops = [
        {"op": "quantize", "inputs": ["x"], "output": "q", "scale": 0.1, "zero": 128},
        {"op": "linear_int8", "inputs": ["q"], "output": "h", "weight": "w", "bias": None, "factor": "f", "zero": 128,
         "residual": "q", "residual_factor": 1.0, "residual_zero": 128, "out_zero": 0, "low": 0, "high": 255},
        {"op": "linear_int8", "inputs": ["h"], "output": "y", "weight": "w", "bias": "b", "factor": "f", "zero": 0,
         "residual": "x"},
    ]  # fmt: skip
    graph = {"inputs": [{"name": "x", "shape": [None, 2]}], "outputs": ["y"], "weights": {}, "ops": ops}
    weights = {"w": np.int8([[1, -2], [0, 3]]), "f": f32([0.5, 2]), "b": np.int32([10, -20])}
    (found,) = run(graph, weights, [f32([[1, 2]])])
    # q is 10 and 20 steps from 128; h = 0.5 (10 - 40) + 10 = -5 and 2 * 60 + 20 = 140.
    # Of these y has the sums -270 and 400; its residual is x.
    assert found.tolist() == [[-134, 802]]


# Where a processor adds pairs of products in 16 bits, larger weights saturate in onnxruntime.
SAFE = 63


def onnx_run(kind, inputs, outputs, constants, **attributes):
    """One operation of ONNX in onnxruntime; constants are inputs that do not change."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    names = [f"i{place}" for place in range(len(inputs))]
    node = onnx.helper.make_node(kind, names, ["y"], **attributes)
    held = [onnx.numpy_helper.from_array(inputs[place], names[place]) for place in constants]
    given = [
        onnx.helper.make_tensor_value_info(names[i], onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for i, x in enumerate(inputs)
        if i not in constants
    ]
    kind_out = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(outputs))
    graph = onnx.helper.make_graph(
        [node], "one", given, [onnx.helper.make_tensor_value_info("y", kind_out, None)], held
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {names[i]: x for i, x in enumerate(inputs) if i not in constants})[0]


CONVOLUTIONS = [
    {"strides": (1, 1), "pads": (1, 1), "dilations": (1, 1), "group": 1},
    {"strides": (2, 1), "pads": (0, 2), "dilations": (1, 2), "group": 2},
    {"strides": (2, 2), "pads": (1, 1), "dilations": (1, 1), "group": 8},
]


@pytest.mark.parametrize("attributes", CONVOLUTIONS)
@pytest.mark.parametrize("zero", [0, 77, 255])
def test_convolutions_agree_with_onnxruntime(attributes, zero):
    generator = np.random.default_rng(zero)
    x = bytes_of(generator, 2, 8, 9, 7)
    groups, pads = attributes["group"], attributes["pads"]
    weight = generator.integers(-SAFE, SAFE + 1, (8, 8 // groups, 3, 3), dtype=np.int8)
    fields = {"stride": attributes["strides"], "padding": pads, "dilation": attributes["dilations"], "groups": groups}
    said = {**attributes, "pads": (*pads, *pads)}
    sums = onnx_run("ConvInteger", [x, weight, np.uint8(zero)], np.int32, (1, 2), **said)
    found = one("conv2d_int8", x, weights={"weight": weight, "factor": np.ones(8, f32)}, zero=zero, **fields)
    assert found.dtype == f32 and np.array_equal(found, sums)
    bias, scales = (
        generator.integers(-3000, 3000, 8, dtype=np.int32),
        generator.uniform(0.5, 2, 8).astype(f32) * f32(0.01),
    )
    steps, out_scale, out_zero = f32(0.02), f32(0.02 * np.abs(sums).max() * 0.02 / 128), 99
    inputs = [x, steps, np.uint8(zero), weight, scales, np.zeros(8, np.int8), out_scale, np.uint8(out_zero), bias]
    wanted = onnx_run("QLinearConv", inputs, np.uint8, range(1, 9), **said)
    weights = {"weight": weight, "bias": bias, "factor": steps * scales / out_scale}
    found = one("conv2d_int8", x, weights=weights, zero=zero, out_zero=out_zero, low=0, high=255, **fields)
    assert np.abs(found.astype(int) - wanted).max() <= 1 and (found == wanted).mean() > 0.99
    assert len(np.unique(found)) > 50


@pytest.mark.parametrize("zero", [0, 77, 255])
def test_linear_layers_agree_with_onnxruntime(zero):
    generator = np.random.default_rng(zero)
    x, weight = bytes_of(generator, 3, 5, 30), generator.integers(-SAFE, SAFE + 1, (12, 30), dtype=np.int8)
    turned = np.ascontiguousarray(weight.T)
    sums = onnx_run("MatMulInteger", [x, turned, np.uint8(zero)], np.int32, (1, 2))
    found = one("linear_int8", x, weights={"weight": weight, "factor": np.ones(12, f32)}, zero=zero)
    assert found.dtype == f32 and np.array_equal(found, sums)
    scale, out_scale = f32(0.013), f32(0.02 * 0.013 * np.abs(sums).max() / 128)
    inputs = [x, f32(0.02), np.uint8(zero), turned, scale, np.int8(0), out_scale, np.uint8(99)]
    wanted = onnx_run("QLinearMatMul", inputs, np.uint8, range(1, 8))
    weights = {"weight": weight, "factor": np.full(12, f32(0.02) * scale / out_scale, f32)}
    found = one("linear_int8", x, weights=weights, zero=zero, out_zero=99, low=0, high=255)
    assert np.abs(found.astype(int) - wanted).max() <= 1 and (found == wanted).mean() > 0.99
