"""The network of a .spx file as ONNX computes what the file's network computes."""

import pytest
import torch
from exported_networks import Joined, Transformer, UNet, assert_equal_outputs, depthwise_net, thin_out

from softprune.deploy.export import export
from softprune.deploy.export.exporting import write_spx
from softprune.deploy.export.onnx import spx_to_onnx
from softprune.deploy.format.graph import Graph, Op
from softprune.nn.catalog import build


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda: build("resnet20"), [(3, 17, 19)]),
        (depthwise_net, [(3, 19, 17)]),
        (UNet, [(3, 22, 18)]),
        (lambda: Transformer(side=20), [(3, 20, 20)]),
        (Joined, [(3, 9, 11), (5, 9, 11)]),
    ],
)
def test_a_file_becomes_onnx(make, shapes, tmp_path):
    pytest.importorskip("onnx", reason="needs onnx: pip install 'softprune[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'softprune[bench]'")
    module = make().eval()
    inputs = [torch.randn(3, *shape) for shape in shapes]
    with torch.no_grad():
        module(*inputs)
        module = thin_out(module)
        expected = module(*inputs)
    export(module, tmp_path / "m.spx", example=tuple(inputs))
    session = runtime.InferenceSession(
        str(spx_to_onnx(tmp_path / "m.spx", tmp_path / "m.onnx")), providers=["CPUExecutionProvider"]
    )
    names = [spec.name for spec in session.get_inputs()]
    feed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    assert_equal_outputs(session.run(None, feed), expected)


def test_a_reshape_with_two_sizes_that_depend_on_the_batch(tmp_path):
    """Products of all rows of all samples: [batch, 4, 4 batch]."""
    pytest.importorskip("onnx", reason="needs onnx: pip install 'softprune[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'softprune[bench]'")
    ops = [
        Op("reshape", "", ["x"], "rows", {"shape": [-1, 6]}),
        Op("permute", "", ["rows"], "turned", {"axes": [1, 0]}),
        Op("matmul", "", ["rows", "turned"], "all", {}),
        Op("reshape", "", ["all"], "y", {"shape": [None, 4, -1]}),
    ]
    graph = Graph({"x": (None, 4, 6)}, ["y"], ops)
    write_spx(graph, tmp_path / "m.spx")
    x = torch.randn(3, 4, 6)
    session = runtime.InferenceSession(
        str(spx_to_onnx(tmp_path / "m.spx", tmp_path / "m.onnx")), providers=["CPUExecutionProvider"]
    )
    rows = x.flatten(0, 1)
    assert_equal_outputs(session.run(None, {"x": x.numpy()}), (rows @ rows.t()).reshape(3, 4, 12))


def test_the_name_must_be_of_onnx(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.onnx"):
        spx_to_onnx(tmp_path / "m.spx", tmp_path / "m.bin")
