"""Each operation of the reference engine against PyTorch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exported_networks import assert_equal_outputs
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from softprune.deploy.engine.planner import LOWERING
from softprune.deploy.export.onnx import NODES
from softprune.deploy.format.operations import OPERATIONS
from softprune.deploy.format.reference import run
from softprune.deploy.format.value_kinds import INTEGER

SMALL = settings(max_examples=40, deadline=None)
PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))


def one(kind: str, *inputs: torch.Tensor, weights: dict | None = None, **fields) -> list[np.ndarray]:
    """The result of one operation; its weights are given by field."""
    named = {field: None if w is None else f"w.{field}" for field, w in (weights or {}).items()}
    held = {f"w.{field}": w.numpy() for field, w in (weights or {}).items() if w is not None}
    names = [f"x{i}" for i in range(len(inputs))]
    op = {"op": kind, "path": "", "inputs": names, "output": "y", **fields, **named}
    graph = {
        "inputs": [{"name": n, "shape": [None, *x.shape[1:]]} for n, x in zip(names, inputs, strict=True)],
        "outputs": ["y"],
        "weights": {},
        "ops": [op],
    }
    return run(graph, held, [x.numpy() for x in inputs])


@SMALL
@given(PAIR, PAIR, PAIR, PAIR, st.sampled_from([1, 2, 4]), st.booleans(), st.integers(0, 99))
def test_conv2d(kernel, stride, padding, dilation, groups, biased, seed):
    torch.manual_seed(seed)
    x, weight = torch.randn(2, 4, 9, 8), torch.randn(8, 4 // groups, *kernel)
    bias = torch.randn(8) if biased else None
    expected = F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    fields = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    assert_equal_outputs(one("conv2d", x, weights={"weight": weight, "bias": bias}, **fields), expected)


@SMALL
@given(
    PAIR, PAIR, st.tuples(st.integers(0, 1), st.integers(0, 1)), PAIR, st.sampled_from([1, 2, 4]), st.integers(0, 99)
)
def test_conv_transpose2d(kernel, stride, padding, dilation, groups, seed):
    torch.manual_seed(seed)
    x, weight, bias = torch.randn(2, 4, 5, 4), torch.randn(4, 3, *kernel), torch.randn(3 * groups)
    more = tuple(max(s, d) - 1 for s, d in zip(stride, dilation, strict=True))
    expected = F.conv_transpose2d(x, weight, bias, stride, padding, more, groups, dilation)
    fields = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "output_padding": more}
    assert_equal_outputs(one("conv_transpose2d", x, weights={"weight": weight, "bias": bias}, **fields), expected)


@SMALL
@given(PAIR, PAIR, PAIR, st.booleans(), st.booleans(), st.integers(3, 9), st.integers(0, 99))
def test_pools(kernel, stride, dilation, ceil_mode, count_include_pad, width, seed):
    torch.manual_seed(seed)
    assume(all(d * (k - 1) < 6 for d, k in zip(dilation, kernel, strict=True)))
    x, padding = torch.randn(2, 3, 7, width), tuple(k // 2 for k in kernel)
    assume(width + 2 * padding[1] >= dilation[1] * (kernel[1] - 1) + 1)
    fields = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
    expected = F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode)
    assert_equal_outputs(one("max_pool2d", x, **fields, dilation=dilation), expected)
    expected = F.avg_pool2d(x, kernel, stride, padding, ceil_mode, count_include_pad)
    assert_equal_outputs(one("avg_pool2d", x, **fields, count_include_pad=count_include_pad), expected)


@SMALL
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
def test_adaptive_pools_and_resizing(height, width, rows, columns, seed):
    torch.manual_seed(seed)
    x, size = torch.randn(2, 3, height, width), (rows, columns)
    assert_equal_outputs(one("adaptive_avg_pool2d", x, size=size), F.adaptive_avg_pool2d(x, size))
    nearest = one("resize", x, size=size, mode="nearest", align_corners=False)
    assert_equal_outputs(nearest, F.interpolate(x, size, mode="nearest"))
    for corners in (False, True):
        found = one("resize", x, size=size, mode="bilinear", align_corners=corners)
        assert_equal_outputs(found, F.interpolate(x, size, mode="bilinear", align_corners=corners))


@pytest.mark.parametrize("scale", [(1.3, 2.7), (0.4, 1.9), (2.0, 3.0)])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_resizing_by_a_scale(scale, mode):
    x = torch.randn(2, 3, 7, 5)
    found = one("resize", x, scale=scale, mode=mode, align_corners=False)
    assert_equal_outputs(found, F.interpolate(x, scale_factor=scale, mode=mode))


ACTIVATIONS = {
    **{kind: getattr(F, kind) for kind in ("relu", "relu6", "hardswish", "hardsigmoid", "silu")},
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "mish": F.mish,
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(kind):
    x = torch.linspace(-100, 100, 4001).reshape(1, -1)
    assert_equal_outputs(one(kind, x), ACTIVATIONS[kind](x), tolerance=1e-6)
    x = torch.linspace(-4, 4, 999).reshape(1, -1)
    assert_equal_outputs(one(kind, x), ACTIVATIONS[kind](x), tolerance=1e-6)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    x = torch.linspace(-8, 8, 999).reshape(1, -1)
    assert_equal_outputs(one("gelu", x, approximate=approximate), F.gelu(x, approximate=approximate), tolerance=1e-6)


def test_activations_with_numbers():
    x = torch.linspace(-50, 50, 4001).reshape(1, -1)
    for alpha in (1.0, 0.3, -2.0):
        assert_equal_outputs(one("elu", x, alpha=alpha), F.elu(x, alpha), tolerance=1e-6)
    for beta, threshold in ((1.0, 20.0), (2.5, 1.0), (0.1, 20.0)):
        found = one("softplus", x, beta=beta, threshold=threshold)
        assert_equal_outputs(found, F.softplus(x, beta, threshold), tolerance=1e-6)


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
def test_frames_of_an_images_own_pixels(mode):
    x = torch.randn(2, 3, 5, 4)
    for top, bottom, left, right in ((0, 1, 2, 3), (4, 4, 3, 3), (0, 0, 0, 0), (2, 0, 0, 1)):
        found = one("pad", x, padding=[top, bottom, left, right], mode=mode)
        assert_equal_outputs(found, F.pad(x, (left, right, top, bottom), mode=mode))


@pytest.mark.parametrize("activation", [None, "relu", "relu6", "hardswish", "silu", "gelu", "sigmoid", "tanh", "mish"])
def test_a_layer_adds_its_residual_before_its_activation(activation):
    x, weight, bias = torch.randn(3, 6), torch.randn(6, 6), torch.randn(6)
    total = F.linear(x, weight, bias) + x
    known = {**ACTIVATIONS, None: lambda t: t, "gelu": F.gelu}
    found = one("linear", x, weights={"weight": weight, "bias": bias}, residual="x0", activation=activation)
    assert_equal_outputs(found, known[activation](total))


def test_norms_and_sums():
    x, weight, bias = torch.randn(2, 3, 4, 5), torch.randn(4, 5), torch.randn(4, 5)
    flat = {"weight": weight.flatten(), "bias": bias.flatten()}
    found = one("layer_norm", x, weights=flat, eps=1e-5, axes=[2, 3])
    assert_equal_outputs(found, F.layer_norm(x, (4, 5), weight, bias))
    assert_equal_outputs(one("mean", x, axes=[1, 3], keepdim=True), x.mean((1, 3), keepdim=True))
    assert_equal_outputs(one("mean", x, axes=[2], keepdim=False), x.mean(2))
    assert_equal_outputs(one("softmax", 50 * x, axis=1), (50 * x).softmax(1))
    channels = {"scale": torch.randn(3), "shift": torch.randn(3)}
    expected = x * channels["scale"][:, None, None] + channels["shift"][:, None, None]
    assert_equal_outputs(one("scale_shift", x, weights=channels), expected)
    assert_equal_outputs(one("add", x, x[:, :1]), x + x[:, :1])
    assert_equal_outputs(one("add", x, value=-1.5), x - 1.5)
    assert_equal_outputs(one("mul", x, x[..., :1]), x * x[..., :1])
    assert_equal_outputs(one("mul", x, value=3), 3 * x)


def test_attention_and_products():
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 6)
    expected = F.scaled_dot_product_attention(q, k, v, scale=0.3)
    assert_equal_outputs(one("attention", q, k, v, scale=0.3, weights={"mask": None}), expected)
    mask = torch.zeros(4, 5).masked_fill(~torch.ones(4, 5, dtype=torch.bool).tril(), -torch.inf)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    assert_equal_outputs(one("attention", q, k, v, scale=0.3, weights={"mask": mask}), expected)
    assert_equal_outputs(one("matmul", q, k.transpose(2, 3).contiguous()), q @ k.transpose(2, 3))


def test_moves():
    x = torch.randn(2, 3, 4, 5)
    assert_equal_outputs(one("concat", x, x, axis=2), torch.cat([x, x], 2))
    assert_equal_outputs(one("reshape", x, shape=[None, -1, 10]), x.reshape(2, -1, 10))
    assert_equal_outputs(one("permute", x, axes=[2, 0, 3, 1]), x.permute(2, 0, 3, 1))
    assert_equal_outputs(one("slice", x, axis=3, start=1, stop=5, step=2), x[..., 1:5:2])
    assert_equal_outputs(one("identity", x), x)
    assert_equal_outputs(one("constant", weights={"weight": x}), x)


def test_every_operation_of_the_format_is_known_to_the_engine_and_to_onnx():
    assert len(OPERATIONS) == 38
    assert LOWERING.keys() | set(INTEGER) == OPERATIONS.keys() == NODES.keys() | set(INTEGER)


def test_inputs_that_do_not_fit_are_named():
    graph = {
        "inputs": [{"name": "a", "shape": [None, 2]}, {"name": "b", "shape": [None, 2]}],
        "outputs": ["y"],
        "weights": {},
        "ops": [{"op": "add", "path": "", "inputs": ["a", "b"], "output": "y"}],
    }
    x = np.zeros((3, 2), np.float32)
    assert run(graph, {}, [x, x])[0].shape == (3, 2)
    with pytest.raises(ValueError, match="takes 2 inputs, got 1"):
        run(graph, {}, [x])
    with pytest.raises(ValueError, match=r"float32 of shape \(batch, 2\), got float64"):
        run(graph, {}, [x, x.astype(np.float64)])
    with pytest.raises(ValueError, match=r"input b .* of shape \(3, 1\)"):
        run(graph, {}, [x, x[:, :1]])
    with pytest.raises(ValueError, match=r"same batch size, got \[2, 3\]"):
        run(graph, {}, [x, x[:2]])
    graph["ops"][0]["op"] = "evaluate"
    with pytest.raises(ValueError, match="not in the format: evaluate"):
        run(graph, {}, [x, x])
