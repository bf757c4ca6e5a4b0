"""The C program in float32 gives what PyTorch gives, for every rank, size and non-linearity."""

import ctypes
import subprocess

import numpy as np
import pytest
import torch
from c_programs import CASES, checked, classifier, needs_compiler, normalisation

from softprune.deploy.export import export_c
from softprune.deploy.export.c import CompiledC, compile_c
from softprune.deploy.export.c.float_network import plain_classifier, read_network
from softprune.nn import FastGRNNClassifier
from softprune.ops.recurrence import CURVES

pytestmark = needs_compiler


def expected(model, windows):
    with torch.no_grad():
        return model(windows).numpy()


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_model(case, tmp_path):
    model, windows = classifier(case)
    files = export_c(model, tmp_path / "c", example=windows[:1])
    found, wanted = CompiledC(files).scores(windows.numpy()), expected(model, windows)
    assert np.ptp(wanted) > 1e-3  # the windows make a difference
    assert np.abs(found - wanted).max() <= 2e-5 * max(1, np.abs(wanted).max())
    done = checked(files, tmp_path)
    assert done.returncode == 0 and "right" in done.stdout, done.stdout


@pytest.mark.parametrize("gate", CURVES)
def test_every_non_linearity(gate, tmp_path):
    update = list(CURVES)[-1 - list(CURVES).index(gate)]
    model = FastGRNNClassifier(3, 6, classes=2, gate=gate, update=update)
    windows = 2 * torch.randn(30, 4, 3)
    found = CompiledC(export_c(model, tmp_path / "c", example=windows)).scores(windows.numpy())
    assert np.abs(found - expected(model, windows)).max() <= 2e-5 * max(1, np.abs(found).max())
    # Only those that need a library ask for one.
    text = (tmp_path / "c" / "fastgrnn.c").read_text()
    assert ("math.h" in text) == bool({gate, update} & {"sigmoid", "tanh"})


@pytest.mark.parametrize("kind", ["features", "steps"])
def test_raw_values_are_normalised(kind, tmp_path):
    model, windows = classifier("whole")
    mean, deviation = normalisation(kind, windows)
    files = export_c(model, tmp_path / "c", example=windows, normalisation=(mean, deviation))
    raw = windows * deviation + mean
    found, wanted = CompiledC(files).scores(raw.numpy()), expected(model, windows)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
    assert np.abs(CompiledC(files).scores(windows.numpy()) - wanted).max() > 0.01
    assert checked(files, tmp_path).returncode == 0


def test_sample_by_sample_is_the_same_as_the_window(tmp_path):
    model, windows = classifier("only-w")
    files = export_c(model, tmp_path / "c", example=windows, normalisation=normalisation("steps", windows))
    library = ctypes.CDLL(str(compile_c([files.source], tmp_path / "p.so", "-shared", "-fPIC")))
    state, scores = np.full(files.state_bytes // 4, 7, np.int32), np.empty(2, np.float32)
    for window, wanted in zip(windows.numpy()[:3], CompiledC(files).scores(windows.numpy()[:3]), strict=True):
        library.fastgrnn_start(ctypes.c_void_p(state.ctypes.data))
        for sample in window:
            library.fastgrnn_step(ctypes.c_void_p(state.ctypes.data), ctypes.c_void_p(sample.ctypes.data))
        library.fastgrnn_scores(ctypes.c_void_p(state.ctypes.data), ctypes.c_void_p(scores.ctypes.data))
        assert scores.tolist() == wanted.tolist()
        assert library.fastgrnn_best(ctypes.c_void_p(scores.ctypes.data)) == scores.argmax()


def test_what_the_exporter_counts_is_what_the_compiler_takes(tmp_path):
    for case in ("har2", "whole", "single"):
        model, windows = classifier(case)
        for int8 in (False, True):
            files = export_c(model, tmp_path / "c", example=windows, int8=int8, name="it")
            (tmp_path / "size.c").write_text(
                f'#include <stdio.h>\n#include "{files.header}"\n'
                'int main(void) { printf("%d", (int)sizeof(it_state)); return 0; }\n'
            )
            program = compile_c([tmp_path / "size.c"], tmp_path / "size")
            said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
            assert int(said) == files.state_bytes, (case, int8)


def test_matrices_are_stored_as_small_as_they_can_be(tmp_path):
    model, windows = classifier("har2")
    network = read_network(plain_classifier(model))
    assert network.w.down is None and network.w.up.size == 720  # smaller whole
    assert network.u.up.size + network.u.down.size == 1280
    weights = 720 + 1280 + 2 * 80 + 2 * 80 + 2
    assert export_c(model, tmp_path / "c", example=windows).constant_bytes == 4 * weights
    learned = read_network(plain_classifier(classifier("learned")[0]))
    assert learned.w.down.shape == (3, 6) and learned.u.down.shape == (5, 11)  # every second direction is dead


def test_a_wrong_vector_is_noticed(tmp_path):
    for int8 in (False, True):
        model, windows = classifier("whole")
        files = export_c(model, tmp_path / "c", example=windows, int8=int8)
        text = files.main.read_text()
        head, tail = text.split("expected[3] = {\n    ")
        first = tail.split(",")[0]
        wrong = str(int(first) + 1) if int8 else f"{float(first[:-1]) + 1e-3:.9g}f"
        files.main.write_text(head + "expected[3] = {\n    " + wrong + tail[len(first) :])
        done = checked(files, tmp_path)
        assert done.returncode == 1 and "WRONG" in done.stdout


def test_a_wrong_weight_is_noticed(tmp_path):
    model, windows = classifier("whole")
    files = export_c(model, tmp_path / "c", example=windows)
    head, tail = files.source.read_text().split("u_rows[169] = {\n    ")
    files.source.write_text(head + "u_rows[169] = {\n    9.0f" + tail[len(tail.split(",")[0]) :])
    assert checked(files, tmp_path).returncode == 1


@pytest.mark.parametrize("int8", [False, True])
def test_no_undefined_behaviour(int8, tmp_path):
    flags = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    try:
        program = compile_c([tmp_path / "empty.c"], tmp_path / "empty", *flags)
    except RuntimeError as error:
        pytest.skip(f"the compiler has no sanitizers: {error}")
    if subprocess.run([program], check=False, capture_output=True).returncode:
        pytest.skip("programs with sanitizers do not run here")
    for case, kind in (("learned", "steps"), ("only-w", "none"), ("relu-gate", "features")):
        model, windows = classifier(case)
        pair = normalisation(kind, windows)
        files = export_c(model, tmp_path / case, example=windows, int8=int8, normalisation=pair)
        done = checked(files, tmp_path, *flags)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_source_is_plain_c99(tmp_path):
    model, windows = classifier("learned")
    for int8 in (False, True):
        files = export_c(model, tmp_path / "c", example=windows, int8=int8)
        compile_c([files.source], tmp_path / "o.o", "-c", "-Wconversion", "-Wshadow")
        text = files.source.read_text() + files.header.read_text()
        assert "malloc" not in text and "stdio" not in text
