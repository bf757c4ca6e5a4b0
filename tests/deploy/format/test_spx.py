"""Version 1 of the file as it was first written: it is still written like that, and still read."""

from pathlib import Path

import numpy as np

from softprune.deploy.export.exporting import write_spx
from softprune.deploy.format.graph import Graph, Op
from softprune.deploy.format.reference import run
from softprune.deploy.format.spx import read_spx

GOLDEN = Path(__file__).with_name("version1.spx")


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
