"""Where transforms sit: tied, nested, frozen, copied, cast and moved modules, and what checkpoints find there."""

import copy

import pytest
import torch
import torch.nn.functional as F
from by_hand import shrunk
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from softprune.core.bake import bake, managed_targets, remove
from softprune.core.rule import Rule
from softprune.core.sparsify import plan, sparsify
from softprune.methods import STR, Method
from softprune.methods.transforms import Transform
from softprune.ops import Sigmoid

ALPHA = torch.sigmoid(torch.tensor([-2.0]))


class Tied(nn.Module):
    """A language model's head that reads the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x))


class Doubled(nn.Module):
    def forward(self, original):
        return original * 2

    def right_inverse(self, wanted):
        return wanted / 2


class Custom(nn.Module):
    """Two parameters that no layer type knows, and a layer."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(4, 4))
        self.gain = nn.Parameter(torch.randn(4))
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(x @ self.mix * self.gain)


def mlp():
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


# tied weights, nesting, use in two places


def test_tied_weights_have_one_threshold_and_sum_their_gradients():
    model = Tied()
    w = model.embedding.weight.detach().clone().requires_grad_()
    s = torch.tensor([-2.0], requires_grad=True)
    x = torch.tensor([[0, 3, 3, 5]])
    effective = shrunk(w, torch.sigmoid(s))
    F.linear(F.embedding(x, effective), effective).square().sum().backward()

    sparsifier = sparsify(model, STR(s_init=-2.0))
    (target,) = sparsifier.targets
    assert target.name == "embedding.weight" and len(target.sites) == 2
    assert torch.equal(model.embedding.weight, model.head.weight)
    assert len(list(model.parameters())) == 2  # the raw weight and its one threshold
    model(x).square().sum().backward()
    torch.testing.assert_close(target.raw.grad, w.grad)
    torch.testing.assert_close(target.transform.s.grad, s.grad)
    assert sparsifier.measure().densities.keys() == {"embedding.weight"}


@pytest.mark.parametrize("leave", ["bake", "remove"])
def test_tied_weights_are_tied_afterwards(leave):
    model = Tied()
    parameter = model.embedding.weight
    raw = parameter.detach().clone()
    sparsifier = sparsify(model, STR(s_init=-2.0))
    getattr(sparsifier, leave)()
    assert model.embedding.weight is parameter and model.head.weight is parameter
    assert torch.equal(parameter, shrunk(raw, ALPHA) if leave == "bake" else raw)


def test_a_copy_of_tied_weights_is_tied_and_apart():
    model = Tied()
    sparsify(model, STR(s_init=-2.0))
    twin = copy.deepcopy(model)
    (target,) = managed_targets(twin)
    assert len(target.sites) == 2
    assert target.raw is not managed_targets(model)[0].raw
    lists = [m.parametrizations["weight"] for m in (twin.embedding, twin.head)]
    assert lists[0].original is lists[1].original and lists[0][0] is lists[1][0]
    bake(twin)
    assert twin.embedding.weight is twin.head.weight
    assert parametrize.is_parametrized(model.head) and torch.equal(model.head.weight, twin.head.weight)


def test_two_linears_that_share_a_parameter():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    raw = model[0].weight.detach().clone()
    x = torch.randn(2, 4)
    sparsifier = sparsify(model, STR(s_init=-2.0))
    used = shrunk(raw, ALPHA)
    assert torch.equal(model(x), F.linear(F.linear(x, used, model[0].bias), used, model[1].bias))
    sparsifier.freeze("support")
    assert model[0].parametrizations.weight[0] is model[1].parametrizations.weight[0]
    sparsifier.bake()
    assert model[0].weight is model[1].weight and torch.equal(model[0].weight, used)


def test_a_module_used_twice_is_managed_once():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    sparsifier = sparsify(model, STR(s_init=-2.0))
    assert [t.name for t in sparsifier.targets] == ["0.weight"]
    sparsifier.bake()
    assert model[0] is model[2] and type(model[2]) is nn.Linear


def test_nested_modules_have_full_names():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), mlp()), nn.Linear(3, 3))
    names = [t.name for t in sparsify(model, STR()).targets]
    assert names == ["0.0.weight", "0.1.0.weight", "0.1.2.weight", "1.weight"]


def test_a_frozen_part_is_left_alone_with_the_reason():
    model = nn.Sequential(mlp(), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    planned = plan(model, STR())
    assert [p.reason for p in planned.tensors] == ["frozen (requires_grad is False)"] * 2 + [""]
    assert "0.0.weight" in str(planned) and "left alone: frozen" in str(planned)
    sparsifier = sparsify(model, STR())
    assert [t.name for t in sparsifier.targets] == ["1.weight"]
    assert type(model[0][0]) is nn.Linear and model[0][0].weight is model[0][0]._parameters["weight"]


def test_a_rule_takes_in_parameters_of_own_modules():
    model, x = Custom(), torch.randn(3, 4)
    mix, gain = model.mix.detach().clone(), model.gain.detach().clone()
    sparsifier = sparsify(model, STR(s_init=-2.0), rules=[Rule("mix", skip=False), Rule("gain", skip=False)])
    assert [t.name for t in sparsifier.targets] == ["mix", "gain", "out.weight"]
    hidden = x @ shrunk(mix, ALPHA) * shrunk(gain, ALPHA)
    assert torch.equal(model(x), F.linear(hidden, model.out.weight, model.out.bias))
    model(x).sum().backward()
    assert all(t.raw.grad.any() and t.transform.s.grad.any() for t in sparsifier.targets)
    sparsifier.bake()
    assert type(model) is Custom and list(dict(model.named_parameters())) == ["mix", "gain", "out.weight", "out.bias"]


# dtypes, layouts, devices


def test_channels_last_stays():
    model = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    raw = model.weight.detach().clone(memory_format=torch.preserve_format)
    sparsifier = sparsify(model, STR(s_init=-2.0))
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x), F.conv2d(x, shrunk(raw, ALPHA), model.bias))
    sparsifier.bake()
    assert model.weight.is_contiguous(memory_format=torch.channels_last) and not model.weight.is_contiguous()


def test_double_weights_have_double_thresholds():
    model = mlp().double()
    raw = model[0].weight.detach().clone()
    sparsifier = sparsify(model, STR(s_init=-2.0))
    assert all(t.transform.s.dtype is torch.float64 for t in sparsifier.targets)
    assert torch.equal(model[0].weight, shrunk(raw, torch.sigmoid(torch.tensor([-2.0], dtype=torch.float64))))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", ["before", "half", "to", "type", "to_like"])
def test_thresholds_stay_wide_in_half_precision(dtype, cast):
    model = mlp()
    if cast == "before":
        model = model.to(dtype)
    sparsifier = sparsify(model, STR(s_init=-3200.5))
    thresholds = [t.transform.s for t in sparsifier.targets]
    if cast == "half":
        model.half() if dtype is torch.float16 else model.bfloat16()
    elif cast == "to":
        model.to("cpu", dtype)
    elif cast == "type":
        model.type(dtype)
    elif cast == "to_like":
        model.to(torch.zeros(1, dtype=dtype))
    for target, s in zip(sparsifier.targets, thresholds, strict=True):
        assert target.raw.dtype is dtype and target.effective.dtype is dtype
        assert target.transform.s is s and s.dtype is torch.float32 and s.item() == -3200.5
    model(torch.randn(2, 5, dtype=dtype)).sum().backward()
    assert all(s.grad.dtype is torch.float32 for s in thresholds)


def test_casting_to_double_and_back():
    model = mlp()
    sparsifier = sparsify(model, STR(s_init=-2.0))
    model.double()
    assert all(t.transform.s.dtype is torch.float64 and t.raw.dtype is torch.float64 for t in sparsifier.targets)
    model.half()
    assert all(t.transform.s.dtype is torch.float64 and t.effective.dtype is torch.float16 for t in sparsifier.targets)
    model.float()
    assert all(t.transform.s.dtype is torch.float32 for t in sparsifier.targets)


def test_half_precision_weights_shrink_by_the_wide_threshold():
    # bfloat16 has steps of 2**-8 between 0.5 and 1: 0.5 - 0.1192 is rounded once, at the end.
    model = nn.Linear(3, 1, bias=False).bfloat16()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, -0.75, 0.1]]))
    sparsify(model, STR(s_init=-2.0))
    expected = torch.tensor([[0.5 - float(ALPHA), -(0.75 - float(ALPHA)), 0.0]]).bfloat16()
    assert torch.equal(model.weight, expected)


def test_autocast_keeps_weights_and_gradients_in_float32():
    model, x = mlp(), torch.randn(4, 5)
    sparsifier = sparsify(model, STR(s_init=-2.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(t.effective.dtype is torch.float32 for t in sparsifier.targets)
        out = model(x)
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out.float(), model(x), rtol=0.05, atol=0.05)
    out.float().square().sum().backward()
    for target in sparsifier.targets:
        assert target.raw.grad.dtype is torch.float32 and bool(target.raw.grad.any())
        assert target.transform.s.grad.dtype is torch.float32 and bool(target.transform.s.grad.any())


def test_a_model_without_memory_can_be_planned_and_sparsified():
    with torch.device("meta"):
        model = mlp()
    text = str(plan(model, STR(s_init=-2.0, granularity="filter")))
    assert "0.weight" in text and "4x5" in text and "4 thresholds" in text
    sparsifier = sparsify(model, STR(s_init=-2.0))
    assert model(torch.empty(2, 5, device="meta")).shape == (2, 3)
    full = mlp()
    weights = {key: value.clone() for key, value in full.state_dict().items()}
    sparsify(full, STR(s_init=-2.0))
    model.to_empty(device="cpu")
    model.load_state_dict(full.state_dict())
    assert all(not t.raw.is_meta and not t.transform.s.is_meta for t in sparsifier.targets)
    assert torch.equal(model[0].weight, shrunk(weights["0.weight"], ALPHA))


def test_a_scale_from_the_weights_needs_weights():
    with torch.device("meta"):
        model = mlp()
    with pytest.raises(ValueError, match=r"0\.weight is on the meta device.*k=\"auto\""):
        sparsify(model, STR(g=Sigmoid("auto")))
    assert type(model[0]) is nn.Linear


# checkpoints and assignment


@pytest.mark.parametrize("build", [mlp, Tied, lambda: nn.LSTM(3, 4, num_layers=2), lambda: nn.MultiheadAttention(4, 2)])
def test_a_plain_checkpoint_loads_and_leaves_the_thresholds(build):
    source, model = build(), build()
    sparsifier = sparsify(model, STR(s_init=-2.0))
    with torch.no_grad():
        for i, target in enumerate(sparsifier.targets):
            target.transform.s.fill_(-5.0 - i)
    given = source.state_dict()
    keys = list(given)
    result = model.load_state_dict(given, strict=True)
    assert not result.missing_keys and not result.unexpected_keys and list(given) == keys
    for i, target in enumerate(sparsifier.targets):
        assert torch.equal(target.raw, given[target.name])
        assert target.transform.s.item() == -5.0 - i
    for name, p in source.named_parameters():
        if name not in {t.name for t in sparsifier.targets}:
            assert torch.equal(model.get_parameter(name), p)


def test_a_plain_checkpoint_with_a_wrong_shape_or_key_is_refused():
    model = mlp()
    sparsify(model, STR())
    state = mlp().state_dict()
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({**state, "0.weight": torch.zeros(2, 2)})
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({k: v for k, v in state.items() if k != "2.weight"})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict({**state, "3.weight": torch.zeros(1)})


def test_a_sparsified_checkpoint_loads_into_a_sparsified_model():
    a, b, x = mlp(), mlp(), torch.randn(2, 5)
    sparsify(a, STR(s_init=-2.0))
    sparsify(b, STR(s_init=-9.0))
    result = b.load_state_dict(a.state_dict(), strict=True)
    assert not result.missing_keys and torch.equal(a(x), b(x))
    assert all(t.transform.s.item() == -2.0 for t in managed_targets(b))


def test_a_baked_checkpoint_loads_into_the_untouched_class():
    model, x = mlp(), torch.randn(2, 5)
    sparsifier = sparsify(model, STR(s_init=-2.0))
    expected = model(x)
    sparsifier.bake()
    fresh = mlp()
    fresh.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(fresh(x), expected)


def test_assignment_sets_what_the_network_reads():
    model = nn.Linear(3, 2)
    sparsifier = sparsify(model, STR(s_init=-2.0))
    raw = sparsifier.targets[0].raw
    wanted = torch.tensor([[0.5, -0.25, 0.0], [0.001, 2.0, -1.0]])
    model.weight = wanted
    # raw = wanted + alpha is rounded once, to the 24 bits of a float of its size
    torch.testing.assert_close(model.weight, wanted, rtol=2**-23, atol=2**-26)
    assert sparsifier.targets[0].raw is raw
    torch.testing.assert_close(raw.detach(), wanted + wanted.sign() * ALPHA)
    with pytest.raises(ValueError, match=r"weight has shape \(2, 3\).*\(3,\)"):
        model.weight = torch.zeros(3)


# torch's own functions on managed modules


def test_torch_removes_one_parametrization_without_harm_to_siblings_and_copies():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    sparsify(model, STR(s_init=-2.0))
    assert type(model[0]) is type(model[1])
    twin, x = copy.deepcopy(model), torch.randn(2, 4)
    expected = model(x)
    raw = model[0].parametrizations.weight.original
    parametrize.remove_parametrizations(model[0], "weight", leave_parametrized=True)
    assert type(model[0]) is nn.Linear and model[0].weight is raw
    assert torch.equal(model(x), expected) and torch.equal(twin(x), expected)
    assert [t.name for t in managed_targets(model)] == ["1.weight"]
    bake(twin)
    assert torch.equal(twin(x), expected)


def test_torch_removes_one_of_several_parametrizations_of_a_module():
    model, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    sparsify(model, STR(s_init=-2.0))
    expected = model(x)[0]
    parametrize.remove_parametrizations(model, "weight_hh_l0", leave_parametrized=True)
    assert isinstance(model.weight_hh_l0, nn.Parameter)
    assert torch.equal(model(x)[0], expected)
    assert torch.equal(copy.deepcopy(model)(x)[0], expected)
    assert [t.name for t in managed_targets(model)] == ["weight_ih_l0"]
    bake(model)
    assert type(model) is nn.LSTM and torch.equal(model(x)[0], expected)


def test_a_parametrization_of_torch_beside_ours_is_left_in_place():
    model, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    parametrizations.orthogonal(model, "weight_hh_l0")
    sparsifier = sparsify(model, STR(s_init=-2.0), skip=["weight_hh_l0"])
    assert [t.name for t in sparsifier.targets] == ["weight_ih_l0"]
    expected = model(x)[0]
    sparsifier.bake()
    assert torch.equal(model(x)[0], expected)
    assert parametrize.is_parametrized(model, "weight_hh_l0") and isinstance(model.weight_ih_l0, nn.Parameter)
    q = model.weight_hh_l0.detach()
    torch.testing.assert_close(q.T @ q, torch.eye(4), rtol=0, atol=1e-5)
    parametrize.remove_parametrizations(model, "weight_hh_l0")
    assert type(model) is nn.LSTM


def test_torch_registers_a_parametrization_on_one_module_without_harm_to_its_siblings():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    sparsify(model, STR(s_init=-2.0))
    bias = model[0].bias.detach().clone()
    parametrize.register_parametrization(model[0], "bias", Doubled())
    torch.testing.assert_close(model[0].bias, bias)
    assert model[1].bias is model[1]._parameters["bias"]
    assert not isinstance(getattr(type(model[1]), "bias", None), property)  # which the compiler could not look behind
    model[0].bias = torch.ones(4)
    assert torch.equal(model[0].bias, torch.ones(4))
    assert torch.equal(model[0].parametrizations.bias.original, torch.full((4,), 0.5))
    assert [t.name for t in managed_targets(model)] == ["0.weight", "1.weight"]
    remove(model)
    assert type(model[1]) is nn.Linear and torch.equal(model[0].bias, torch.ones(4))


def test_cached_computes_each_weight_once_for_every_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    sparsify(model, STR(s_init=-2.0))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].parametrizations.weight.original.mul_(2.0)
    fresh = [m.weight.detach().clone() for m in (*model, *twin)]
    with parametrize.cached():
        assert model[0].weight is model[0].weight
        seen = [m.weight for m in (*model, *twin)]
        assert all(torch.equal(a, b) for a, b in zip(seen, fresh, strict=True))
        assert len({id(w) for w in seen}) == 4
    assert model[0].weight is not model[0].weight


def test_deepcopy_then_bake_of_one_leaves_the_other_managed():
    model, x = mlp(), torch.randn(2, 5)
    sparsifier = sparsify(model, STR(s_init=-2.0))
    twin, expected = copy.deepcopy(model), model(x)
    sparsifier.bake()
    assert [t.name for t in managed_targets(twin)] == ["0.weight", "2.weight"]
    assert torch.equal(twin(x), expected)
    twin(x).sum().backward()
    assert all(t.raw.grad.any() for t in managed_targets(twin))
    assert not managed_targets(model) and all(p.grad is None for p in model.parameters())


class Wider(Transform):
    """A transform of somebody else that gives another dtype."""

    def forward(self, w):
        return w.double()


class Widening(Method):
    role, paper = "given", ""

    def transform(self, target, total, mask):
        return Wider()


def test_a_transform_of_somebody_else_is_tried_before_it_is_put_on():
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="may not change the dtype"):
        sparsify(model, Widening())
    assert type(model) is nn.Linear and list(model._parameters) == ["weight", "bias"]
