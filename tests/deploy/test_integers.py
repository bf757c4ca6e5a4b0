"""What becomes integer: weights that keep every zero, sums within their bounds, each value converted once."""

import numpy as np
import pytest
import torch
from exported_networks import Joined, Transformer, UNet, depthwise_net, thin_out
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from softprune.deploy.export.exporting import to_graph
from softprune.deploy.format.reference import run
from softprune.deploy.format.spx import check_built
from softprune.deploy.integers import Affine, graph_beside, integer_graph, integer_rows, plan_integers, widened

LARGEST = (1 << 31) - 1
CODES = [Affine(0.02, 0), Affine(0.5, 128), Affine(3e-9, 7), Affine(1e12, 255)]
NUMBERS = st.floats(-1e4, 1e4, width=32)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.lists(st.one_of(st.just(0.0), st.just(-0.0), NUMBERS), min_size=5, max_size=5), min_size=1),
    scale=st.sampled_from([1.0, 1e-30, 1e-12, 1e6]),
    bias=st.one_of(st.just(0.0), NUMBERS),
    code=st.sampled_from(CODES),
    unit=st.sampled_from([1.0, 0.01, 1e-9]),
)
def test_zeros_stay_zeros_and_all_weights_biases_and_factors_are_within_their_bounds(rows, scale, bias, code, unit):
    weight = np.array(rows, np.float32) * np.float32(scale)
    made, biases, factor = integer_rows(weight, np.full(len(weight), bias), code=code, unit=unit)
    assert made.dtype == np.int8 and biases.dtype == np.int32 and factor.dtype == np.float32
    assert not made[weight == 0].any()
    assert np.abs(made.astype(int)).max() <= 127
    assert ((factor >= 1e-30) & (factor <= 1e30)).all()
    span = max(code.zero, 255 - code.zero)
    assert (np.abs(biases.astype(int)) + np.abs(made.astype(int)).sum(1) * span <= LARGEST).all()


@pytest.mark.parametrize("code", CODES)
def test_ordinary_rows_are_right_to_half_a_step_of_their_own(code):
    random = np.random.default_rng(0)
    weight = (random.normal(size=(8, 30)) * 10.0 ** random.integers(-3, 3, (8, 1))).astype(np.float32)
    bias = random.normal(size=8) * np.abs(weight).max(1) * code.scale
    made, biases, factor = integer_rows(weight, bias, code=code, unit=0.1)
    step = factor.astype(np.float64)[:, None] * 0.1 / code.scale
    assert np.abs(made).max(1).tolist() == [127] * 8
    assert (np.abs(made * step - weight) <= 0.5001 * step).all()
    assert np.abs(biases * factor * 0.1 - bias).max() <= 0.5001 * (factor * 0.1).max()


@pytest.mark.parametrize("weights", [0.0, 1e-12, 1e-38])
@pytest.mark.parametrize("bias", [0.0, 0.25, -3e4])
def test_a_row_without_weights_that_count_beside_its_bias_is_a_constant(weights, bias):
    weight = np.array([[weights, -weights / 2], [1, 2]], np.float32)
    made, biases, factor = integer_rows(weight, np.array([bias, 0.0]), code=Affine(0.02, 3), unit=0.05)
    if bias:
        assert not made[0].any()
        assert np.float32(biases[0]) * factor[0] * 0.05 == pytest.approx(bias, rel=1e-6)
    assert made[1].tolist() == [64, 127]


# Graphs.


def planned(module: nn.Module, *inputs: torch.Tensor, kept=()):
    """The plan of a module, and codes that are wide enough for small numbers."""
    plan = plan_integers(to_graph(module.eval(), inputs), kept)
    codes = {group: Affine(0.05, 128) for group in plan.sources()}
    return plan, codes


def kinds(graph) -> list[str]:
    return [op.kind for op in graph.ops]


def made_of(module: nn.Module, *inputs: torch.Tensor):
    plan, codes = planned(module, *inputs)
    return integer_graph(plan, codes, {})


NETWORKS = {
    "depthwise": (depthwise_net, [(3, 32, 32)]),
    "unet": (UNet, [(3, 16, 16)]),
    "transformer": (lambda: Transformer(side=15), [(3, 15, 15)]),
    "joined": (Joined, [(4, 9, 9), (4, 9, 9)]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_each_value_is_converted_once_and_never_there_and_back(name):
    make, shapes = NETWORKS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(2, *shape) for shape in shapes]
    module = make().eval()
    module(*inputs)
    graph = made_of(thin_out(module), *inputs)
    check_built(graph)
    makers = {op.output: op for op in graph.ops}
    conversions = [(op.kind, op.inputs[0]) for op in graph.ops if op.kind in ("quantize", "dequantize")]
    assert len(set(conversions)) == len(conversions) > 0
    back = {"quantize": "dequantize", "dequantize": "quantize"}
    assert all(name not in makers or makers[name].kind != back[kind] for kind, name in conversions)
    assert not {"conv2d", "linear"} & set(kinds(graph))


def test_a_residual_block_stays_in_bytes_and_so_does_what_a_mean_over_all_pixels_alone_reads():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            x = torch.relu(self.a(x))
            x = torch.relu(self.b(x) + x)
            return self.head(torch.relu(self.c(x)).mean((2, 3)))

    graph = made_of(Block(), torch.randn(2, 4, 8, 8))
    assert kinds(graph) == [
        *("quantize", "conv2d_int8", "conv2d_int8", "conv2d_int8"),
        *("dequantize", "mean", "quantize", "linear_int8"),
    ]
    block, last = graph.ops[2], graph.ops[3]
    assert block.fields["residual"] == block.inputs[0]
    assert (block.fields["out_zero"], block.fields["low"], block.fields["high"]) == (128, 128, 255)
    assert block.fields["residual_factor"] == 1.0
    assert last.fields["out_zero"] == 128 and graph.ops[-1].fields["out_zero"] is None


def test_what_a_mean_and_another_float_operation_read_is_float32():
    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.squeeze = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            x = torch.relu(self.conv(x))
            return x * torch.sigmoid(self.squeeze(x.mean((2, 3), keepdim=True)))

    graph = made_of(Squeezed(), torch.randn(2, 4, 8, 8))
    assert kinds(graph) == ["quantize", "conv2d_int8", "relu", "mean", "quantize", "conv2d_int8", "sigmoid", "mul"]


def test_floats_that_are_moved_and_averaged_stay_floats():
    class Moved(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(x.permute(0, 3, 1, 2).mean((2, 3)))

    assert kinds(made_of(Moved(), torch.randn(2, 8, 8, 4))) == ["permute", "mean", "quantize", "linear_int8"]


def test_pools_joins_and_moves_pass_bytes_on_in_one_scale():
    class Joins(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 3, 1), nn.Conv2d(6, 2, 3)

        def forward(self, x):
            a = nn.functional.max_pool2d(torch.relu(self.a(x)), 2)
            return self.c(torch.cat([a, self.b(x)[:, :, ::2, ::2]], 1))

    plan, codes = planned(Joins(), torch.randn(2, 2, 8, 8))
    assert len(codes) == 2
    graph = integer_graph(plan, codes, {})
    assert [kind for kind in kinds(graph) if "quantize" in kind] == ["quantize"]
    assert {"max_pool2d", "slice", "concat"} <= set(kinds(graph))


def test_other_activations_between_layers_are_tables_and_before_an_output_float32():
    net = nn.Sequential(nn.Linear(4, 4), nn.Hardswish(), nn.Linear(4, 4), nn.Sigmoid())
    graph = made_of(net, torch.randn(2, 4))
    assert kinds(graph) == ["quantize", "linear_int8", "lookup", "linear_int8", "sigmoid"]
    table = graph.weights[graph.ops[2].fields["table"]]
    x = torch.tensor((np.arange(256) - 128) * np.float32(0.05))
    wanted = np.rint(nn.functional.hardswish(x).numpy() / np.float32(0.05)) + 128
    assert np.abs(table.astype(int) - np.clip(wanted, 0, 255)).max() <= 1


def test_relu6_ends_at_six():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU6(), nn.Linear(4, 4))
    plan, codes = planned(net, torch.randn(2, 4))
    codes = {group: Affine(0.1, 0) for group in codes}
    fields = integer_graph(plan, codes, {}).ops[1].fields
    assert (fields["out_zero"], fields["low"], fields["high"]) == (0, 0, 60)


def test_layers_that_are_kept_stay_as_they_are():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    middle = next(op.output for op in to_graph(net, torch.randn(2, 4)).ops if op.path == "2")
    plan, codes = planned(net, torch.randn(2, 4), kept={middle})
    assert kinds(integer_graph(plan, codes, {})) == [
        "quantize",
        "linear_int8",
        "relu",
        "linear",
        "quantize",
        "linear_int8",
    ]


def test_the_graph_with_both_forms_gives_pairs_of_equal_shape_that_are_near():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.SiLU(), nn.Flatten(), nn.Linear(128, 9), nn.Linear(9, 5)
    )
    x = torch.randn(4, 3, 8, 8)
    plan, codes = planned(net, x)
    both, layers = graph_beside(plan, {group: Affine(0.03, 128) for group in codes}, {})
    outputs = run(both.document, both.weights, [x.numpy()])
    assert set(layers) == plan.layers and len(outputs) == 2 * len(layers) == 8
    for wanted, found in zip(outputs[::2], outputs[1::2], strict=True):
        assert np.square(found - wanted).sum() < 0.02 * np.square(wanted).sum()


def test_an_output_that_hardly_left_zero_gets_a_scale_that_no_sum_leaves():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with torch.no_grad():
        net[0].weight.mul_(1e6)
    plan, codes = planned(net, torch.randn(2, 4))
    narrow = {group: Affine(1e-9, 128) if group in plan.bytes else code for group, code in codes.items()}
    with pytest.raises(ValueError, match="steps, at most"):
        check_built(integer_graph(plan, narrow, {}))
    check_built(integer_graph(plan, widened(plan, narrow), {}))
