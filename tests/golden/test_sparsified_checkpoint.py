"""A trained network goes through sparsify, measure and bake, and comes out as the formula says."""

import math

import pytest
import torch
from shared_folder import shared

from softprune.core.sparsify import sparsify
from softprune.methods import STR
from softprune.nn.catalog import build


@pytest.fixture(scope="module", params=["resnet20-12fca82f.th", "resnet56-4bfd9763.th"])
def trained(request):
    path = shared("data", "checkpoints", request.param)
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    return request.param.partition("-")[0], {key.removeprefix("module."): value for key, value in state.items()}


def dense(trained):
    name, state = trained
    model = build(name)
    model.load_state_dict(state, strict=True)
    return model.eval()


@torch.no_grad()
def test_nothing_changes_while_the_threshold_is_zero(trained):
    model, x = dense(trained), torch.randn(4, 3, 32, 32)
    expected = model(x)
    sparsifier = sparsify(model, STR(), example=x[:1])
    assert torch.equal(model(x), expected)
    # Weights that are zero already are counted as such.
    counted = {t.name: int(trained[1][t.name].count_nonzero()) / t.raw.numel() for t in sparsifier.targets}
    assert dict(sparsifier.measure()) == counted
    # The plain checkpoint also loads into the managed model.
    result = model.load_state_dict(trained[1], strict=True)
    assert not result.missing_keys and not result.unexpected_keys
    assert torch.equal(sparsifier.bake()(x), expected)
    assert all(torch.equal(value, trained[1][key]) for key, value in model.state_dict().items() if key in trained[1])


@torch.no_grad()
def test_measure_and_bake_count_the_weights_above_the_threshold(trained):
    model, x = dense(trained), torch.randn(4, 3, 32, 32)
    sparsifier = sparsify(model, STR(s_init=-4.0), example=x[:1])
    alpha = torch.sigmoid(torch.tensor(-4.0))
    assert float(alpha) == pytest.approx(1 / (1 + math.exp(4)))
    above = {t.name: int((trained[1][t.name].abs() > alpha).sum()) for t in sparsifier.targets}
    budget = sparsifier.measure()
    assert {name: round(budget[name] * trained[1][name].numel()) for name in budget} == above
    total = sum(trained[1][name].numel() for name in above)
    assert budget.overall == pytest.approx(1 - sum(above.values()) / total)
    assert 0.1 < budget.overall < 0.9
    expected = model(x)
    sparsifier.bake()
    assert torch.equal(model(x), expected)
    for name in above:
        w = trained[1][name]
        assert torch.equal(model.get_parameter(name), torch.sign(w) * torch.relu(w.abs() - alpha))
