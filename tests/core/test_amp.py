"""Loss scaling and autocast: scaled gradients, skipped steps, thresholds in full precision."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, AdamW

from softprune.core.sparsify import sparsify
from softprune.methods import STR

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")

SCALE = 1024.0  # a power of two: scaling and unscaling are exact
KINDS = [
    pytest.param(SGD, {"momentum": 0.9}, id="SGD"),
    pytest.param(SGD, {"momentum": 0.9, "foreach": True}, id="foreach SGD"),
    pytest.param(SGD, {"momentum": 0.9, "fused": True}, id="fused SGD"),
    pytest.param(AdamW, {}, id="AdamW"),
    pytest.param(AdamW, {"fused": True}, id="fused AdamW"),
]


def _net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def _built(model, kind, settings, granularity="tensor"):
    sparsifier = sparsify(model, STR(s_init=-3.0, granularity=granularity))
    optimizer = kind(sparsifier.param_groups(weight_decay=0.01, threshold_decay=0.1), lr=0.01, **settings)
    return sparsifier, sparsifier.attach(optimizer, total_steps=100)


def _scaler(**settings):
    return GradScaler("cpu", init_scale=SCALE, **{"growth_interval": 10**6, **settings})


def _batch():
    return torch.randn(16, 6), torch.randint(3, (16,))


def _reference(model, x, y):
    """P = <dL/dS, sign(w) 1[S != 0]> by the definition, on a network that holds S as plain weights."""
    plain = copy.deepcopy(model)
    expected = {}
    weights = {}
    for index in (0, 2):
        effective = model[index].weight.detach().clone().requires_grad_()
        weights[f"{index}.weight"] = effective
        weights[f"{index}.bias"] = plain[index].bias
    logits = F.linear(
        F.relu(F.linear(x, weights["0.weight"], weights["0.bias"])), weights["2.weight"], weights["2.bias"]
    )
    F.cross_entropy(logits, y).backward()
    for name in ("0.weight", "2.weight"):
        expected[name] = float((weights[name].grad * weights[name].detach().sign()).sum())
    return expected


def _told(sparsifier):
    return {d.name: d.P for d in sparsifier.diagnose()}


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_loss_scaling_changes_nothing(kind, settings):
    scaled, plain = _net(), _net()
    plain.load_state_dict(scaled.state_dict())
    with_scale, optimizer = _built(scaled, kind, settings)
    without, reference = _built(plain, kind, settings)
    scaler = _scaler()
    for _ in range(5):
        x, y = _batch()
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(scaled(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        reference.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        reference.step()
    assert scaler.get_scale() == SCALE
    assert with_scale.step == without.step == 5
    for a, b in zip(scaled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("granularity", ["tensor", "filter"])
@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_the_diagnosis_is_free_of_the_loss_scale_at_any_time(kind, settings, granularity):
    model = _net()
    sparsifier, optimizer = _built(model, kind, settings, granularity)
    scaler = _scaler()
    expected = None
    for _ in range(3):
        x, y = _batch()
        before = expected
        expected = _reference(model, x, y)
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if before is not None:  # these gradients are scaled, and no step has used them yet
            assert _told(sparsifier) == pytest.approx(before, rel=1e-4)
        scaler.step(optimizer)
        assert _told(sparsifier) == pytest.approx(expected, rel=1e-4)
        scaler.update()
        assert _told(sparsifier) == pytest.approx(expected, rel=1e-4)
        optimizer.zero_grad()
        assert _told(sparsifier) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_gradients_that_were_unscaled_for_clipping_are_not_unscaled_again(kind, settings):
    model = _net()
    sparsifier, optimizer = _built(model, kind, settings)
    scaler = _scaler()
    x, y = _batch()
    expected = _reference(model, x, y)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    scaler.step(optimizer)
    assert _told(sparsifier) == pytest.approx(expected, rel=1e-4)


def test_without_a_scaler_the_diagnosis_is_that_of_the_last_step():
    model = _net()
    sparsifier, optimizer = _built(model, SGD, {})
    assert all(math.isnan(p) for p in _told(sparsifier).values())
    x, y = _batch()
    expected = _reference(model, x, y)
    F.cross_entropy(model(x), y).backward()
    assert _told(sparsifier) == pytest.approx(expected, rel=1e-4)
    optimizer.step()
    assert _told(sparsifier) == pytest.approx(expected, rel=1e-4)
    (found,) = [d for d in sparsifier.diagnose() if d.name == "0.weight"]
    s = -3.0
    brake = -expected["0.weight"] * math.exp(s) / (1 + math.exp(s)) ** 2
    assert found.balance == pytest.approx(0.1 * 3.0 / brake if brake > 0 else math.inf, rel=1e-3)


def test_a_frozen_threshold_has_no_gradient_to_tell_of():
    model = _net()
    sparsifier, optimizer = _built(model, SGD, {})
    for _ in range(2):
        x, y = _batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        told = _told(sparsifier)
        assert all(math.isnan(p) for p in told.values()) == (sparsifier.frozen == "thresholds")
        sparsifier.freeze("thresholds")


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_step_that_overflows_is_neither_made_nor_counted(kind, settings):
    model = _net()
    sparsifier, optimizer = _built(model, kind, settings)
    scaler = _scaler()
    x, y = _batch()
    for n, infinite in enumerate([False, True, False, True, True, False]):
        optimizer.zero_grad()
        before = [p.detach().clone() for p in model.parameters()]
        steps, told = sparsifier.step, _told(sparsifier)
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if infinite:
            model[2].bias.grad.fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
        moved = [not torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True)]
        assert all(moved) is not infinite
        assert any(moved) is not infinite
        assert sparsifier.step == steps + (not infinite), n
        if infinite:
            assert _told(sparsifier) == told
    assert sparsifier.step == 3
    assert scaler.get_scale() == SCALE / 8


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("overflowing", [0, 1])
def test_one_of_two_optimizers_overflowing_loses_no_step(fused, overflowing):
    model = _net()
    sparsifier = sparsify(model, STR(s_init=-3.0))
    weights, *rest = sparsifier.param_groups(weight_decay=0.01)
    pair = SGD([weights], lr=0.01, fused=fused), AdamW(rest, lr=0.01, fused=fused)
    sparsifier.attach(*pair, total_steps=100)
    scaler = _scaler()
    x, y = _batch()
    for infinite in [False, True, False, False]:
        for optimizer in pair:
            optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if infinite:
            pair[overflowing].param_groups[0]["params"][0].grad.fill_(math.inf)
        for optimizer in pair:
            scaler.step(optimizer)
        scaler.update()
    assert sparsifier.step == 4


@pytest.mark.parametrize("fused", [False, True])
def test_two_optimizers_are_diagnosed_with_the_scale_of_the_one_that_holds_s(fused):
    model = _net()
    sparsifier = sparsify(model, STR(s_init=-3.0))
    weights, *rest = sparsifier.param_groups(weight_decay=0.01)
    pair = SGD([weights], lr=0.01), AdamW(rest, lr=0.01, fused=fused)
    sparsifier.attach(*pair, total_steps=100)
    scaler = _scaler()
    x, y = _batch()
    expected = _reference(model, x, y)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    for optimizer in pair:
        scaler.step(optimizer)
    assert _told(sparsifier) == pytest.approx(expected, rel=1e-4)


def test_autocast_keeps_weights_thresholds_and_gradients_in_float32():
    model = _net()
    sparsifier, optimizer = _built(model, SGD, {"momentum": 0.9})
    s = model[0].parametrizations.weight[0].s
    before = s.item()
    for _ in range(3):
        x, y = _batch()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
            loss = F.cross_entropy(out, y)
        loss.backward()
        assert out.dtype == torch.bfloat16
        assert model[0].weight.dtype == torch.float32
        assert s.grad.dtype == s.dtype == torch.float32
        optimizer.step()
    assert s.item() > before
    assert sparsifier.step == 3


def test_a_model_in_half_precision_has_thresholds_in_float32_that_move():
    model = _net().bfloat16()
    sparsifier = sparsify(model, STR(s_init=-3200.0))
    optimizer = SGD(sparsifier.param_groups(weight_decay=1e-3), lr=0.01)
    sparsifier.attach(optimizer, total_steps=100)
    s = model[0].parametrizations.weight[0].s
    expected = torch.tensor([-3200.0])
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(16, 6).bfloat16()), torch.randint(3, (16,))).backward()
        optimizer.step()
        expected = expected - 0.01 * (1e-3 * expected)
    assert s.dtype == torch.float32
    assert s.item() > -3200.0
    torch.testing.assert_close(s.detach(), expected, rtol=1e-6, atol=0)
    assert model[0].weight.dtype == torch.bfloat16
