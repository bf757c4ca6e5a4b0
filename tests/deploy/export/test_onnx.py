"""ONNX files compute what PyTorch computes, and quantising them keeps zeros."""

import sys

import numpy as np
import pytest
import torch
from exported_networks import Joined, Transformer, UNet, assert_equal_outputs, depthwise_net, thin_out
from test_aten import Bends, frames
from torch import nn

from softprune.deploy.export import export_onnx
from softprune.nn.catalog import build


def session(path):
    runtime = pytest.importorskip("onnxruntime", reason="needs onnx and onnxruntime: pip install 'softprune[onnx]'")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def assert_onnx(module, path, *shapes, sparse=False):
    pytest.importorskip("onnx", reason="needs onnx: pip install 'softprune[onnx]'")
    export_onnx(module, path, example=tuple(torch.randn(1, *shape) for shape in shapes), sparse=sparse)
    opened = session(path)
    for batch in (1, 3):
        inputs = [torch.randn(batch, *shape) for shape in shapes]
        feed = {spec.name: x.numpy() for spec, x in zip(opened.get_inputs(), inputs, strict=True)}
        with torch.no_grad():
            assert_equal_outputs(opened.run(None, feed), module(*inputs))


def test_a_residual_network(tmp_path):
    module = thin_out(build("resnet20"), 0.1)
    assert_onnx(module, tmp_path / "dense.onnx", (3, 17, 19))
    assert_onnx(module, tmp_path / "sparse.onnx", (3, 17, 19), sparse=True)
    assert (tmp_path / "sparse.onnx").stat().st_size < 0.45 * (tmp_path / "dense.onnx").stat().st_size


def test_depthwise_convolutions(tmp_path):
    module = depthwise_net()
    module(torch.zeros(1, 3, 19, 17))
    assert_onnx(thin_out(module), tmp_path / "net.onnx", (3, 19, 17))


def test_down_and_up(tmp_path):
    assert_onnx(thin_out(UNet()), tmp_path / "net.onnx", (3, 22, 18))


def test_a_transformer(tmp_path):
    assert_onnx(thin_out(Transformer(side=20)), tmp_path / "net.onnx", (3, 20, 20), sparse=True)


def test_frames_and_bends(tmp_path):
    assert_onnx(thin_out(frames()), tmp_path / "frames.onnx", (3, 7, 6))
    assert_onnx(Bends(), tmp_path / "bends.onnx", (3, 7, 6))


def test_joins(tmp_path):
    assert_onnx(thin_out(Joined()), tmp_path / "net.onnx", (3, 9, 11), (5, 9, 11))


def test_without_onnx_the_way_to_get_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"softprune\[onnx\]"):
        export_onnx(nn.Linear(2, 2), tmp_path / "net.onnx", example=torch.zeros(1, 2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("per_channel", [False, True])
def test_int8_weights_keep_every_zero(tmp_path, per_channel):
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'softprune[onnx]'")
    quantization = pytest.importorskip("onnxruntime.quantization", reason="needs onnxruntime's quantiser")
    module = thin_out(nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 8)), 0.2)
    export_onnx(module, tmp_path / "net.onnx", example=torch.zeros(1, 32))
    quantization.quantize_dynamic(
        tmp_path / "net.onnx",
        tmp_path / "int8.onnx",
        weight_type=quantization.QuantType.QInt8,
        per_channel=per_channel,
        op_types_to_quantize=["Gemm", "MatMul"],
    )
    held = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(str(tmp_path / "int8.onnx")).graph.initializer}
    weights = [array for array in held.values() if array.dtype == np.int8 and array.ndim == 2]
    assert len(weights) == 2
    for linear in (module[0], module[2]):
        zeros = (linear.weight == 0).numpy()
        matching = [w if w.shape == zeros.shape else w.T for w in weights if sorted(w.shape) == sorted(zeros.shape)]
        assert len(matching) == 1
        assert not matching[0][zeros].any()
        assert np.count_nonzero(matching[0]) > 0.5 * (~zeros).sum()


def dequantised(onnx, path):
    """The weights of a quantised file: whole numbers, zero points and scales by name of the weight."""
    held = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(str(path)).graph.initializer}
    ends = ("_quantized", "_zero_point", "_scale")
    found = [name.removesuffix(ends[0]) for name in held if name.endswith(ends[0]) and held[name].ndim > 1]
    return {name: tuple(held[name + end] for end in ends) for name in found}


# With int8 zero is at 0; with uint8 it is at a zero point, a whole number that zero meets exactly.
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_quantised_convolutions_keep_every_zero_and_run(tmp_path, kind, per_channel):
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'softprune[onnx]'")
    quantization = pytest.importorskip("onnxruntime.quantization", reason="needs onnxruntime's quantiser")
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(288, 5)]
    module = thin_out(nn.Sequential(*layers), 0.3)
    export_onnx(module, tmp_path / "net.onnx", example=torch.zeros(1, 3, 10, 10))
    quantization.quantize_dynamic(
        tmp_path / "net.onnx",
        tmp_path / "int8.onnx",
        weight_type=getattr(quantization.QuantType, kind),
        per_channel=per_channel,
    )
    before = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(str(tmp_path / "net.onnx")).graph.initializer}
    after = dequantised(onnx, tmp_path / "int8.onnx")
    assert len(after) == 3
    for name, (whole, zero, scale) in after.items():
        weight = before[name] if before[name].shape == whole.shape else before[name].T  # of a product
        # Per channel, zero points and scales lie along the axis that they have as many of.
        axis = weight.shape.index(zero.size) if zero.size > 1 else 0
        shape = [zero.size if i == axis and zero.size > 1 else 1 for i in range(weight.ndim)]
        restored = (whole.astype(np.float32) - zero.reshape(shape)) * scale.reshape(shape)
        assert not restored[weight == 0].any()
        assert kind == "QUInt8" or not zero.any()
        assert np.abs(restored - weight).max() <= 0.51 * scale.max() + 1e-7
    opened = session(tmp_path / "int8.onnx")
    x = torch.randn(3, 3, 10, 10)
    (y,) = opened.run(None, {opened.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        assert_equal_outputs([y], module(x), tolerance=0.1)


@pytest.mark.parametrize("axis", [None, 0])
def test_torch_int8_keeps_every_zero(axis):
    weight = thin_out(nn.Linear(64, 16), 0.1).weight.detach()
    largest = weight.abs().max() if axis is None else weight.abs().amax(1)
    scale = largest.clamp_min(1e-12) / 127
    if axis is None:
        quantised = torch.quantize_per_tensor(weight, float(scale), 0, torch.qint8)
    else:
        zero_points = torch.zeros(len(scale), dtype=torch.int64)
        quantised = torch.quantize_per_channel(weight, scale.double(), zero_points, axis, torch.qint8)
    assert not quantised.int_repr()[weight == 0].any() and not quantised.dequantize()[weight == 0].any()
    assert quantised.int_repr().abs().max() == 127
