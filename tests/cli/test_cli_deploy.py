"""Commands that hand networks on: export, bench, and the end of the demo."""

import json
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from softprune import load
from softprune.cli import app
from softprune.cli import deploy as speed
from softprune.cli.deploy import print_bench
from softprune.deploy.engine.library import library
from softprune.deploy.export import from_pretrained, load_compressed
from softprune.train.load_run import plain_network

FORMATS = {
    "spx": "model.spx",
    "safetensors": "model.safetensors",
    "compressed": "model.compressed.safetensors",
    "program": "model.pt2",
    "hub": "hub",
}


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "160"})


def run(*words):
    result = invoke(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def fail(*words):
    result = invoke(*words)
    assert isinstance(result.exception, ValueError | OSError | ImportError), (result.output, result.exception)
    return str(result.exception)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A short run."""
    pytest.importorskip("sklearn", reason="needs the digits of scikit-learn")
    place = tmp_path_factory.mktemp("runs") / "run"
    run("train", "digits/str-goal", "epochs=1", "--out", place, "--quiet")
    return place


@pytest.fixture
def again(folder, tmp_path):
    """A copy of it that may be changed."""
    return shutil.copytree(folder, tmp_path / "run")


def test_a_run_leaves_in_every_format(again):
    network = plain_network(again)
    x = torch.randn(2, *network.example_shape[1:])
    with torch.no_grad():
        expected = network.module(x)
    assert not torch.allclose(expected[0], expected[1])  # something of the network is left
    for name, file in FORMATS.items():
        text = run("export", again, "--format", name)
        weights = sum(p.numel() for p in network.module.parameters())
        kept = sum(int((p != 0).sum()) for p in network.module.parameters())
        assert f"wrote {again / file}: " in text and f"{kept:,} of {weights:,} weights are not zero" in text
    np.testing.assert_allclose(load(again / "model.spx", tune=False)(x.numpy()), expected, atol=1e-4)
    assert (again / "model.spx").stat().st_size < (again / "model.safetensors").stat().st_size
    state = network.module.state_dict()
    assert all(torch.equal(state[name], t) for name, t in load_compressed(again / FORMATS["compressed"]).items())
    assert torch.equal(from_pretrained(again / "hub").eval()(x), expected)
    assert torch.allclose(torch.export.load(again / "model.pt2").module()(x), expected, atol=1e-5)


def test_a_run_leaves_as_onnx(again):
    pytest.importorskip("onnx", reason="needs onnx: pip install 'softprune[onnx]'")
    for name in ("onnx", "onnx-sparse"):
        run("export", again, "-f", name, "-o", again / f"{name}.onnx")
    assert (again / "onnx-sparse.onnx").stat().st_size < (again / "onnx.onnx").stat().st_size


def test_baked_weights_leave_too(again, tmp_path):
    run("bake", again, "--out", tmp_path / "w.safetensors")
    assert "wrote" in run("export", tmp_path / "w.safetensors", "--model", "digits")
    run("export", again, "--out", tmp_path / "same.spx")
    assert (tmp_path / "model.spx").read_bytes() == (tmp_path / "same.spx").read_bytes()
    assert "name their network with --model" in fail("export", tmp_path / "w.safetensors", "-o", tmp_path / "x.spx")
    assert "--best chooses a checkpoint" in fail(
        "export", tmp_path / "w.safetensors", "--model", "digits", "--best", "-o", tmp_path / "x.spx"
    )
    assert "tensor" in fail("export", tmp_path / "w.safetensors", "--model", "resnet20", "-o", tmp_path / "x.spx")


def test_what_export_refuses(again, tmp_path):
    (again / "model.spx").write_text("mine")
    assert "give --force to replace it" in fail("export", again)
    assert (again / "model.spx").read_text() == "mine"
    assert "wrote" in run("export", again, "--force")
    (again / "hub").mkdir()
    (again / "hub" / "notes.txt").write_text("mine")
    assert "give --force" in fail("export", again, "-f", "hub")
    assert "there is no format 'gguf': choose from spx" in fail("export", again, "-f", "gguf")
    assert "must end in .spx" in fail("export", again, "-o", tmp_path / "x.bin")
    assert "there is no folder" in fail("export", again, "-o", tmp_path / "no" / "x.spx")
    (tmp_path / "d.spx").mkdir()
    assert "is a folder" in fail("export", again, "-o", tmp_path / "d.spx")
    assert "is a file" in fail("export", again, "-f", "hub", "-o", again / "config.yaml")
    assert "leave out --model" in fail("export", again, "-o", tmp_path / "x.spx", "--model", "digits")
    assert "is not a run folder" in fail("export", tmp_path)
    assert "name a run folder, or a file" in fail("export", tmp_path / "absent")
    for checkpoint in (again / "checkpoints").iterdir():
        checkpoint.unlink()
    assert "has no whole checkpoint yet" in fail("export", again, "-o", tmp_path / "x.spx")
    assert not (tmp_path / "x.spx").exists()


@pytest.mark.skipif(library() is None, reason="needs the compiled kernels")
def test_bench_prints_and_writes(again):
    run("export", again)
    short = ("--against", "none", "--bursts", 1, "--seconds", 0.01, "--no-tune")
    result = invoke("bench", again / "model.spx", *short, "--out", again / "latency.json")
    assert result.exit_code == 0 and "timing: round 1 of 1" in result.stderr
    assert "best ms" in result.stdout and "roofline" in result.stdout and "multiply-adds on nonzeros" in result.stdout
    assert "timing" not in result.stdout
    layers = json.loads((again / "latency.json").read_text())["layers"]
    assert all(layer["path"] in result.stdout for layer in layers)
    assert "GFLOP/s" not in run("bench", again / "model.spx", *short, "--no-layers")


def test_what_bench_refuses(tmp_path):
    assert "there is no folder" in fail("bench", "zoo:digits/dense", "--out", tmp_path / "no" / "b.json")
    assert "no engine 'tflite'" in fail("bench", "zoo:digits/dense", "--against", "torch, tflite")
    assert "torch needs the module" in fail("bench", "m.spx", "--against", "torch")
    assert "batch is 0" in fail("bench", "zoo:digits/dense", "--batch", 0)


def measured(**changes):
    standing = {"seconds": 0.004, "median": 0.005, "bursts": 3, "dropped": 1, "version": "1", "difference": 0.0}
    standing |= {"precision": "float32", "layers in it": None}
    ours = {**standing, "seconds": 0.001}
    return {
        "network": "zoo:x",
        "processor": "p",
        "level": "avx2",
        "batch": 1,
        "threads": 1,
        "engines": {"softprune": ours, "onnxruntime": standing},
        "ratios": {"onnxruntime": {"best": 4.0, "low": 3.9, "high": 4.1, "median": 4.0}},
        "skipped": {},
        "macs": 1000,
        "share of the roofline": 0.6,
        "layers": None,
        **changes,
    }


def test_bench_says_what_is_odd(capsys):
    print_bench(measured(skipped={"openvino": "it broke"}))
    text = capsys.readouterr().out
    assert "4.00 x" in text and "3.90 to 4.10" in text and "openvino was left out: it broke" in text
    other = {**measured()["engines"]["onnxruntime"], "difference": 0.5}
    engines = {"softprune": {**other, "difference": 0.0}, "torch": other}
    print_bench({**measured(), "engines": engines, "ratios": {}, "share of the roofline": None})
    text = capsys.readouterr().out
    assert "result of torch differs" in text and "compiled kernels are missing" in text


def test_bench_says_what_was_computed_in_int8(capsys):
    engines = measured()["engines"]
    int8 = {"precision": "int8", "layers in it": [20, 22], "difference": 0.02}
    engines = {
        "softprune": {**engines["softprune"], "precision": "int8"},
        "openvino-int8": {**engines["onnxruntime"], **int8},
    }
    print_bench(measured(engines=engines, ratios={}, **{"share of the roofline": None}))
    text = " ".join(capsys.readouterr().out.split())
    assert "1,000 multiply-adds on nonzeros per sample, of 8-bit integers" in text
    assert "differs from softprune's by 0.02 of its largest value" in text and "do not trust" not in text
    assert "openvino-int8 runs 20 of its 22 layers in int8" in text
    engines["openvino-int8"]["difference"] = 0.9
    print_bench(measured(engines=engines, ratios={}))
    assert "result of openvino-int8 differs from softprune's: do not trust its time" in capsys.readouterr().out


def test_the_demo_prints_ratios(again, monkeypatch, capsys):
    monkeypatch.setattr(speed, "_measure", lambda spx, note: (measured(), measured()))
    monkeypatch.setattr("softprune.deploy.engine.library.library", lambda: object())
    speed.show_speed(again)
    text = capsys.readouterr().out
    assert "this network on one thread: 1 ms, dense in onnxruntime 4 ms: 4.00 times as fast" in text
    assert "90.23 % zeros" in text and "softprune bench zoo:resnet50/str-90.23" in text
    assert (again / "model.spx").is_file() and json.loads((again / "latency.json").read_text())["macs"] == 1000


def test_the_demo_ends_well_without_kernels(again, monkeypatch, capsys):
    monkeypatch.setattr("softprune.deploy.engine.library.library", lambda: None)
    speed.show_speed(again)
    assert "no times: the engine's kernels are not compiled here" in capsys.readouterr().out
    assert not (again / "latency.json").exists()


def test_the_demo_times_nothing_after_a_stop(again, capsys):
    (again / "result.json").unlink()
    speed.show_speed(again)
    assert capsys.readouterr().out == "" and not (again / "model.spx").exists()


def test_the_demo_ends_well_if_timing_fails(again, monkeypatch, capsys):
    def broken(spx, note):
        raise OSError("the process of onnxruntime ended with exit code -9")

    monkeypatch.setattr(speed, "_measure", broken)
    monkeypatch.setattr("softprune.deploy.engine.library.library", lambda: object())
    speed.show_speed(again)
    assert "no times: the process of onnxruntime ended" in capsys.readouterr().out
