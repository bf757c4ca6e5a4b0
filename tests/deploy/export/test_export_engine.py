"""Files on the engine: chains of layers as exported networks have them, against the reference."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softprune.deploy.engine.inference import KernelWarning, load
from softprune.deploy.export.exporting import write_spx
from softprune.deploy.format.graph import Graph, Op
from softprune.deploy.format.reference import run


def sparse(rng, shape, density):
    return (rng.standard_normal(shape) * (rng.random(shape) < density)).astype(np.float32)


def convolution(source: str, output: str, weight: str, **changed) -> Op:
    fields = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "bias": None}
    return Op(
        "conv2d", "", [source], output, {**fields, "activation": "relu", "residual": None, "weight": weight, **changed}
    )


def assert_engine(graph: Graph, path, x: np.ndarray) -> None:
    write_spx(graph, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KernelWarning)
        found = load(path, threads=1, tune=False)(x)
    (expected,) = run(graph.document, graph.weights, [x])
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("width", [1, 2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17])
def test_two_convolutions_in_a_row(tmp_path, width):
    # Two rows of 8 places share a vector of 16 lanes, and the zeros between them must stay zeros.
    rng = np.random.default_rng(width)
    weights = {"w0": sparse(rng, (16, 8, 3, 3), 0.3), "w1": sparse(rng, (8, 16, 3, 3), 0.3)}
    ops = [convolution("x0", "v0", "w0"), convolution("v0", "v1", "w1")]
    graph = Graph({"x0": (None, 8, 7, width)}, ["v1"], ops, weights, {})
    assert_engine(graph, tmp_path / "net.spx", rng.standard_normal((2, 8, 7, width)).astype(np.float32))


@st.composite
def chains(draw):
    """Convolutions of any kind, one behind the other, with residuals where shapes allow."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    shape = (draw(st.sampled_from([1, 3, 8])), draw(st.integers(3, 18)), draw(st.integers(3, 34)))
    graph = Graph({"x0": (None, *shape)}, [], [], {}, {})
    name, (channels, height, width) = "x0", shape
    for position in range(draw(st.integers(1, 4))):
        kernel, stride = draw(st.sampled_from([1, 3, 5])), draw(st.sampled_from([1, 1, 2]))
        groups = draw(st.sampled_from([1, channels]))
        outputs = channels * draw(st.sampled_from([1, 2])) if groups > 1 else draw(st.sampled_from([4, 16, 20]))
        weight, output = f"w{position}", f"v{position}"
        graph.weights[weight] = sparse(
            rng, (outputs, channels // groups, kernel, kernel), draw(st.sampled_from([0.1, 0.5, 1]))
        )
        same = stride == 1 and outputs == channels and draw(st.booleans())
        changed = {"padding": [kernel // 2] * 2, "stride": [stride] * 2, "groups": groups}
        changed |= {"activation": draw(st.sampled_from([None, "relu"])), "residual": name if same else None}
        graph.ops.append(convolution(name, output, weight, **changed))
        channels, height, width = outputs, (height - 1) // stride + 1, (width - 1) // stride + 1
        name = output
    graph.outputs.append(name)
    return graph, rng.standard_normal((draw(st.integers(1, 3)), *shape)).astype(np.float32)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains())
def test_random_chains_of_convolutions(tmp_path_factory, drawn):
    graph, x = drawn
    assert_engine(graph, tmp_path_factory.mktemp("chain") / "net.spx", x)
