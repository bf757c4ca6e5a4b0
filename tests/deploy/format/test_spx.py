"""Each version of the file as it was first written: still written like that, and still read."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_graphs import IntegerGraph, residual_network, token_network, whole_numbers

from softprune.deploy.export.exporting import write_spx
from softprune.deploy.format.graph import Graph, Op
from softprune.deploy.format.reference import run
from softprune.deploy.format.spx import check_built, read_spx
from softprune.deploy.format.value_kinds import infer_kinds

GOLDEN = Path(__file__).with_name("version1.spx")
GOLDEN_BYTES = Path(__file__).with_name("version2.spx")


def every_storage() -> Graph:
    """A hidden layer as a mask, an output layer as gaps, biases whole."""
    first, second = np.zeros((8, 4), np.float32), np.zeros((2, 300), np.float32)
    first[np.arange(8), np.arange(8) % 4] = np.arange(1, 9)
    first[0, 3] = -2
    second[0, [0, 7]], second[1, 299] = (0.5, -1), 3
    layer = {"activation": "relu", "residual": None}
    ops = [
        Op("linear", "hidden", ["x0"], "v0", {"weight": "w0", "bias": "w1", **layer}),
        Op("concat", "", ["v0"] * 37 + ["x0"], "v1", {"axis": 1}),
        Op("linear", "out", ["v1"], "v2", {"weight": "w2", "bias": None, **layer, "activation": None}),
    ]
    weights = {"w0": first, "w1": np.arange(8, dtype=np.float32), "w2": second}
    return Graph({"x0": (None, 4)}, ["v2"], ops, weights, {})


def test_the_bytes_are_those_of_the_first_release(tmp_path):
    write_spx(every_storage(), tmp_path / "net.spx")
    assert (tmp_path / "net.spx").read_bytes() == GOLDEN.read_bytes()


def test_the_first_release_is_still_read():
    model = read_spx(GOLDEN)
    storages = [entry["storage"] for entry in model.graph.document["weights"].values()]
    assert storages == ["mask", "dense", "gaps"]
    weights = {name: weight.dense() for name, weight in model.weights.items()}
    for name, weight in every_storage().weights.items():
        assert np.array_equal(weights[name], weight)
    # hidden = relu(1 - 2 + 0, 2 + 1, 3 + 2, 4 + 3, 5 + 4, 6 + 5, 7 + 6, 8 + 7); out reads hidden 0, hidden 7, input 3
    (found,) = run(model.graph.document, weights, [np.ones((1, 4), np.float32)])
    assert found.tolist() == [[0.5 * 0 - 15, 3]]


def every_storage_of_bytes() -> Graph:
    """Layers whose weights are whole, a mask, gaps and Rice codes, with what else a network of bytes may have."""
    dense, mask, gaps, rice = (np.zeros(shape, np.int8) for shape in ((4, 4), (8, 4), (8, 8), (2, 304)))
    dense[:] = np.arange(16).reshape(4, 4) - 7
    mask[np.arange(8), np.arange(8) % 4] = np.arange(1, 9)
    gaps[0, 7] = -127
    rice.reshape(-1)[np.arange(60) * 10 + np.arange(60) % 7] = np.arange(60) * 4 - 118
    none = dict.fromkeys(("residual", "residual_factor", "residual_zero"))
    kept = {**none, "out_zero": 128, "low": 3, "high": 250}
    added = {**kept, "residual": "v2", "residual_factor": 0.5, "residual_zero": 128}
    last = {**none, "out_zero": None, "low": None, "high": None}
    ops = [
        Op("quantize", "in", ["x0"], "v0", {"scale": 0.5, "zero": 128}),
        Op("linear_int8", "a", ["v0"], "v1", {"weight": "w0", "bias": "w1", "factor": "w2", "zero": 128, **kept}),
        Op("linear_int8", "b", ["v1"], "v2", {"weight": "w3", "bias": None, "factor": "w4", "zero": 128, **kept}),
        Op("linear_int8", "c", ["v2"], "v3", {"weight": "w5", "bias": None, "factor": "w4", "zero": 128, **added}),
        Op("lookup", "d", ["v3"], "v4", {"table": "w6"}),
        Op("concat", "", ["v4"] * 38, "v5", {"axis": 1}),
        Op("linear_int8", "e", ["v5"], "v6", {"weight": "w7", "bias": None, "factor": "w8", "zero": 128, **last}),
        Op("dequantize", "out", ["v4"], "v7", {"scale": 0.25, "zero": 128}),
    ]
    arrays = [dense, np.int32([9, -70_000, 0, 2]), np.float32([0.5, 0.001, 1, 0.25]), mask, np.ones(8, np.float32)]
    arrays += [gaps, np.arange(255, -1, -1).astype(np.uint8), rice, np.float32([0.5, 2])]
    return Graph({"x0": (None, 4)}, ["v6", "v7"], ops, {f"w{i}": array for i, array in enumerate(arrays)}, {})


def test_the_bytes_of_networks_of_bytes_stay_as_they_are(tmp_path):
    write_spx(every_storage_of_bytes(), tmp_path / "net.spx")
    assert (tmp_path / "net.spx").read_bytes() == GOLDEN_BYTES.read_bytes()
    model = read_spx(GOLDEN_BYTES)
    storages = {name: entry["storage"] for name, entry in model.graph.document["weights"].items()}
    assert [storages[name] for name in ("w0", "w3", "w5", "w7")] == ["dense", "mask", "gaps", "rice"]
    weights = {name: weight.dense() for name, weight in model.weights.items()}
    for name, array in every_storage_of_bytes().weights.items():
        assert weights[name].dtype == array.dtype and np.array_equal(weights[name], array)
    outputs = run(model.graph.document, weights, [np.float32([[1, -2, 0.6, 30]])])
    wanted = [31, 15.25, -15.5, -15.5, 15.25, 15.25, -15.5, -15.5]
    assert [out.tolist() for out in outputs] == [[[-6266, 44132]], [wanted]]


@st.composite
def integer_graphs(draw):
    """Layers of any size and density, of bytes and of floats, one behind the other."""
    net = IntegerGraph((draw(st.integers(1, 40)),), seed=draw(st.integers(0, 99)))
    width, value, zero = net.graph.inputs["x"][1], "x", None
    for _ in range(draw(st.integers(1, 4))):
        outputs = draw(st.integers(1, 60))
        if zero is None:
            zero = draw(st.integers(0, 255))
            value = net.add("quantize", value, scale=draw(st.floats(1e-30, 1e30)), zero=zero)
        out_zero = draw(st.none() | st.integers(0, 255))
        ending = {"out_zero": out_zero, "low": None if out_zero is None else 0, "high": None if out_zero is None else 9}
        value = net.linear(value, (outputs, width), zero=zero, **ending)
        fields = net.graph.ops[-1].fields
        net.graph.weights[fields["weight"]] = whole_numbers(net.generator, (outputs, width), draw(st.floats(0, 1)))
        if draw(st.booleans()):
            fields["bias"] = None
        width, zero = outputs, out_zero
    used = {name for op in net.graph.ops for _, name in op.weight_names()}
    net.graph.weights = {name: array for name, array in net.graph.weights.items() if name in used}
    return net.finish(value if zero is None else net.add("dequantize", value, scale=1.0, zero=zero))


def assert_comes_back(graph, path):
    write_spx(graph, path)
    model = read_spx(path)
    assert model.file.metadata["version"] == "2"
    for part in ("inputs", "outputs", "ops"):
        assert model.graph.document[part] == graph.document[part]
    assert list(model.weights) == list(graph.weights)
    for name, array in graph.weights.items():
        weight = model.weights[name]
        assert weight.dense().dtype == array.dtype and np.array_equal(weight.dense(), array)
        places, values = weight.nonzeros()
        assert values.dtype == array.dtype and np.array_equal(array.reshape(-1)[places], values)
        assert len(places) == weight.count() == np.count_nonzero(array)
    assert infer_kinds(model.graph, model.weights) == check_built(graph)
    return model


@settings(max_examples=40, deadline=None)
@given(integer_graphs())
def test_networks_of_bytes_come_back_from_their_files(tmp_path_factory, graph):
    assert_comes_back(graph, tmp_path_factory.mktemp("bytes") / "net.spx")


@pytest.mark.parametrize(("graph", "shape"), [(residual_network(), (3, 9, 11)), (token_network(), (6, 8))])
def test_networks_of_bytes_mean_the_same_in_their_files(graph, shape, tmp_path):
    model = assert_comes_back(graph, tmp_path / "a.spx")
    weights = {name: weight.dense() for name, weight in model.weights.items()}
    x = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float32)
    for found, wanted in zip(
        run(model.graph.document, weights, [x]), run(graph.document, graph.weights, [x]), strict=True
    ):
        assert found.dtype == np.float32 and np.array_equal(found, wanted) and len(np.unique(found)) > 8
    write_spx(graph, tmp_path / "b.spx")
    assert (tmp_path / "a.spx").read_bytes() == (tmp_path / "b.spx").read_bytes()
