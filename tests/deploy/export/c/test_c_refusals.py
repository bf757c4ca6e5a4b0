"""What cannot be written as C is refused by name before anything is written, and files come whole and the same."""

import locale

import numpy as np
import pytest
import torch
from c_programs import classifier
from torch import nn
from torch.nn.utils import parametrizations

import softprune
from softprune.deploy.export import export_c
from softprune.deploy.export.c import writing
from softprune.nn import FastGRNN, FastGRNNClassifier, LowRankLinear

EXAMPLE = torch.zeros(1, 8, 4)


def small(**options):
    return FastGRNNClassifier(4, 6, classes=2, **options)


def broken(path, value):
    model = small()
    with torch.no_grad():
        model.get_parameter(path).view(-1)[-1] = value
    return model


class OtherClassifier(FastGRNNClassifier):
    def forward(self, x):
        return -super().forward(x)


def with_part(path, part):
    model = small()
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, part)
    return model


REFUSED = {
    "sequential": (lambda: nn.Sequential(small()), "the model is a Sequential: only softprune.nn.FastGRNNClassifier"),
    "no head": (lambda: FastGRNN(4, 6), "the model is a FastGRNN: "),
    "subclass": (lambda: OtherClassifier(4, 6, classes=2), "the model is a OtherClassifier: "),
    "head": (lambda: with_part("fc", nn.Sequential(nn.Linear(6, 2))), "fc is a Sequential: "),
    "matrix": (lambda: with_part("rnn.cell.u", nn.Conv1d(6, 6, 1)), r"rnn\.cell\.u is a Conv1d: "),
    "extra": (lambda: with_part("dropout", nn.Dropout()), "dropout is a Dropout: "),
    "size": (lambda: with_part("fc", nn.Linear(7, 2)), r"fc is Linear\(in_features=7.*does not fit"),
    "no bias": (lambda: with_part("fc", nn.Linear(6, 2, bias=False)), r"fc is Linear\(.*does not fit"),
    "bias": (lambda: with_part("rnn.cell.w", LowRankLinear(4, 6, rank=1)), r"rnn\.cell\.w is LowRankLinear\(.*not fit"),
    "nan": (lambda: broken("rnn.cell.u.weight", float("nan")), r"rnn\.cell\.u\.weight has 1 NaN or infinite"),
    "infinity": (lambda: broken("fc.bias", float("inf")), r"fc\.bias has 1 NaN or infinite values of 2"),
    "huge": (lambda: small().double().requires_grad_(False), None),
    "parametrized": (lambda: with_part("fc", parametrizations.weight_norm(nn.Linear(6, 2))), "fc is parametrized"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_models_are_refused(what, tmp_path):
    make, message = REFUSED[what]
    model = make()
    if message is None:
        model.fc.weight[0, 0] = 1e300  # finite, but not in float32
        message = r"fc\.weight has values that are not finite in float32"
    for int8 in (False, True):
        with pytest.raises(ValueError, match=message):
            export_c(model, tmp_path / "c", example=EXAMPLE, int8=int8)
    assert list(tmp_path.iterdir()) == []


def test_managed_models_are_refused_until_they_are_baked(tmp_path):
    model = small()
    sparsifier = softprune.sparsify(model, softprune.STR(s_init=-3))
    with pytest.raises(ValueError, match=r"still managed by a Sparsifier .*softprune\.bake"):
        export_c(model, tmp_path / "c", example=EXAMPLE)
    assert list(tmp_path.iterdir()) == []
    assert export_c(sparsifier.bake(), tmp_path / "c", example=EXAMPLE).source.is_file()


@pytest.mark.parametrize("name", ["", "2fast", "fast grnn", "fast-grnn", "größe", "_x", "int", "../x", "a" * 21])
def test_names_that_c_does_not_take(name, tmp_path):
    with pytest.raises(ValueError, match=r"is not a C identifier|take 20 at most"):
        export_c(small(), tmp_path / "c", example=EXAMPLE, name=name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.zeros(8, 4), r"must be float32 windows .* got torch.float32 \(8, 4\)"),
        (torch.zeros(1, 8, 4).double(), r"got torch.float64"),
        (np.zeros((1, 8, 4), np.float32), "got ndarray"),
        (torch.zeros(1, 8, 5), r"has shape \(1, 8, 5\); the model takes at least one window \[1, steps, 4\]"),
        (torch.zeros(0, 8, 4), "at least one window"),
        (torch.zeros(1, 0, 4), "at least one window"),
        (torch.full((1, 8, 4), torch.nan), "not finite"),
    ],
)
def test_examples_that_do_not_fit(example, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_c(small(), tmp_path / "c", example=example)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mean", "deviation", "message"),
    [
        (torch.zeros(5), torch.ones(5), r"shape \(5,\); mean and deviation must both be \(4,\) or \(8, 4\)"),
        (torch.zeros(4), torch.ones(8, 4), r"the deviation of the normalisation has shape \(8, 4\)"),
        (torch.zeros(4), torch.zeros(4), "positive, finite deviations"),
        (torch.zeros(4), -torch.ones(4), "positive, finite deviations"),
        (torch.full((4,), torch.nan), torch.ones(4), "finite means"),
    ],
)
def test_normalisations_that_do_not_fit(mean, deviation, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_c(small(), tmp_path / "c", example=EXAMPLE, normalisation=(mean, deviation))
    assert list(tmp_path.iterdir()) == []


def test_scores_that_overflow_are_refused(tmp_path):
    model = small(gate="relu", update="relu")
    with pytest.raises(ValueError, match="the scores of the example are not finite"):
        export_c(model, tmp_path / "c", example=torch.full((1, 200, 4), 1e20))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("int8", [False, True])
def test_the_same_model_gives_the_same_bytes_and_stays_as_it_was(int8, tmp_path):
    model, windows = classifier("learned")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    first = export_c(model.train(), tmp_path / "a", example=windows, int8=int8)
    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        for comma in ("de_DE.UTF-8", "fr_FR.UTF-8"):
            try:
                locale.setlocale(locale.LC_NUMERIC, comma)
            except locale.Error:
                continue
        second = export_c(model.double(), tmp_path / "b", example=windows, int8=int8)
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)
    for name in ("header", "source", "main"):
        assert getattr(first, name).read_bytes() == getattr(second, name).read_bytes()
    assert model.training and all(torch.equal(state[k], v.float()) for k, v in model.state_dict().items())


def test_files_come_together_or_not_at_all(tmp_path, monkeypatch):
    export_c(small(), tmp_path / "c", example=EXAMPLE)
    old = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    assert set(old) == {"fastgrnn.h", "fastgrnn.c", "fastgrnn_main.c"}

    def full(descriptor):
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(writing.os, "fsync", full)
        for place in ("c", "new"):
            with pytest.raises(OSError, match="no space left"):
                export_c(small(), tmp_path / place, example=EXAMPLE)
    assert {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()} == old
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    (tmp_path / "c" / "notes.txt").write_text("mine")
    export_c(small(), tmp_path / "c", example=EXAMPLE, name="fastgrnn")
    assert (tmp_path / "c" / "notes.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="is a file: name a folder"):
        export_c(small(), tmp_path / "c" / "notes.txt", example=EXAMPLE)
