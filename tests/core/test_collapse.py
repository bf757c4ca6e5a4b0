"""Collapse is reported by name at the step where it shows, once, and never on a healthy model."""

import warnings

import pytest
import torch
from torch import nn

from softprune.core.collapse import SILENT_STEPS, CollapseWarning, find_collapse
from softprune.core.rule import Rule
from softprune.core.sparsify import sparsify
from softprune.methods import STR
from softprune.ops import Exp, Sigmoid, Softplus, straight_through

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def attached(model, method, *, lr=0.05, threshold_decay=1e-3, momentum=0.9):
    sparsifier = sparsify(model, method)
    groups = sparsifier.param_groups(weight_decay=1e-4, threshold_decay=threshold_decay)
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum)
    sparsifier.attach(optimizer, total_steps=1000)
    return sparsifier, optimizer


def one_step(model, optimizer, x=None, y=None):
    """One step of training; returns the texts of the collapse warnings that it gave."""
    x = torch.randn(16, 6) if x is None else x
    y = torch.randint(0, 3, (16,)) if y is None else y
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    return [str(w.message) for w in caught if issubclass(w.category, CollapseWarning)]


def cut_in_the_middle():
    """Layer 0 lives on channels 0-3, layer 2 listens to channels 4-7 only."""
    model = mlp()
    with torch.no_grad():
        model[0].weight.copy_(torch.linspace(0.5, 1.0, 48).view(8, 6))
        model[0].weight[4:] = 0.01
        model[0].bias.zero_()
        model[2].weight.fill_(0.01)
        model[2].weight[:, 4:] = torch.linspace(-1.0, 1.0, 32).view(8, 4)
        model[2].bias.fill_(0.5)
    return model


# dead tensors


@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight"])
@pytest.mark.parametrize("s_dead", [3.0, 60.0])
def test_a_tensor_that_dies_is_reported_at_that_step_and_once(granularity, s_dead):
    model = mlp()
    _sparsifier, optimizer = attached(model, STR(s_init=-6.0, granularity=granularity))
    for _ in range(3):
        assert one_step(model, optimizer) == []
    with torch.no_grad():
        model[2].parametrizations.weight[0].s.fill_(s_dead)
    found = one_step(model, optimizer)
    assert len(found) == 1
    assert found[0].startswith("dead tensor: 2.weight: all 64 weights are zero; keep some with STR(min_keep=")
    # The layer before it has no path to the loss any more; that is another thing, reported once as well.
    later = [text for _ in range(6) for text in one_step(model, optimizer)]
    assert [text.split(": ")[:2] for text in later] == [["cut path", "0.weight"]]


def test_too_much_decay_is_reported_when_the_last_weight_has_gone():
    model = mlp()
    sparsifier, optimizer = attached(model, STR(s_init=-6.0), threshold_decay=2.0, momentum=0.0)
    dead_at, reported = {}, []
    for step in range(1, 101):
        for target in sparsifier.targets:
            if not target.effective.any():
                dead_at.setdefault(target.name, step)
        reported += [(*text.split(": ")[:2], step) for text in one_step(model, optimizer)]
    first = min(dead_at, key=dead_at.get)
    assert set(dead_at) == {"0.weight", "2.weight", "4.weight"}
    assert ("dead tensor", first, dead_at[first]) in reported
    # A tensor that was reported as cut off before it died is looked at again with all others at step 100.
    cut = {name for kind, name, step in reported if kind == "cut path" and step < dead_at[name]}
    expected = {(name, 100 if name in cut else dead_at[name]) for name in dead_at}
    assert sorted((name, step) for kind, name, step in reported if kind == "dead tensor") == sorted(expected)


def test_a_shared_threshold_is_looked_at_every_hundred_steps():
    model = mlp()
    with torch.no_grad():
        model[2].weight.mul_(1e-3)  # thin, so the common threshold kills it first
    _sparsifier, optimizer = attached(model, STR(s_init=-6.0, granularity="global"), lr=1e-4)
    found = [one_step(model, optimizer) for _ in range(100)]
    assert not any(found[:99])
    assert [text.split(": ")[:2] for text in found[99]] == [["dead tensor", "2.weight"]]


# dead channels


def test_dead_channels_are_counted_by_output():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ConvTranspose2d(4, 6, 3, groups=2), nn.Linear(3, 3))
    with torch.no_grad():
        for layer in model:
            layer.weight.fill_(1.0)
        model[0].weight[1] = 0.01
        model[0].weight[3] = 0.01
        # [in, out/groups, ...]: output 1 of group 1 is channel 3 + 1 = 4
        model[1].weight[2:, 1] = 0.01
        model[2].weight[:, 0] = 0.01  # an input that nobody reads is no dead output
    sparsifier = sparsify(model, STR(s_init=-2.0))
    assert [(c.name, c.kind, c.detail) for c in find_collapse(sparsifier.targets)] == [
        ("0.weight", "dead channels", "2 of 4 output channels have no weight left (1, 3)"),
        ("1.weight", "dead channels", "1 of 6 output channels have no weight left (4)"),
    ]
    with pytest.warns(CollapseWarning) as caught:
        found = sparsifier.check()
    assert len(caught) == 2 and [c.name for c in found] == ["0.weight", "1.weight"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sparsifier.check() == found  # found again, but not warned about again


def test_a_token_without_weights_is_no_dead_channel():
    model = nn.Embedding(5, 3)
    with torch.no_grad():
        model.weight[2] = 0.0
    assert sparsify(model, STR(s_init=-6.0)).check() == []


def test_many_dead_channels_are_cut_short():
    model = nn.Linear(3, 9)
    with torch.no_grad():
        model.weight.fill_(0.01)[8] = 1.0
    (found,) = find_collapse(sparsify(model, STR(s_init=-2.0)).targets)
    assert found.detail == "8 of 9 output channels have no weight left (0, 1, 2, 3, 4, ...)"


# cut paths


@pytest.mark.parametrize("example", [torch.ones(1, 6), (torch.ones(1, 6),), {"input": torch.ones(1, 6)}])
def test_check_finds_a_cut_path(example):
    model = cut_in_the_middle()
    model[2].eval()
    sparsifier = sparsify(model, STR(s_init=-2.0))
    with pytest.warns(CollapseWarning) as caught:
        found = sparsifier.check(example)
    assert [str(w.message) for w in caught] == [str(c) for c in found]
    assert str(found[1]).startswith("cut path: 0.weight: it has weights, but no gradient reaches them")
    # Layer 2 reads channels that are always 0; layer 4 still has the bias of layer 2 to work with.
    assert [c.name for c in found if c.kind == "cut path"] == ["0.weight", "2.weight"]
    assert [c.name for c in found if c.kind == "dead channels"] == ["0.weight"]
    assert model.training and not model[2].training and model[4].training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("backward", [None, straight_through])
def test_training_finds_a_cut_path(backward):
    model = cut_in_the_middle()
    method = STR(s_init=-2.0) if backward is None else STR(s_init=-2.0, backward=backward)
    _sparsifier, optimizer = attached(model, method, lr=1e-6)
    x, y = torch.rand(16, 6), torch.randint(0, 3, (16,))
    found = [one_step(model, optimizer, x, y) for _ in range(SILENT_STEPS + 3)]
    names = [[text.split(": ")[:2] for text in texts] for texts in found]
    expected = [["cut path", "0.weight"], ["cut path", "2.weight"]]
    assert names == [[]] * (SILENT_STEPS - 1) + [expected] + [[]] * 3


def test_check_without_a_tensor_in_the_output():
    class Silent(nn.Linear):
        def forward(self, x):
            return object()

    sparsifier = sparsify(Silent(3, 3), STR(s_init=-6.0))
    with pytest.raises(ValueError, match="the output of ParametrizedSilent, a object, has no floating point tensor"):
        sparsifier.check(torch.ones(1, 3))


def test_check_passes_by_what_is_frozen_or_unused():
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "frozen": nn.Linear(3, 3), "unused": nn.Linear(3, 3)})
    model["frozen"].requires_grad_(False)
    model.forward = lambda x: {"out": [model["frozen"](model["used"](x))], "step": torch.tensor(1)}
    sparsifier = sparsify(model, STR(s_init=-6.0), rules=[Rule("frozen.weight", skip=False)])
    assert len(sparsifier.targets) == 3
    assert sparsifier.check(torch.ones(1, 3)) == []


# no false alarm


@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight", "global"])
def test_a_healthy_model_gives_no_warning(granularity):
    model = mlp()
    sparsifier, optimizer = attached(model, STR(s_init=-3.0, granularity=granularity), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sparsifier.check(torch.randn(4, 6)) == []
        optimizer.step()  # no backward yet
        for _ in range(110):
            assert one_step(model, optimizer) == []
    assert 0 < sparsifier.measure()["2.weight"] < 1


@pytest.mark.parametrize("g", [Sigmoid(), Exp(), Softplus()], ids=str)
@pytest.mark.parametrize("s", [-103.0, -100.0, -95.0, -88.5, -80.0, -40.0])
def test_a_gradient_that_underflows_is_no_cut_path(g, s):
    """exp(-103) is 1e-45, above 0, but dL/ds = -g'(s) P is 0 for any small P."""
    model = mlp()
    sparsifier, optimizer = attached(model, STR(s_init=s, g=g))
    with torch.no_grad():
        model[4].bias.copy_(torch.tensor([20.0, 0.0, 0.0]))  # a confident network: its gradients are small
    y = torch.zeros(16, dtype=torch.long)
    found = [one_step(model, optimizer, y=y) for _ in range(6)]
    assert not any(found)
    if g == Exp() and s == -103.0:
        assert all(t.transform.alpha > 0 and not t.transform.s.grad.any() for t in sparsifier.targets)
        assert all(t.raw.grad.any() for t in sparsifier.targets)


def test_terms_that_cancel_are_no_cut_path():
    # dL/dS = [x, -x] on two positive weights: P is exactly 0, the weights are not cut off.
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    sparsifier, optimizer = attached(model, STR(s_init=-2.0), lr=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CollapseWarning)
        for _ in range(6):
            optimizer.zero_grad()
            out = model(torch.ones(1, 1))
            (out[0, 0] - out[0, 1]).backward()
            assert sparsifier.targets[0].transform.s.grad.item() == 0.0
            optimizer.step()


def test_a_loss_of_zero_is_no_cut_path():
    model = mlp()
    sparsifier, optimizer = attached(model, STR(s_init=-3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CollapseWarning)
        for _ in range(6):
            optimizer.zero_grad()
            torch.relu(model(torch.randn(4, 6)).sum() - 1e6).backward()  # a margin that is never touched
            assert all(not t.raw.grad.any() for t in sparsifier.targets)
            optimizer.step()


def test_a_part_that_is_not_used_is_no_cut_path():
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    sparsifier, optimizer = attached(model, STR(s_init=-2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CollapseWarning)
        for _ in range(6):
            optimizer.zero_grad()
            model[0](torch.randn(4, 3)).square().sum().backward()
            optimizer.step()
    assert sparsifier.targets[1].raw.grad is None


# the floor


@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight", "global"])
@pytest.mark.parametrize("g", [Sigmoid(), Exp(), Softplus()], ids=str)
def test_min_keep_holds_in_an_aggressive_run(granularity, g):
    model = mlp()
    sparsifier, optimizer = attached(
        model, STR(s_init=-4.0, g=g, granularity=granularity, min_keep=4), threshold_decay=2.0
    )
    for _ in range(60):
        for target in sparsifier.targets:
            assert int(target.effective.count_nonzero()) >= 4, target.name
            assert bool(torch.isfinite(target.transform.s).all())
        one_step(model, optimizer)
    densities = sparsifier.measure()
    assert all(densities[name] < 0.5 for name in densities)  # it was an aggressive run


def test_min_keep_of_single_tensors_and_beyond_their_size():
    model = mlp()
    sparsifier = sparsify(model, STR(s_init=-4.0), rules=[Rule("4", min_keep=1000), Rule("2", min_keep=2)])
    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=1e-4, threshold_decay=2.0), lr=0.05)
    sparsifier.attach(optimizer, total_steps=60)
    for _ in range(60):
        one_step(model, optimizer)
    kept = {t.name: int(t.effective.count_nonzero()) for t in sparsifier.targets}
    assert kept["0.weight"] == 0 and kept["2.weight"] >= 2 and kept["4.weight"] == 24
