"""The plan: printable, complete, and made without touching the model."""

import torch
from by_hand import fingerprint, same_fingerprint
from torch import nn
from torch.nn.utils import parametrizations, prune

from softprune.core.rule import Rule
from softprune.core.sparsify import plan, sparsify
from softprune.methods import STR, KeepZeros
from softprune.ops import Exp


def net():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 10), nn.Linear(10, 10))
    model[3].requires_grad_(False)
    return model


def test_the_table_by_hand():
    rules = [Rule("0", granularity="filter", g=Exp(2.0))]
    assert str(plan(net(), STR(s_init=-5.0), rules=rules)).splitlines() == [
        "tensor    shape    weights  plan",
        "0.weight  8x3x3x3      216  8 thresholds, s = -5, g = Exp(k=2.0)",
        "3.weight  10x32        320  left alone: frozen (requires_grad is False)",
        "4.weight  10x10        100  one threshold, s = -5, g = Sigmoid(k=1.0)",
        "2 of 3 tensors managed, 316 of 636 weights",
    ]


def test_tied_places_and_other_methods_are_named():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert "one threshold, s = -3200, g = Sigmoid(k=1.0), used at 2 places" in str(plan(model, STR()))
    assert "KeepZeros, used at 2 places" in str(plan(model, KeepZeros()))


def test_planning_changes_nothing():
    model = net()
    before = fingerprint(model)
    decided = plan(model, STR(s_init=-2.0))
    str(decided)
    assert same_fingerprint(before, fingerprint(model))
    assert [p.transform.s.item() for p in decided.managed] == [-2.0, -2.0]


def test_skipped_weights_that_others_compute_are_listed_with_their_shape():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5), nn.Linear(5, 2), nn.Linear(2, 2))
    prune.l1_unstructured(model[0], "weight", 0.5)
    parametrizations.weight_norm(model[1])
    parametrizations.spectral_norm(model[2])
    before = fingerprint(model)
    lines = str(plan(model, STR(), skip=["0", "1", "2"])).splitlines()
    assert [line.split()[:2] for line in lines[1:-1]] == [
        ["3.weight", "2x2"],
        ["0.weight", "3x4"],
        ["1.weight", "5x3"],
        ["2.weight", "2x5"],
    ]
    assert sum("left alone: skipped" in line for line in lines) == 3
    assert same_fingerprint(before, fingerprint(model))
    sparsifier = sparsify(model, STR(s_init=-2.0), skip=["0", "1", "2"])
    x = torch.randn(2, 4)
    model.eval()
    expected = model(x)
    sparsifier.bake()
    assert torch.equal(model(x), expected)


def test_a_dtype_that_cannot_be_thresholded_is_left_alone_with_the_reason():
    model = nn.Sequential(nn.Linear(2, 2, dtype=torch.complex64), nn.Linear(2, 2))
    decided = plan(model, STR())
    assert [(p.target.name, p.reason) for p in decided.tensors if p.method is None] == [
        ("0.weight", "dtype torch.complex64")
    ]


def test_the_sparsifier_keeps_its_plan():
    model = net()
    sparsifier = sparsify(model, STR(s_init=-5.0))
    assert "2 of 3 tensors managed, 316 of 636 weights" in str(sparsifier.plan)
    assert [p.target.name for p in sparsifier.plan.managed] == [t.name for t in sparsifier.targets]
