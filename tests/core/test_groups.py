"""Parameter groups: every trainable parameter once, with the decay of its kind."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop
from torch.optim.lr_scheduler import ExponentialLR

from softprune.core.rule import Rule
from softprune.core.sparsify import sparsify
from softprune.methods import STR

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")


class Everything(nn.Module):
    """One of each kind of module whose parameters are not all alike."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.group_norm = nn.GroupNorm(2, 4)
        self.instance_norm = nn.InstanceNorm2d(4, affine=True)
        self.layer_norm = nn.LayerNorm((4, 8))  # a two-dimensional norm weight
        self.rms_norm = nn.RMSNorm(8)
        self.mha = nn.MultiheadAttention(8, 2)
        self.lstm = nn.LSTM(8, 8, num_layers=2, bidirectional=True)
        self.embedding = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10)
        self.head.weight = self.embedding.weight
        self.bilinear = nn.Bilinear(2, 2, 2)
        self.scale = nn.Parameter(torch.ones(3))
        self.matrix = nn.Parameter(torch.ones(3, 3))


def _ids(parameters):
    return [id(p) for p in parameters]


def _by_name(groups):
    return {group["name"]: group for group in groups}


@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight", "global"])
def test_every_trainable_parameter_is_in_exactly_one_group(granularity):
    model = Everything()
    before = _ids(model.parameters())
    sparsifier = sparsify(model, STR(granularity=granularity))
    groups = sparsifier.param_groups(weight_decay=1e-4)
    grouped = [i for group in groups for i in _ids(group["params"])]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == set(_ids(model.parameters()))
    assert set(before) < set(grouped)
    thresholds = {id(p) for n, p in model.named_parameters() if n.endswith(".0.s")}
    assert set(_ids(_by_name(groups)["threshold"]["params"])) == thresholds
    assert (len(thresholds) == 1) == (granularity == "global")


def test_kinds_are_told_by_module_and_dimension():
    model = Everything()
    groups = _by_name(sparsify(model, STR()).param_groups(weight_decay=1e-4))
    names = {id(p): n for n, p in model.named_parameters()}
    norm = {names[i] for i in _ids(groups["norm"]["params"])}
    weight = {names[i] for i in _ids(groups["weight"]["params"])}
    for module in ("bn", "group_norm", "instance_norm", "layer_norm"):
        assert {f"{module}.weight", f"{module}.bias"} <= norm
    assert "rms_norm.weight" in norm
    assert "scale" in norm
    assert {n for n in names.values() if "bias" in n} <= norm
    assert {"conv.parametrizations.weight.original", "matrix"} <= weight
    assert "mha.parametrizations.in_proj_weight.original" in weight
    assert "lstm.parametrizations.weight_hh_l1_reverse.original" in weight
    assert all(p.ndim >= 2 for p in groups["weight"]["params"])


def test_each_group_has_its_own_decay():
    sparsifier = sparsify(Everything(), STR())
    groups = _by_name(sparsifier.param_groups(weight_decay=1e-4, norm_decay=2e-4, threshold_decay=3e-4))
    assert {name: group["weight_decay"] for name, group in groups.items()} == {
        "weight": 1e-4,
        "norm": 2e-4,
        "threshold": 3e-4,
    }


def test_thresholds_decay_like_weights_and_norms_not_at_all_unless_told():
    groups = _by_name(sparsify(Everything(), STR()).param_groups(weight_decay=7e-5))
    assert groups["threshold"]["weight_decay"] == 7e-5
    assert groups["norm"]["weight_decay"] == 0.0


def test_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    sparsifier = sparsify(model, STR())
    grouped = {i for group in sparsifier.param_groups(weight_decay=1e-4) for i in _ids(group["params"])}
    assert grouped == set(_ids(p for p in model.parameters() if p.requires_grad))
    assert id(model[0].weight) not in grouped


def test_frozen_thresholds_are_left_out_and_need_no_decay():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    sparsifier = sparsify(model, STR())
    sparsifier.freeze("thresholds")
    groups = _by_name(sparsifier.param_groups(weight_decay=0.0))
    assert set(groups) == {"weight", "norm"}


def test_a_group_without_parameters_is_not_made():
    groups = _by_name(sparsify(nn.Linear(4, 4, bias=False), STR()).param_groups(weight_decay=1e-4))
    assert set(groups) == {"weight", "threshold"}


def test_tied_weights_and_their_threshold_appear_once():
    model = Everything()
    sparsifier = sparsify(model, STR())
    groups = _by_name(sparsifier.param_groups(weight_decay=1e-4))
    raw = model.embedding.parametrizations.weight.original
    s = model.embedding.parametrizations.weight[0].s
    assert model.head.parametrizations.weight.original is raw
    assert model.head.parametrizations.weight[0].s is s
    assert _ids(groups["weight"]["params"]).count(id(raw)) == 1
    assert _ids(groups["threshold"]["params"]).count(id(s)) == 1


@pytest.mark.parametrize("settings", [{"threshold_decay": 0.0}, {"weight_decay": 0.0}])
def test_a_threshold_without_decay_is_refused(settings):
    sparsifier = sparsify(nn.Linear(4, 4), STR())
    with pytest.raises(ValueError, match="never leaves s_init"):
        sparsifier.param_groups(**{"weight_decay": 1e-4, **settings})


@pytest.mark.parametrize("which", ["weight_decay", "norm_decay", "threshold_decay"])
@pytest.mark.parametrize("value", [-1e-4, math.nan, math.inf])
def test_a_decay_that_is_no_decay_is_refused_by_name(which, value):
    sparsifier = sparsify(nn.Linear(4, 4), STR())
    with pytest.raises(ValueError, match=f"{which} must be"):
        sparsifier.param_groups(**{"weight_decay": 1e-4, which: value})


def test_weight_decay_of_zero_is_fine_with_decay_for_the_thresholds():
    groups = _by_name(sparsify(nn.Linear(4, 4), STR()).param_groups(weight_decay=0.0, threshold_decay=1e-3))
    assert groups["weight"]["weight_decay"] == 0.0
    assert groups["threshold"]["weight_decay"] == 1e-3


@pytest.mark.parametrize("optimizer", [SGD, AdamW, RMSprop])
def test_the_groups_are_what_optimizers_take(optimizer):
    sparsifier = sparsify(Everything(), STR())
    built = optimizer(sparsifier.param_groups(weight_decay=1e-4, threshold_decay=1e-3), lr=0.1)
    assert [g["weight_decay"] for g in built.param_groups] == [1e-4, 0.0, 1e-3]
    again = copy.deepcopy(built.state_dict())
    built.load_state_dict(again)
    assert [g["name"] for g in built.param_groups] == ["weight", "norm", "threshold"]


# thresholds that join an optimizer built before them


def _net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def _thresholds(model):
    return [p for name, p in model.named_parameters() if name.endswith(".0.s")]


def _step(model, optimizer):
    model.zero_grad()
    model(torch.randn(16, 4)).square().mean().backward()
    optimizer.step()


def _group_with(optimizer, parameter):
    (found,) = [g for g in optimizer.param_groups if any(p is parameter for p in g["params"])]
    return found


ELEMENTWISE = [SGD, Adam, AdamW, NAdam, RAdam, RMSprop, Adagrad, Adadelta]


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_thresholds_join_the_group_of_their_weight(kind):
    model = _net()
    optimizer = kind(
        [
            {"params": model[0].parameters(), "lr": 0.1, "weight_decay": 1e-3},
            {"params": [*model[1].parameters(), *model[3].parameters()], "lr": 0.01, "weight_decay": 2e-3},
        ]
    )
    sparsifier = sparsify(model, STR(s_init=-30.0))
    sparsifier.attach(optimizer, total_steps=1000)
    for layer in (model[0], model[3]):
        transforms = layer.parametrizations.weight
        assert _group_with(optimizer, transforms[0].s) is _group_with(optimizer, transforms.original)
    assert len(optimizer.param_groups) == 2
    before = [s.item() for s in _thresholds(model)]
    _step(model, optimizer)
    assert all(s.item() > b for s, b in zip(_thresholds(model), before, strict=True))


def test_a_joined_threshold_follows_the_scheduler_that_was_there_before():
    model = _net()
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    scheduler = ExponentialLR(optimizer, gamma=0.5)
    sparsifier = sparsify(model, STR(s_init=-1000.0))  # g(s) and its slope are exactly 0: decay alone moves s
    sparsifier.attach(optimizer, total_steps=1000, scheduler=scheduler)
    expected = torch.tensor([-1000.0])
    for n in range(4):
        _step(model, optimizer)
        scheduler.step()
        expected = expected - 0.1 * 0.5**n * (0.1 * expected)
        torch.testing.assert_close(_thresholds(model)[0].detach(), expected, rtol=1e-6, atol=0)


def test_momentum_of_the_weights_survives_the_joining():
    model = _net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    _step(model, optimizer)
    raw = model[0].weight
    buffer = optimizer.state[raw]["momentum_buffer"]
    sparsify(model, STR()).attach(optimizer, total_steps=100)
    assert model[0].parametrizations.weight.original is raw
    assert optimizer.state[raw]["momentum_buffer"] is buffer


def test_a_decay_of_their_own_makes_one_group_per_learning_rate():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    rates = [torch.tensor(0.1), torch.tensor(0.1), torch.tensor(0.01)]
    groups = [{"params": m.parameters(), "lr": lr} for m, lr in zip(model, rates, strict=True)]
    optimizer = SGD(groups, weight_decay=1e-4)
    sparsify(model, STR()).attach(optimizer, total_steps=100, threshold_decay=0.5)
    own = [g for g in optimizer.param_groups if g.get("name") == "threshold"]
    assert [(float(g["lr"]), len(g["params"]), g["weight_decay"]) for g in own] == [
        (pytest.approx(0.1), 2, 0.5),
        (pytest.approx(0.01), 1, 0.5),
    ]
    assert [g["weight_decay"] for g in optimizer.param_groups[:3]] == [1e-4] * 3
    # A scheduler fills a tensor in place: the new groups must have tensors of their own.
    for group in own:
        assert all(group["lr"] is not lr for lr in rates)
    scheduler = ExponentialLR(optimizer, gamma=0.5)
    _step(model, optimizer)
    scheduler.step()
    assert [float(g["lr"]) for g in optimizer.param_groups] == pytest.approx([0.05, 0.05, 0.005, 0.05, 0.005])


def test_a_decay_equal_to_that_of_the_weights_needs_no_group():
    model = _net()
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=1e-3)
    sparsify(model, STR()).attach(optimizer, total_steps=100, threshold_decay=1e-3)
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("decay", [None, 0.5])
def test_an_optimizer_with_names_gets_the_names_of_the_thresholds(decay):
    model = _net()
    optimizer = SGD(model.named_parameters(), lr=0.1, weight_decay=1e-4)
    sparsify(model, STR()).attach(optimizer, total_steps=100, threshold_decay=decay)
    names = {id(p): name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        assert len(group["params"]) == len(group["param_names"])
        for parameter, name in zip(group["params"], group["param_names"], strict=True):
            if parameter.shape == (1,):
                assert name == names[id(parameter)]
    _step(model, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())


def test_a_shared_threshold_joins_once():
    model = _net()
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    sparsify(model, STR(granularity="global")).attach(optimizer, total_steps=100)
    assert sum(p.shape == (1,) for g in optimizer.param_groups for p in g["params"]) == 1


def test_a_subclass_with_its_parents_step_is_the_parent():
    class Named(SGD):
        pass

    model = _net()
    optimizer = Named(model.parameters(), lr=0.1, weight_decay=1e-4)
    sparsify(model, STR()).attach(optimizer, total_steps=100)
    assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


def test_rules_change_the_method_of_a_tensor_and_its_threshold_is_still_placed():
    model = _net()
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    sparsifier = sparsify(model, STR(), rules=[Rule("3", granularity="filter", s_init=-50.0)])
    sparsifier.attach(optimizer, total_steps=100)
    held = {id(p) for g in optimizer.param_groups for p in g["params"]}
    assert held == {id(p) for p in model.parameters()}
    assert sorted(p.numel() for p in _thresholds(model)) == [1, 3]
