"""Quantised networks of other tools, read from ONNX: their bytes, and what is refused."""

from collections import Counter

import numpy as np
import pytest
import torch
from exported_networks import thin_out
from int8_graphs import Residual, small_network, tokens_network
from torch import nn

from softprune.deploy.export import export_onnx
from softprune.deploy.export.exporting import write_spx
from softprune.deploy.export.onnx import write_onnx_int8
from softprune.deploy.export.onnx_read import read_onnx_int8
from softprune.deploy.format.reference import run
from softprune.deploy.format.spx import read_spx

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'softprune[onnx]'")
runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'softprune[bench]'")
quantization = pytest.importorskip("onnxruntime.quantization", reason="needs onnxruntime's quantiser")


def session(path):
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def quantised(module, shape, folder, kind="QUInt8", *, per_channel=True):
    """The path of a file that ONNX Runtime's quantiser made of a module."""
    export_onnx(module, folder / "float.onnx", example=torch.zeros(1, *shape))
    generator = np.random.default_rng(0)
    feeds = iter([{"x0": generator.standard_normal((4, *shape)).astype(np.float32)} for _ in range(3)])

    class Samples(quantization.CalibrationDataReader):
        def get_next(self):
            return next(feeds, None)

    quantization.quantize_static(
        str(folder / "float.onnx"),
        str(folder / "int8.onnx"),
        Samples(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=getattr(quantization.QuantType, kind),
        weight_type=quantization.QuantType.QInt8,
    )
    return folder / "int8.onnx"


def assert_same_outputs(graph, path, x, tolerance):
    wanted = session(path).run(None, {session(path).get_inputs()[0].name: x})
    found = run(graph.document, graph.weights, [x])
    for y, z in zip(found, wanted, strict=True):
        assert y.shape == z.shape and len(np.unique(z)) > 5
        assert np.abs(y - z).max() <= tolerance * np.abs(z).max()


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("kind", ["QUInt8", "QInt8"])
def test_a_network_of_another_quantiser_computes_the_same(tmp_path, kind, per_channel):
    torch.manual_seed(0)
    path = quantised(thin_out(Residual(), 0.5), (3, 14, 14), tmp_path, kind, per_channel=per_channel)
    graph = read_onnx_int8(path)
    kinds = [op.kind for op in graph.ops]
    # Seven convolutions and the sum; the head, and what of the last layer is in integers.
    assert kinds.count("conv2d_int8") == 8 and kinds.count("linear_int8") == 2
    assert not {"conv2d", "linear", "relu"} & set(kinds)
    x = np.random.default_rng(1).standard_normal((3, 3, 14, 14)).astype(np.float32)
    assert_same_outputs(graph, path, x, 1e-2)
    write_spx(graph, tmp_path / "net.spx")
    model = read_spx(tmp_path / "net.spx")
    dense = {name: weight.dense() for name, weight in model.weights.items()}
    again = run(model.graph.document, dense, [x])
    assert np.array_equal(again[0], run(graph.document, graph.weights, [x])[0])


def test_zeros_stay_zeros(tmp_path):
    module = thin_out(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 5)), 0.2)
    graph = read_onnx_int8(quantised(module, (3, 6, 6), tmp_path))
    layers = [op for op in graph.ops if op.kind in ("conv2d_int8", "linear_int8")]
    assert len(layers) == 2
    for op, layer in zip(layers, (module[0], module[3]), strict=True):
        weight = graph.weights[op.fields["weight"]]
        zeros = (layer.weight == 0).numpy()
        assert weight.dtype == np.int8 and not weight[zeros].any() and np.abs(weight).max() == 127


@pytest.mark.parametrize(("make", "shape"), [(tokens_network, (6, 16)), (small_network, (3, 13, 11))])
def test_what_we_wrote_comes_back(make, shape, tmp_path):
    graph = make()
    found = read_onnx_int8(write_onnx_int8(graph, tmp_path / "net.onnx"))
    assert Counter(op.kind for op in found.ops) == Counter(op.kind for op in graph.ops)
    x = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
    wanted = run(graph.document, graph.weights, [x])
    assert all(np.array_equal(y, z) for y, z in zip(run(found.document, found.weights, [x]), wanted, strict=True))


def changed(path, change, **types):
    """The file after a change of its content."""
    model = onnx.load(str(path))
    change(model.graph)
    onnx.save(model, str(path))
    return path


def small(tmp_path):
    return quantised(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), (4,), tmp_path)


def replaced(graph, ending, array):
    """Put an array in the place of every constant whose name ends so."""
    found = [i for i in graph.initializer if i.name.endswith(ending)]
    assert found
    for tensor in found:
        old = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array(old), tensor.name))


def outside(graph):
    tensor = graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def too_large(graph):
    graph.initializer[0].dims[:] = [1 << 40, 1 << 20]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (outside, "lies in another file"),
        (too_large, "but only"),
        (lambda g: replaced(g, "weight_zero_point", lambda a: a + a.dtype.type(3)), "asymmetric weights are not read"),
        (lambda g: replaced(g, "_scale", lambda a: a * np.float32(np.nan)), "scale must be positive float32"),
        (lambda g: replaced(g, "_scale", lambda a: -a), "scale must be positive float32"),
        (lambda g: replaced(g, "_scale", lambda a: a * np.float32(1e-38)), "scale"),
        (lambda g: replaced(g, "_scale", lambda a: a.astype(np.float64)), "scale must be positive float32"),
        (lambda g: replaced(g, "_quantized", lambda a: np.full_like(a, -128) if a.ndim > 1 else a), "must be -127"),
        (lambda g: g.node.pop(0), "no node before it makes"),
        (lambda g: setattr(g.node[0], "op_type", "Loop"), "it is not read; these are: Add, "),
        (lambda g: g.input[0].type.tensor_type.shape.dim[1].ClearField("dim_value"), "sizes but the first"),
        (lambda g: setattr(g.input[0].type.tensor_type, "elem_type", 2), "must be float32"),
        (lambda g: replaced(g, "0_zero_point", lambda a: a.astype(np.uint16)), "only uint8 and int8 are read"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path, change, words):
    path = small(tmp_path)

    def renamed(graph):
        # The names of weights are ours; those of activations end alike.
        for old, new in (("w0", "w0weight"), ("w2", "w2weight")):
            for ending in ("_zero_point", "_scale", "_quantized"):
                for tensor in graph.initializer:
                    tensor.name = new + ending if tensor.name == old + ending else tensor.name
                for node in graph.node:
                    node.input[:] = [new + ending if name == old + ending else name for name in node.input]
        change(graph)

    with pytest.raises(ValueError, match=words):
        read_onnx_int8(changed(path, renamed))


def test_damaged_files_end_in_value_errors(tmp_path):
    content = small(tmp_path).read_bytes()
    generator = np.random.default_rng(0)
    path = tmp_path / "damaged.onnx"
    refused = 0
    for _ in range(150):
        damaged = bytearray(content[: generator.integers(1, len(content) + 1)] if generator.random() < 0.2 else content)
        for place in generator.integers(0, len(damaged), generator.integers(1, 6)):
            damaged[place] = generator.integers(0, 256)
        path.write_bytes(damaged)
        try:
            read_onnx_int8(path)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 30


NUMBERS = [-(1 << 62), -128, -1, 0, 1, 2, 255, 256, 1 << 20, 1 << 31, 1 << 62]
FLOATS = [0, -1, np.nan, np.inf, 1e-40, 1e38]


def distort(graph, generator):
    """Change an attribute, an input, a kind, a number or a size, or leave out a node."""
    node, tensor = (part[generator.integers(len(part))] for part in (graph.node, graph.initializer))
    other = graph.node[generator.integers(len(graph.node))]
    what = generator.integers(0, 6)
    if what == 0 and node.attribute:
        attribute = node.attribute[generator.integers(len(node.attribute))]
        if attribute.ints:
            attribute.ints[generator.integers(len(attribute.ints))] = int(generator.choice(NUMBERS))
        else:
            attribute.i = int(generator.choice(NUMBERS))
    elif what == 1 and node.input:
        node.input[generator.integers(len(node.input))] = str(generator.choice([*other.input, *other.output, ""]))
    elif what == 2:
        node.op_type = other.op_type
    elif what == 3 and tensor.dims:
        tensor.dims[generator.integers(len(tensor.dims))] = int(generator.choice(NUMBERS))
    elif what == 4:
        array = onnx.numpy_helper.to_array(tensor).copy()
        numbers = NUMBERS if array.dtype.kind in "iu" else FLOATS
        array.reshape(-1)[0] = np.array(generator.choice(numbers)).astype(array.dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    else:
        graph.node.remove(node)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the distortions themselves
def test_distorted_networks_are_read_or_refused(tmp_path):
    path = quantised(thin_out(Residual(), 0.5), (3, 14, 14), tmp_path)
    whole = onnx.load(str(path))
    outcomes = Counter()
    for seed in range(200):
        model = onnx.ModelProto()
        model.CopyFrom(whole)
        distort(model.graph, np.random.default_rng(seed))
        onnx.save(model, str(path))
        try:
            read_onnx_int8(path)
            outcomes["read"] += 1
        except ValueError as error:
            assert str(path) in str(error)
            outcomes["refused"] += 1
    assert outcomes["read"] > 10 and outcomes["refused"] > 60


def test_a_stride_of_zero_is_named(tmp_path):
    def change(graph):
        next(a for node in graph.node for a in node.attribute if a.name == "strides").ints[:] = [0, 1]

    path = quantised(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), (3, 5, 5), tmp_path)
    with pytest.raises(ValueError, match=r"Conv .*stride is \[0, 1\]"):
        read_onnx_int8(changed(path, change))


def test_a_weight_that_is_shared_too_often_is_refused(tmp_path):
    def share(graph):
        again = next(node for node in graph.node if node.op_type == "Add")
        for number in range(4000):
            node = graph.node.add()
            node.CopyFrom(again)
            node.input[0], node.output[0] = again.output[0] if not number else f"again{number - 1}", f"again{number}"
        graph.output[0].name = "again3999"

    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    export_onnx(module, tmp_path / "net.onnx", example=torch.zeros(1, 3, 64, 64))
    model = onnx.load(str(tmp_path / "net.onnx"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 4, 64, 64), np.float32), "big"))
    relu = model.graph.node[-1]
    model.graph.node.append(onnx.helper.make_node("Add", [relu.output[0], "big"], ["sum"]))
    share(model.graph)
    onnx.save(model, str(tmp_path / "net.onnx"))
    with pytest.raises(ValueError, match="would fill the memory"):
        read_onnx_int8(tmp_path / "net.onnx")


def test_names_and_absent_files(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.onnx"):
        read_onnx_int8(tmp_path / "net.bin")
    with pytest.raises(OSError, match="absent"):
        read_onnx_int8(tmp_path / "absent.onnx")
    (tmp_path / "x.onnx").write_bytes(b"no network")
    with pytest.raises(ValueError, match=r"x\.onnx is no ONNX file"):
        read_onnx_int8(tmp_path / "x.onnx")
