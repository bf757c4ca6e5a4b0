"""STR: its granularities, its starting point, what it shares and what it refuses."""

import copy

import pytest
import torch
from torch import nn

from softprune.core.bake import managed_targets
from softprune.core.rule import Rule
from softprune.core.sparsify import sparsify
from softprune.methods import STR
from softprune.ops import Exp, Sigmoid, Softplus, annealed, straight_through


def net():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))


def deconvolution(kind=nn.ConvTranspose2d, **kwargs):
    return kind(6, 4, 3, **kwargs)


def naive(w, s):
    return torch.sign(w) * torch.relu(torch.abs(w) - torch.sigmoid(s))


@pytest.mark.parametrize(
    ("granularity", "shapes"),
    [
        ("tensor", [(1,), (1,)]),
        ("filter", [(4, 1, 1, 1), (3, 1)]),
        ("weight", [(4, 2, 3, 3), (3, 16)]),
        ("global", [(1,), (1,)]),
    ],
)
def test_shapes_of_s(granularity, shapes):
    sparsifier = sparsify(net(), STR(s_init=-2.0, granularity=granularity))
    assert [tuple(t.transform.s.shape) for t in sparsifier.targets] == shapes
    assert all(bool((t.transform.s == -2.0).all()) for t in sparsifier.targets)


@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight", "global"])
def test_gradients_are_those_of_the_naive_formula(granularity):
    model, x = net(), torch.randn(5, 2, 4, 4)
    plain = copy.deepcopy(model)
    sparsifier = sparsify(model, STR(s_init=-2.0, granularity=granularity))
    with torch.no_grad():
        for s in {t.transform.s for t in sparsifier.targets}:
            s.add_(torch.randn_like(s) * 0.3)
    shared: dict[int, torch.Tensor] = {}
    leaves, used = {}, dict(plain.named_parameters())
    for target in sparsifier.targets:
        w = target.raw.detach().clone().requires_grad_()
        s = shared.setdefault(id(target.transform.s), target.transform.s.detach().clone().requires_grad_())
        leaves[target.name] = (w, s)
        used[target.name] = naive(w, s)
    torch.func.functional_call(plain, used, (x,)).square().sum().backward()
    model(x).square().sum().backward()
    assert len(shared) == (1 if granularity == "global" else 2)
    for target in sparsifier.targets:
        w, s = leaves[target.name]
        torch.testing.assert_close(target.raw.grad, w.grad)
        torch.testing.assert_close(target.transform.s.grad, s.grad)
        assert bool(s.grad.any()) and target.transform.s.grad.shape == target.transform.s.shape


def test_one_global_threshold_is_one_parameter_also_in_a_copy():
    model = net()
    sparsifier = sparsify(model, STR(s_init=-2.0, granularity="global"))
    first, second = sparsifier.targets
    assert first.transform.s is second.transform.s and first.transform is not second.transform
    assert sum(p.numel() == 1 and p.ndim == 1 for p in model.parameters()) == 1
    twin = managed_targets(copy.deepcopy(model))
    assert twin[0].transform.s is twin[1].transform.s and twin[0].transform.s is not first.transform.s


def test_a_global_threshold_has_a_scale_per_tensor():
    """With k from the weights the tensors share s, and each has its own alpha = k * sigmoid(s)."""
    model = net()
    with torch.no_grad():
        model[0].weight.mul_(10)
    spreads = [4 * model[i].weight.double().std().item() for i in (0, 2)]
    first, second = sparsify(model, STR(s_init=0.0, g=Sigmoid("auto"), granularity="global")).targets
    assert first.transform.s is second.transform.s
    assert float(first.transform.alpha) == pytest.approx(spreads[0] / 2)
    assert float(second.transform.alpha) == pytest.approx(spreads[1] / 2)


def test_rules_change_the_granularity_of_single_tensors():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    rules = [Rule("0", granularity="filter"), Rule("3", s_init=-5.0), Rule("4", min_keep=2)]
    targets = sparsify(model, STR(s_init=-2.0, granularity="global"), rules=rules).targets
    s = [t.transform.s for t in targets]
    assert s[0].shape == (4, 1)
    assert s[1] is s[2] and s[4] is s[1]  # a floor of its own does not need a threshold of its own
    assert s[3] is not s[1] and s[3].item() == -5.0


def test_a_rule_makes_some_tensors_share():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    rules = [Rule(lambda name, _: name[0] in "02", granularity="global")]
    s = [t.transform.s for t in sparsify(model, STR(s_init=-2.0), rules=rules).targets]
    assert s[0] is s[2] and s[1] is not s[0]


def test_a_global_threshold_needs_one_dtype():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double())
    with pytest.raises(ValueError, match=r"float32.*float64.*1\.weight"):
        sparsify(model, STR(granularity="global"))
    assert [type(m) for m in model] == [nn.Linear, nn.Linear]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.ConvTranspose1d, (1, 4, 1)),
        (nn.ConvTranspose2d, (1, 4, 1, 1)),
        (nn.ConvTranspose3d, (1, 4, 1, 1, 1)),
    ],
)
def test_filters_of_a_transposed_convolution_are_its_second_dimension(kind, shape):
    model = deconvolution(kind)
    (target,) = sparsify(model, STR(s_init=-9.0, granularity="filter")).targets
    assert tuple(target.transform.s.shape) == shape
    with torch.no_grad():
        target.transform.s[0, 1] = 9.0  # filter 1 dies, and its output is the bias alone
    out = model(torch.randn(2, 6, *(4 for _ in shape[2:])))
    assert torch.equal(out[:, 1], model.bias[1].expand_as(out[:, 1]))
    assert not torch.equal(out[:, 0], model.bias[0].expand_as(out[:, 0]))


def test_grouped_transposed_filters_are_refused():
    model = nn.Sequential(nn.Conv2d(2, 6, 1), deconvolution(groups=2))
    with pytest.raises(ValueError, match=r"1\.weight: a grouped transposed convolution"):
        sparsify(model, STR(granularity="filter"))
    assert [type(m) for m in model] == [nn.Conv2d, nn.ConvTranspose2d]
    rules = [Rule(nn.ConvTranspose2d, granularity="tensor")]
    assert len(sparsify(model, STR(granularity="filter"), rules=rules).targets) == 2


def test_the_backward_mode_reaches_the_weights():
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.01, 1.0, -0.02]]))
    (target,) = sparsify(model, STR(s_init=0.0, backward=straight_through)).targets
    model(torch.tensor([[1.0, 2.0, 3.0]])).backward()
    assert torch.equal(target.raw.grad, torch.tensor([[1.0, 2.0, 3.0]]))
    # P counts the living weight alone: -g'(0) * 2 = -0.5
    assert torch.equal(target.transform.s.grad, torch.tensor([-0.5]))


@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight", "global"])
def test_min_keep_holds_from_the_start(granularity):
    sparsifier = sparsify(net(), STR(s_init=5.0, granularity=granularity, min_keep=3))
    assert all(int(t.effective.count_nonzero()) >= 3 for t in sparsifier.targets)
    dead = sparsify(net(), STR(s_init=5.0, granularity=granularity))
    assert all(int(t.effective.count_nonzero()) == 0 for t in dead.targets)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"s_init": float("nan")}, ValueError, "s_init"),
        ({"s_init": float("inf")}, ValueError, "s_init"),
        ({"s_init": "low"}, ValueError, "s_init"),
        ({"granularity": "tensors"}, ValueError, "tensor, filter, weight, global"),
        ({"min_keep": -1}, ValueError, "min_keep"),
        ({"min_keep": 1.5}, ValueError, "min_keep"),
        ({"min_keep": True}, ValueError, "min_keep"),
        ({"g": torch.sigmoid}, TypeError, "g must be one of"),
        ({"g": "sigmoid"}, TypeError, "g must be one of"),
        ({"backward": "masked"}, TypeError, "backward must be"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        STR(**arguments)


@pytest.mark.parametrize("g", [Sigmoid(), Exp(), Softplus(), Sigmoid("auto")], ids=str)
def test_methods_are_values(g):
    assert STR(g=g) == STR(g=g) and hash(STR(g=g)) == hash(STR(g=g))
    assert STR(g=g) != STR(g=g, min_keep=1)


def test_whole_weights_are_read_only_for_a_floor():
    assert STR().reads_weights is False and STR(min_keep=1).reads_weights is True


def test_the_leak_falls_during_the_training():
    model = nn.Linear(4, 2)
    sparsifier = sparsify(model, STR(backward=annealed(0.8, until=0.5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, weight_decay=1e-4)
    sparsifier.attach(optimizer, total_steps=8)
    leaks = []
    for _ in range(5):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        leaks.append(float(sparsifier.targets[0].transform.leak))
    assert leaks == pytest.approx([0.6, 0.4, 0.2, 0.0, 0.0])
