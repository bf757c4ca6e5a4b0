"""Leaving: the plain model back, from the original, from copies and from averages, with nothing left behind."""

import copy

import pytest
import torch
from by_hand import shrunk
from torch import nn
from torch.optim.swa_utils import AveragedModel

from softprune.core.bake import bake, managed_targets, remove
from softprune.core.sparsify import sparsify
from softprune.methods import STR

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")

ALPHA = torch.sigmoid(torch.tensor([-2.0]))


def net():
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.LSTM(6, 4, num_layers=2))


def run(model, x):
    return model(x)[0]


def trained(steps=5):
    model = net()
    sparsifier = sparsify(model, STR(s_init=-2.0))
    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    sparsifier.attach(optimizer, total_steps=20)
    for _ in range(steps):
        optimizer.zero_grad()
        run(model, torch.randn(8, 5)).square().sum().backward()
        optimizer.step()
    return model, sparsifier, optimizer


def test_after_training_the_baked_model_computes_the_same():
    plain_keys, plain_types = list(net().state_dict()), [type(m) for m in net().modules()]
    model, sparsifier, _ = trained()
    model.eval()
    x, densities = torch.randn(8, 5), dict(sparsifier.measure())
    assert all(0 < d < 1 for d in densities.values())
    expected = run(model, x)
    raws = {t.name: t.raw for t in sparsifier.targets}
    assert sparsifier.bake() is model
    assert torch.equal(run(model, x), expected)
    assert list(model.state_dict()) == plain_keys and [type(m) for m in model.modules()] == plain_types
    assert all(model.get_parameter(name) is raw for name, raw in raws.items())
    counted = {name: int(raw.count_nonzero()) / raw.numel() for name, raw in raws.items()}
    assert counted == densities


def test_remove_gives_the_weights_as_trained():
    model, sparsifier, _ = trained()
    raws = {t.name: t.raw.detach().clone() for t in sparsifier.targets}
    assert sparsifier.remove() is model
    assert all(torch.equal(model.get_parameter(name), raw) for name, raw in raws.items())
    assert all(type(a) is type(b) for a, b in zip(model.modules(), net().modules(), strict=True))


def test_an_optimizer_state_loads_by_position_after_bake():
    """States know parameters by their position, which must be that of the untouched class."""
    model, sparsifier, _ = trained()
    order = [name for name, _ in net().named_parameters()]
    sparsifier.bake()
    assert [name for name, _ in model.named_parameters()] == order
    fresh = net()
    optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)
    run(fresh, torch.randn(8, 5)).sum().backward()
    optimizer.step()
    other = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    other.load_state_dict(optimizer.state_dict())
    assert all(other.state[p]["momentum_buffer"].shape == p.shape for p in model.parameters())


def test_training_goes_on_dense_after_bake():
    model, sparsifier, optimizer = trained()
    sparsifier.bake()
    steps, zeros = sparsifier.step, model[0].weight == 0
    optimizer.zero_grad()
    run(model, torch.randn(8, 5)).square().sum().backward()
    optimizer.step()
    assert sparsifier.step == steps  # the hooks are gone
    assert bool(model[0].weight[zeros].any())


@pytest.mark.parametrize("call", ["bake", "remove", "measure", "diagnose", "check"])
def test_a_baked_model_is_finished(call):
    _, sparsifier, _ = trained()
    sparsifier.bake()
    with pytest.raises(ValueError, match="baked or removed already: call sparsify again"):
        getattr(sparsifier, call)()


def test_a_baked_model_can_be_sparsified_again():
    model, sparsifier, _ = trained()
    sparsifier.bake()
    before = model[0].weight.detach().clone()
    again = sparsify(model, STR())
    assert torch.equal(model[0].weight, before) and again.measure()["0.weight"] == int(before.count_nonzero()) / 30


@pytest.mark.parametrize("leave", [bake, remove])
def test_a_copy_is_left_on_its_own(leave):
    model, _, _ = trained()
    model.eval()
    twin, x = copy.deepcopy(model), torch.randn(8, 5)
    expected, state = run(model, x), {k: v.clone() for k, v in model.state_dict().items()}
    raw = {t.name: t.raw.detach().clone() for t in managed_targets(twin)}
    s = {t.name: t.transform.s.detach().clone() for t in managed_targets(twin)}
    leave(twin)
    for name, w in raw.items():
        assert torch.equal(twin.get_parameter(name), shrunk(w, torch.sigmoid(s[name])) if leave is bake else w)
    assert torch.equal(run(model, x), expected)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_an_average_of_managed_models_can_be_baked():
    model, sparsifier, optimizer = trained()
    average = AveragedModel(model)
    for _ in range(3):
        optimizer.zero_grad()
        run(model, torch.randn(8, 5)).square().sum().backward()
        optimizer.step()
        average.update_parameters(model)
    average.eval()
    x = torch.randn(8, 5)
    expected = average(x)[0]
    names = [t.name for t in managed_targets(average)]
    assert names == [f"module.{t.name}" for t in sparsifier.targets]
    bake(average)
    assert torch.equal(average(x)[0], expected)
    assert type(average.module[0]) is nn.Linear and sparsifier.targets[0].managed


def test_gradients_and_flags_survive():
    model, sparsifier, _optimizer = trained()
    grads = {t.name: t.raw.grad.clone() for t in sparsifier.targets}
    sparsifier.bake()
    assert all(torch.equal(model.get_parameter(name).grad, g) for name, g in grads.items())
    assert all(p.requires_grad for p in model.parameters()) and model.training


def test_a_threshold_of_zero_writes_nothing():
    model = nn.Linear(3, 3)
    sparsifier = sparsify(model, STR())
    version = sparsifier.targets[0].raw._version
    before = sparsifier.targets[0].raw.detach().clone()
    sparsifier.bake()
    assert model.weight._version == version and torch.equal(model.weight, before)
