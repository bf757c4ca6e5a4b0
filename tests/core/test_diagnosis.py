"""diagnose() against the formulas, on numbers small enough to write down and on a small network."""

import math

import pytest
import torch
from by_hand import shrunk
from torch import nn
from torch.func import functional_call

from softprune.core.rule import Rule
from softprune.core.sparsify import sparsify
from softprune.methods import STR
from softprune.ops import Exp, Sigmoid

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")


def test_by_hand():
    # alpha = sigmoid(0) = 1/2 and g' = 1/4; living: 1.0 and -2.0. With L = -(S . x) the gradient dL/dS is -x,
    # so P = -(1*3) + (1*5)... sign(1.0) * -3 + sign(-2.0) * -5 = -3 + 5 = 2, and dL/ds = -g' P = -0.5.
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.25, -2.0, -0.5]]))
    sparsifier = sparsify(model, STR(s_init=0.0))
    (before,) = sparsifier.diagnose()
    assert (before.name, before.s, before.alpha, before.density) == ("weight", 0.0, 0.5, 0.5)
    assert before.l1_active == 3.0 and math.isnan(before.P) and math.isnan(before.balance)
    (-model(torch.tensor([[3.0, 4.0, 5.0, 6.0]]))).sum().backward()
    (after,) = sparsifier.diagnose()
    assert after.P == 2.0
    assert math.isnan(after.balance)  # nothing pulls s: no optimizer is attached


@pytest.mark.parametrize(("sign", "expected"), [(1.0, 0.01 * 2.0 / 1.0), (-1.0, math.inf)])
def test_the_balance_of_decay_and_gradient(sign, expected):
    # g = exp, s = -2, one living weight w = 3 with dL/dS = -sign * e^2: P = -sign * e^2 and -g'(s) P = sign.
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(3.0)
    sparsifier = sparsify(model, STR(s_init=-2.0, g=Exp()))
    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=0.01), lr=1e-3)
    sparsifier.attach(optimizer, total_steps=10)
    (-sign * math.exp(2.0) * model(torch.ones(1, 1))).sum().backward()
    optimizer.step()
    (found,) = sparsifier.diagnose()
    assert pytest.approx(-sign * math.exp(2.0), rel=1e-6) == found.P
    assert found.balance == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight"])
def test_a_network_against_autograd(granularity):
    """P from the gradient of the effective weight itself, at the weights before the step."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))
    x, y = torch.randn(8, 2, 4, 4), torch.randint(0, 3, (8,))
    plain_names = [name for name, _ in model.named_parameters()]
    sparsifier = sparsify(
        model, STR(s_init=-2.5, granularity=granularity), rules=[Rule("3", s_init=-3.0, g=Sigmoid(0.5))]
    )
    raw = {t.name: t.raw.detach().clone() for t in sparsifier.targets}
    used = {name: t.detach().requires_grad_() for name, t in _effective(model, plain_names).items()}
    plain = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))
    nn.functional.cross_entropy(functional_call(plain, used, (x,)), y).backward()

    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=1e-3, threshold_decay=0.02), lr=1e-6)
    sparsifier.attach(optimizer, total_steps=10)
    nn.functional.cross_entropy(model(x), y).backward()
    grads = {t.name: t.transform.s.grad.clone() for t in sparsifier.targets}
    optimizer.step()
    optimizer.zero_grad()
    for found in sparsifier.diagnose():
        k, s = (1.0, -2.5) if found.name == "0.weight" else (0.5, -3.0)
        alpha = k / (1 + math.exp(-s))
        effective = shrunk(raw[found.name], torch.tensor(alpha))
        living = effective != 0
        assert found.s == pytest.approx(s, rel=1e-5) and found.alpha == pytest.approx(alpha, rel=1e-5)
        assert found.density == int(living.sum()) / living.numel() and 0 < found.density < 1
        assert found.l1_active == pytest.approx(float(raw[found.name][living].abs().sum()), rel=1e-5)
        P = float((used[found.name].grad * raw[found.name].sign() * living).double().sum())
        assert pytest.approx(P, rel=1e-3) == found.P
        brake = float(grads[found.name].mean())
        expected = 0.02 * abs(s) / brake if brake > 0 else math.inf
        assert found.balance == pytest.approx(expected, rel=1e-5)


def _effective(model, names):
    modules = dict(model.named_modules())
    return {name: getattr(modules[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in names}


def test_a_threshold_without_slope_tells_no_P():
    model = nn.Linear(3, 2)
    sparsifier = sparsify(model, STR())  # s = -3200: alpha and g' are exactly 0
    model(torch.randn(4, 3)).sum().backward()
    (found,) = sparsifier.diagnose()
    assert found.alpha == 0.0 and found.density == 1.0 and math.isnan(found.P)


@pytest.mark.parametrize(("what", "alpha"), [("support", 0.0), ("budget", 0.5)])
def test_a_frozen_model_has_no_s(what, alpha):
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.25, -2.0, -0.5]]))
    sparsifier = sparsify(model, STR(s_init=0.0))
    sparsifier.freeze(what)
    (found,) = sparsifier.diagnose()
    assert math.isnan(found.s) and math.isnan(found.P) and math.isnan(found.balance)
    assert found.alpha == alpha and found.density == 0.5
    assert found.l1_active == (2.0 if what == "support" else 3.0)  # support: raw has taken the effective values
