"""Programs quantised by PyTorch's export-based flow: the bytes they compute, and what is refused."""

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from exported_networks import thin_out
from int8_graphs import Residual
from torch import nn

from softprune.deploy.export.pt2e import read_pt2e
from softprune.deploy.format.reference import run

ops = torch.ops.quantized_decomposed


class Quantised(nn.Module):
    """A layer as the flow writes it, with weights and activations of a type."""

    def __init__(self, *, kind=torch.int8, zero=3, weight_zero=0, least=None, scale=0.02):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight = torch.randint(-127, 128, (6, 5), generator=generator, dtype=torch.int8)
        self.register_buffer("weight", weight * (torch.rand(6, 5, generator=generator) < 0.5))
        self.register_buffer("scales", torch.rand(6, generator=generator) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.full((6,), weight_zero))
        self.bias = nn.Parameter(torch.randn(6, generator=generator))
        whole = torch.iinfo(kind)
        self.kind, self.zero, self.least, self.most = kind, zero, whole.min if least is None else least, whole.max
        self.scale = scale

    def rounded(self, x, scale):
        x = ops.quantize_per_tensor(x, scale, self.zero, self.least, self.most, self.kind)
        return ops.dequantize_per_tensor(x, scale, self.zero, self.least, self.most, self.kind)

    def forward(self, x):
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        y = nn.functional.linear(self.rounded(x, self.scale), weight, self.bias).relu()
        return self.rounded(y, 0.03)


def program(module, *shape):
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(module.eval(), (torch.randn(4, *shape),), dynamic_shapes=({0: batch},))


@pytest.mark.parametrize(("kind", "zero"), [(torch.int8, 3), (torch.uint8, 120)])
def test_a_layer_between_roundings_is_one_operation(kind, zero):
    module = Quantised(kind=kind, zero=zero)
    graph = read_pt2e(program(module, 5))
    assert [op.kind for op in graph.ops] == ["quantize", "linear_int8", "dequantize"]
    layer = graph.ops[1]
    assert np.array_equal(graph.weights[layer.fields["weight"]], module.weight.numpy())
    assert layer.fields["low"] == layer.fields["out_zero"] == zero + (128 if kind == torch.int8 else 0)
    x = torch.randn(7, 5)
    (found,) = run(graph.document, graph.weights, [x.numpy()])
    wanted = module(x).detach().numpy()
    assert len(np.unique(wanted)) > 10 and np.abs(found - wanted).max() <= 0.0301


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight_zero": 3}, "asymmetric weights are not read"),
        ({"least": -127}, "has values of -127 to 127"),
        ({"kind": torch.int16}, "only uint8 and int8"),
        ({"scale": 1e-36}, r"scale 1e-36 and zero 131 must be"),
    ],
)
def test_what_is_not_read_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        read_pt2e(program(Quantised(**changes), 5))


def test_a_module_needs_an_example():
    with pytest.raises(ValueError, match="needs an example"):
        read_pt2e(program(Quantised(), 5).module())
    assert read_pt2e(program(Quantised(), 5).module(), torch.randn(1, 5)).ops


def test_the_flow_of_torchao():
    flow = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e", reason="needs torchao")
    kinds = pytest.importorskip("torchao.testing.pt2e._xnnpack_quantizer", reason="needs torchao with its quantiser")
    module = thin_out(Residual(), 0.5)
    quantizer = kinds.XNNPACKQuantizer().set_global(kinds.get_symmetric_quantization_config(is_per_channel=True))
    prepared = flow.prepare_pt2e(program(module, 3, 14, 14).module(), quantizer)
    prepared(torch.randn(16, 3, 14, 14))
    converted = flow.convert_pt2e(prepared)
    graph = read_pt2e(converted, torch.randn(1, 3, 14, 14))
    found = [op.kind for op in graph.ops]
    assert found.count("linear_int8") == 2 and found.count("conv2d_int8") >= 7 and "conv2d" not in found
    x = torch.randn(5, 3, 14, 14)
    (y,) = run(graph.document, graph.weights, [x.numpy()])
    wanted = converted(x).detach().numpy()
    assert np.abs(y - wanted).max() <= 0.05 * np.abs(wanted).max()
