"""The C program in integers is its simulation bit for bit, and the simulation is near the model."""

import ctypes
from itertools import cycle

import numpy as np
import pytest
import torch
from c_programs import CASES, checked, classifier, needs_compiler, normalisation
from torch import nn

from softprune.deploy.export import export_c
from softprune.deploy.export.c import CompiledC, compile_c
from softprune.deploy.export.c.float_network import plain_classifier, read_normalisation
from softprune.deploy.export.c.integer_network import CURVE_BITS, SUM_BITS, curve, curve_bits, multiplier, quantised
from softprune.nn import FastGRNNClassifier
from softprune.ops.recurrence import CURVES


def integers_of(model, windows, pair=None):
    found = read_normalisation(pair, steps=windows.shape[1], features=windows.shape[2])
    return quantised(plain_classifier(model), windows, normaliser=found)


@needs_compiler
@pytest.mark.parametrize(("case", "kind"), [*zip(CASES, cycle(("none", "steps", "features"))), ("whole", "features")])
def test_bit_for_bit_the_simulation(case, kind, tmp_path):
    model, windows = classifier(case)
    pair = normalisation(kind, windows)
    files = export_c(model, tmp_path / "c", example=windows[:20], int8=True, normalisation=pair)
    # Also values far outside of what the ranges were measured on, and such that are none.
    tried = 30 * windows.numpy()
    tried[0, :, 0], tried[1, 0], tried[2, -1] = np.nan, np.inf, -np.inf
    tried[20:] /= 30
    wanted = integers_of(model, windows[:20], pair).scores(tried)
    assert len(np.unique(wanted)) > 5
    assert np.array_equal(CompiledC(files).scores(tried), wanted)
    done = checked(files, tmp_path)
    assert done.returncode == 0 and "largest difference 0, allowed 0: right" in done.stdout


@needs_compiler
def test_a_device_without_floats_gives_whole_numbers(tmp_path):
    model, windows = classifier("har2")
    files = export_c(model, tmp_path / "c", example=windows, int8=True)
    integers = integers_of(model, windows)
    library = ctypes.CDLL(str(compile_c([files.source], tmp_path / "p.so", "-shared", "-fPIC")))
    state, scores = np.full(files.state_bytes // 2, 7, np.int16), np.empty(2, np.int32)
    library.fastgrnn_start(ctypes.c_void_p(state.ctypes.data))
    for sample in integers.quantise(windows.numpy()[:1])[0].astype(np.int16):
        library.fastgrnn_advance(ctypes.c_void_p(state.ctypes.data), ctypes.c_void_p(sample.ctypes.data))
    library.fastgrnn_scores(ctypes.c_void_p(state.ctypes.data), ctypes.c_void_p(scores.ctypes.data))
    assert scores.tolist() == integers.scores(windows.numpy()[:1])[0].tolist()


@pytest.mark.parametrize("case", [case for case in CASES if case != "long"])
def test_scores_are_near_those_of_the_model(case):
    model, windows = classifier(case)
    integers = integers_of(model, windows)
    with torch.no_grad():
        wanted = model(windows).numpy()
    found = integers.scores(windows.numpy()) * integers.score_scale
    assert np.abs(found - wanted).mean() <= 0.02 * np.abs(wanted).max()


def test_weights_are_within_half_a_step_and_zeros_stay():
    model, windows = classifier("whole")
    with torch.no_grad():
        model.rnn.cell.u.weight[torch.rand(13, 13) < 0.7] = 0
    integers = integers_of(model, windows)
    weight = model.rnn.cell.u.weight.detach().double().numpy()
    found = integers.u.up.weights
    assert np.abs(found).max() == 127 and (found[weight == 0] == 0).all()
    step = np.abs(weight).max() / 127
    assert np.abs(found * step - weight).max() <= step / 2 + 1e-12


def test_factors_of_unequal_size_lose_nothing():
    """Directions may be scaled in one factor and back in the other: the integers must not depend on that."""
    model, windows = classifier("only-w")
    before = integers_of(model, windows).scores(windows.numpy())
    with torch.no_grad():
        model.rnn.cell.w.up.mul_(torch.tensor([1024.0, 1 / 4096]))
        model.rnn.cell.w.down.div_(torch.tensor([[1024.0], [1 / 4096]]))
    assert np.array_equal(integers_of(model, windows).scores(windows.numpy()), before)


def test_sums_stay_within_32_bits_whatever_comes():
    model = FastGRNNClassifier(700, 3, classes=2)
    nn.init.constant_(model.rnn.cell.w.weight, 1.0)
    nn.init.constant_(model.fc.bias, 1e6)
    integers = integers_of(model, torch.ones(1, 2, 700))
    for rows in (integers.w.up.weights, integers.u.up.weights, integers.head):
        assert np.abs(rows).sum(1).max() * 32767 < 1 << 30
    assert np.abs(integers.head_bias).max() <= 1 << 30
    assert (integers.scores(np.full((1, 2, 700), 1e9, np.float32)) * integers.score_scale > 9e5).all()


@pytest.mark.parametrize("name", CURVES)
def test_curves_in_integers(name):
    x = np.arange(-16 << SUM_BITS, (16 << SUM_BITS) + 1)
    wanted = CURVES[name](torch.from_numpy(x / 2**SUM_BITS)).numpy()
    found = curve(name, x) / 2 ** curve_bits(name)
    if name in ("sigmoid", "tanh"):
        assert np.abs(found - wanted).max() <= 2.5 * 2**-CURVE_BITS
        assert (np.diff(found) >= 0).all()
    else:
        assert np.array_equal(found, wanted)


def test_multipliers_have_31_bits():
    for scale in (1.0, 0.999999, 3e-9, 1e-12, 12345.678, 2.0**30):
        number, shift = multiplier(scale)
        assert abs(number / 2.0**shift / scale - 1) < 1e-6 and number < 1 << 31
    assert multiplier(0.0) == (0, 0) and multiplier(1e-30) == (0, 62)
    with pytest.raises(ValueError, match="too large for integers of 16 bits"):
        multiplier(1e12)


def test_values_that_are_too_large_are_refused(tmp_path):
    model, windows = classifier("whole")
    with pytest.raises(ValueError, match=r"an input reaches 2\.\d+e\+05 on the example, which is too large"):
        export_c(model, tmp_path / "c", example=windows.clamp(1, 1) * 2e5 + 1e4, int8=True)
    assert not (tmp_path / "c").exists()
