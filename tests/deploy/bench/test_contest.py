"""A network in several processes: what comes out, and what is refused before anything starts."""

import json

import pytest
import torch

from softprune.deploy.bench import bench, engines
from softprune.deploy.bench.contest import SAME, _checked, check_target, contest, input_shapes, write_bench, write_files
from softprune.deploy.bench.engines import Job, missing, opponents
from softprune.deploy.bench.int8_files import make_int8_file
from softprune.deploy.engine.library import library
from softprune.deploy.export import export
from softprune.deploy.export.zoo import sparse_network, zoo_example

compiled = pytest.mark.skipif(library() is None, reason="needs the compiled kernels")


@compiled
def test_a_network_of_the_zoo_against_torch(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTPRUNE_CACHE", str(tmp_path))
    notes = []
    result = bench(
        "zoo:digits/uniform-80", against=["torch"], batch=2, bursts=2, seconds=0.01, size=9, progress=notes.append
    )
    assert (result["format"], result["version"], result["batch"]) == ("softprune-bench", 1, 2)
    assert result["shapes"] == [[2, 1, 9, 9]] and result["fastest other"] == "torch" and not result["skipped"]
    assert list(result["engines"]) == ["softprune", "torch"]
    for standing in result["engines"].values():
        assert 0 < standing["seconds"] <= standing["median"] and standing["bursts"] + standing["dropped"] == 2
        assert standing["difference"] < 1e-4
    ours, theirs = (result["engines"][name]["seconds"] for name in ("softprune", "torch"))
    assert result["ratios"]["torch"]["best"] == pytest.approx(theirs / ours)
    assert result["macs"] == sum(layer["macs"] for layer in result["layers"]) > 0
    assert result["share of the roofline"] > 0 and list(tmp_path.glob("tuning/*.json"))
    assert any("round 2 of 2" in note for note in notes)
    assert json.loads(write_bench(result, tmp_path / "bench.json").read_text()) == result


@compiled
def test_a_file_without_tuning_and_layers(tmp_path):
    path = export(sparse_network("digits/uniform-80"), tmp_path / "m.spx", example=zoo_example("digits/x"))
    result = bench(str(path), against=[], bursts=1, seconds=0.01, tune=False, layers=False)
    assert result["layers"] is None and result["macs"] > 0 and result["bytes"] == path.stat().st_size
    assert result["ratios"] == {} and result["fastest other"] is None and result["tuned"] is False


def test_onnx_engines_run_the_same_network(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnx and onnxruntime: pip install 'softprune[bench]'")
    path = export(sparse_network("digits/uniform-80"), tmp_path / "m.spx", example=zoo_example("digits/x"))
    result = bench(str(path), against=["onnxruntime"], bursts=1, seconds=0.01, tune=False)
    assert result["engines"]["onnxruntime"]["difference"] < 1e-4
    assert result["engines"]["onnxruntime"]["version"]


def test_an_engine_that_cannot_run_is_left_out_unless_it_was_asked_for(tmp_path):
    spx = write_files("zoo:digits/dense", tmp_path, onnx=False).spx
    broken = Job(spx, None, "no-such-network/dense", input_shapes(spx, 1), tune=False, layers=False)
    arguments = {"bursts": 1, "seconds": 0.01, "progress": lambda text: None}
    result = contest(broken, ["torch"], needed=False, **arguments)
    assert list(result["engines"]) == ["softprune"] and "no-such-network" in result["skipped"]["torch"]
    with pytest.raises(OSError, match="torch cannot run the network: ValueError"):
        contest(broken, ["torch"], needed=True, **arguments)


def test_int8_rivals_are_quantised_once_and_say_how_many_layers_ran_so(tmp_path):
    pytest.importorskip("onnxruntime.quantization", reason="needs onnx and onnxruntime: pip install 'softprune[bench]'")
    files = write_files("zoo:resnet20/uniform-80", tmp_path, onnx=True, size=8)
    job = Job(files.spx, files.onnx, None, input_shapes(files.spx, 2), 2, tune=False, layers=False)
    arguments = {"bursts": 1, "seconds": 0.01, "needed": True, "progress": lambda text: None}
    result = contest(job, ["onnxruntime-int8", "onnxruntime"], **arguments)
    made = tmp_path / "onnxruntime-int8.onnx"
    before = made.stat().st_mtime_ns
    int8, exact = (result["engines"][name] for name in ("onnxruntime-int8", "onnxruntime"))
    assert (int8["precision"], exact["precision"]) == ("int8", "float32") and exact["layers in it"] is None
    assert int8["layers in it"][0] >= 19  # the convolutions; the last layer may stay as it is
    assert 1e-4 < int8["difference"] < SAME["int8"] and exact["difference"] < 1e-4
    assert result["fastest dense int8"] == "onnxruntime-int8"
    contest(job, ["onnxruntime-int8"], **arguments)
    assert made.stat().st_mtime_ns == before and not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.slow
def test_a_network_in_int8_beside_itself_in_float32_and_dense_int8(tmp_path):
    pytest.importorskip("onnxruntime.quantization", reason="needs onnx and onnxruntime: pip install 'softprune[bench]'")
    others = ["softprune-float32", "onnxruntime-int8"]
    result = bench("zoo:digits/uniform-80", int8=True, against=others, bursts=1, seconds=0.01, tune=False)
    engines = result["engines"]
    assert [engines[name]["precision"] for name in ("softprune", *others)] == ["int8", "float32", "int8"]
    assert all(0 < engines[name]["difference"] < SAME["int8"] for name in others)
    assert result["share of the roofline"] is None and result["fastest dense int8"] == "onnxruntime-int8"
    # The same network as a file: the others get its integers.
    path = write_files("zoo:digits/uniform-80", tmp_path, onnx=False, int8=True).spx
    result = bench(path, against=["onnxruntime-int8"], bursts=1, seconds=0.01, tune=False)
    assert result["engines"]["onnxruntime-int8"]["difference"] < 0.01
    with pytest.raises(ValueError, match="onnxruntime computes in float32, and the file holds an int8 network"):
        bench(path, against=["onnxruntime"])


def test_openvino_in_lower_precision(tmp_path):
    pytest.importorskip("openvino", reason="needs openvino: pip install 'softprune[bench]'")
    nncf = pytest.importorskip("nncf", reason="needs nncf: pip install 'softprune[bench]'")
    assert nncf
    files = write_files("zoo:resnet20/uniform-80", tmp_path, onnx=True, size=8)
    job = Job(files.spx, files.onnx, None, input_shapes(files.spx, 1), tune=False, layers=False)
    arguments = {"bursts": 1, "seconds": 0.01, "progress": lambda text: None}
    result = contest(job, ["openvino-int8", "openvino-bf16"], needed=False, **arguments)
    for name, kind in (("openvino-int8", "int8"), ("openvino-bf16", "bf16")):
        if name in result["skipped"]:  # a processor without
            assert (
                "no instructions for bf16" in result["skipped"][name]
                or "computes none of its" in result["skipped"][name]
            )
            continue
        found = result["engines"][name]
        assert found["precision"] == kind and found["layers in it"][0] >= 19 and found["difference"] < SAME[kind]


def test_an_engine_that_computes_in_float32_after_all_is_no_rival_in_int8():
    assert _checked("openvino", {}) == {}
    assert _checked("openvino-int8", {"layers": [1, 9]})
    with pytest.raises(OSError, match="openvino-int8 computes none of its 9 layers in int8 here"):
        _checked("openvino-int8", {"layers": [0, 9]})


def test_a_file_that_cannot_be_quantised_leaves_nothing(tmp_path):
    pytest.importorskip("onnxruntime.quantization", reason="needs onnx and onnxruntime: pip install 'softprune[bench]'")
    (tmp_path / "network.onnx").write_bytes(b"no network")
    job = Job("m.spx", str(tmp_path / "network.onnx"), None, ((1, 4),))
    with pytest.raises(OSError, match="onnxruntime-int8 cannot quantise the network"):
        make_int8_file("onnxruntime-int8", job)
    assert [path.name for path in tmp_path.iterdir()] == ["network.onnx"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"against": ["onnxruntime-bf16"]}, "no layers in bf16 for CPUs: choose openvino-bf16"),
        ({"against": ["softprune-float32"]}, "beside a network of the zoo in int8 alone"),
        ({"int8": True, "against": []}, "int8 is for networks of the zoo"),
        ({"batch": 0}, "batch is 0, must be 1 to"),
        ({"threads": 300}, "threads is 300"),
        ({"bursts": 0}, "bursts is 0"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"against": ["tensorrt"]}, "no engine 'tensorrt'"),
        ({"against": ["torch"]}, "torch needs the module"),
        ({"size": 32}, "size 32 is for networks of the zoo"),
    ],
)
def test_what_cannot_work_is_refused_first(arguments, words):
    with pytest.raises(ValueError, match=words):
        bench("absent.spx", **arguments)


def test_absent_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(OSError, match=r"absent\.spx"):
        bench("absent.spx", against=[])
    (tmp_path / "x.spx").write_bytes(b"no file of ours")
    with pytest.raises(ValueError):
        bench(str(tmp_path / "x.spx"), against=[])
    with pytest.raises(ValueError, match="is a folder"):
        check_target(tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        check_target(tmp_path / "no" / "bench.json")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet50", "names no budget"),
        ("resnet51/dense", "no network 'resnet51'"),
        ("resnet50/str-90.24", "resnet50/str-90.23"),
        ("digits/uniform-x", "percentage of zeros"),
        ("digits/uniform-100", "percentage of zeros"),
    ],
)
def test_zoo_names_are_checked(name, words):
    with pytest.raises(ValueError, match=words):
        sparse_network(name)


def test_a_network_of_the_zoo_is_the_same_every_time():
    one, two = (sparse_network("digits/uniform-90").state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    weights = [w for name, w in one.items() if w.ndim > 1]
    assert (weights[0] != 0).all()  # the first layer stays dense
    assert float((weights[1] == 0).float().mean()) == pytest.approx(0.9, abs=1e-3)
    assert zoo_example("digits/dense", size=5).shape == (1, 1, 5, 5)
    with pytest.raises(ValueError, match="size of images is 0"):
        zoo_example("digits/dense", size=0)


def test_engines_that_are_not_installed(monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "onnx" else object())
    assert missing("openvino") == ["onnx"] and opponents(None, module=True) == ["torch"]
    assert opponents(None, module=False) == []
    with pytest.raises(ImportError, match=r"openvino needs onnx: pip install 'softprune\[bench\]'"):
        opponents(["openvino"], module=True)
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    assert opponents(None, module=False) == ["onnxruntime", "openvino"]
    assert opponents(None, module=True, int8=True) == ["openvino-int8", "onnxruntime-int8", "softprune-float32"]
    assert opponents(None, module=False, int8=True) == ["openvino-int8", "onnxruntime-int8"]
    with pytest.raises(ValueError, match="openvino computes in float32, and the file holds an int8 network"):
        opponents(["openvino"], module=False, int8=True)
    assert opponents(["torch", "torch"], module=True) == ["torch"]
