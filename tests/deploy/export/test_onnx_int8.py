"""Integer networks as ONNX with QuantizeLinear and DequantizeLinear: ONNX Runtime finds the bytes of the reference."""

import numpy as np
import pytest
from int8_graphs import every_value, small_network, tokens_network

from softprune.deploy.export.exporting import write_spx
from softprune.deploy.export.onnx import spx_to_onnx, write_onnx_int8


@pytest.fixture(autouse=True)
def packages():
    pytest.importorskip("onnx", reason="needs onnx: pip install 'softprune[onnx]'")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'softprune[bench]'")


def ran(path, feed, *, show=(), optimise=True):
    """The outputs of a file in ONNX Runtime, and the values inside whose names are given, by name."""
    import onnx
    import onnxruntime

    model = onnx.load(str(path))
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in show)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [put.name for put in session.get_outputs()]
    return dict(zip(names, session.run(None, feed), strict=True))


def inputs(graph, batch=3):
    shape = next(iter(graph.inputs.values()))
    return np.random.default_rng(7).standard_normal((batch, *shape[1:])).astype(np.float32)


# With optimisations layers run on integers, without them on the numbers that they stand for.
@pytest.mark.parametrize("optimise", [True, False])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [small_network, tokens_network])
def test_every_byte_is_within_one_step_of_the_reference(make, seed, optimise, tmp_path):
    graph = make(seed)
    x = inputs(graph)
    wanted = every_value(graph, x)
    path = write_onnx_int8(graph, tmp_path / "net.onnx")
    inside = [name for name in wanted if name not in graph.outputs]
    found = ran(path, {"x": x}, show=inside, optimise=optimise)
    assert found.keys() == wanted.keys()
    for name in inside:
        assert found[name].dtype == wanted[name].dtype == np.uint8
        spread = wanted[name].astype(int)
        assert spread.max() - spread.min() > 20, name  # so that there is something to compare
        away = np.abs(found[name].astype(int) - spread)
        assert away.max() <= 1 and (away > 0).mean() < 0.02, name


def test_the_outputs_of_a_file_are_within_a_step_of_the_last_scale(tmp_path):
    for make, step in ((small_network, 0.03), (tokens_network, 0.04)):
        graph = make()
        x = inputs(graph)
        write_spx(graph, tmp_path / "net.spx")
        found = ran(spx_to_onnx(tmp_path / "net.spx", tmp_path / "net.onnx"), {"x": x})
        wanted = every_value(graph, x)
        name = graph.outputs[0]
        assert found[name].shape == wanted[name].shape and len(np.unique(wanted[name])) > 15
        assert np.abs(found[name] - wanted[name]).max() <= 1.01 * step


def test_weights_keep_their_zeros_and_their_types(tmp_path):
    import onnx

    graph = small_network()
    write_onnx_int8(graph, tmp_path / "net.onnx")
    held = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(str(tmp_path / "net.onnx")).graph.initializer}
    for op in graph.ops:
        if op.kind == "conv2d_int8":
            for field in ("weight", "bias", "factor"):
                array = graph.weights[op.fields[field]]
                assert held[op.fields[field]].dtype == array.dtype and np.array_equal(held[op.fields[field]], array)


def test_layers_run_on_integers(tmp_path):
    """Of ONNX Runtime's layers those without a residual and with bytes behind them."""
    import onnx
    import onnxruntime

    path = write_onnx_int8(small_network(), tmp_path / "net.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimised.onnx"), 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(str(tmp_path / "optimised.onnx")).graph.node]
    assert kinds.count("QLinearConv") == 3 and "QGemm" in kinds


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    graph = small_network()
    graph.ops[1].fields["out_zero"] = 256
    with pytest.raises(ValueError, match="out_zero"):
        write_onnx_int8(graph, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
