"""Training with thresholds: the trajectory is the paper's, whatever the loop around it does."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR

from softprune.core.sparsify import sparsify
from softprune.methods import STR
from softprune.ops import Exp, Sigmoid

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")

# Brings s from -7 to about -2 in 50 steps: from a dense network to one with many zeros.
S_INIT, DECAY, LR, MOMENTUM, STEPS = -7.0, 0.05, 0.1, 0.9, 50


class NaiveConv(nn.Conv2d):
    """The paper's layer, written as in the paper: sign(W) * relu(|W| - g(s))."""

    g = staticmethod(torch.sigmoid)

    def forward(self, x):
        W = self.weight
        return self._conv_forward(x, torch.sign(W) * F.relu(torch.abs(W) - self.g(self.s)), self.bias)


class NaiveLinear(nn.Linear):
    g = staticmethod(torch.sigmoid)

    def forward(self, x):
        W = self.weight
        return F.linear(x, torch.sign(W) * F.relu(torch.abs(W) - self.g(self.s)), self.bias)


def _net(conv=nn.Conv2d, linear=nn.Linear):
    return nn.Sequential(
        conv(1, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        conv(6, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        linear(8 * 36, 5),
    )


def _naive(plain, g, s_init):
    """The same network with the paper's layers and the same start."""
    model = _net(NaiveConv, NaiveLinear).to(next(plain.parameters()).dtype)
    model.load_state_dict(plain.state_dict())
    for layer in model:
        if isinstance(layer, NaiveConv | NaiveLinear):
            layer.g = g
            layer.s = nn.Parameter(torch.full((1,), s_init, dtype=layer.weight.dtype))
    return model


def _batches(dtype, count=STEPS):
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        x = torch.randn(16, 1, 8, 8, generator=generator, dtype=torch.float64)
        yield x.to(dtype), (x.mean(dim=(1, 2, 3)) * 20).long().clamp(-2, 2) + 2


def _train(model, optimizer, scheduler, batches):
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("g", "reference"), [(Sigmoid(), torch.sigmoid), (Exp(), torch.exp)])
def test_the_trajectory_is_the_papers(g, reference, dtype, tolerance, nesterov):
    ours = _net().to(dtype)
    naive = _naive(ours, reference, S_INIT)
    sparsifier = sparsify(ours, STR(s_init=S_INIT, g=g))
    settings = {"lr": LR, "momentum": MOMENTUM, "nesterov": nesterov}
    groups = sparsifier.param_groups(weight_decay=5e-4, norm_decay=5e-4, threshold_decay=DECAY)
    mine = sparsifier.attach(SGD(groups, **settings), total_steps=STEPS)
    thresholds = [p for n, p in naive.named_parameters() if n.endswith(".s")]
    others = [p for n, p in naive.named_parameters() if not n.endswith(".s")]
    theirs = SGD([{"params": others, "weight_decay": 5e-4}, {"params": thresholds, "weight_decay": DECAY}], **settings)
    _train(ours, mine, CosineAnnealingLR(mine, STEPS), _batches(dtype))
    _train(naive, theirs, CosineAnnealingLR(theirs, STEPS), _batches(dtype))

    close = {"rtol": tolerance, "atol": tolerance}
    for index in (0, 3, 7):
        transforms = ours[index].parametrizations.weight
        torch.testing.assert_close(transforms.original, naive[index].weight, **close)
        torch.testing.assert_close(transforms[0].s, naive[index].s, **close)
    for index in (1, 4):
        for name, tensor in naive[index].state_dict().items():
            torch.testing.assert_close(ours[index].state_dict()[name], tensor, **close)
    x, _ = next(_batches(dtype, 1))
    torch.testing.assert_close(ours.eval()(x), naive.eval()(x), **close)
    # The comparison means something only if thresholds have come and zeros with them.
    density = sparsifier.measure().densities
    assert 0.05 < density["3.weight"] < 0.9
    assert sparsifier.step == STEPS


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (SGD, {}),
        (SGD, {"momentum": 0.9}),
        (SGD, {"momentum": 0.9, "nesterov": True}),
        (SGD, {"momentum": 0.9, "fused": True}),
        (SGD, {"momentum": 0.9, "foreach": True}),
        (Adam, {}),
        (Adam, {"fused": True}),
        (Adam, {"foreach": True}),
        (AdamW, {}),
        (AdamW, {"fused": True}),
        (AdamW, {"foreach": True}),
        (AdamW, {"amsgrad": True}),
        (RMSprop, {"momentum": 0.9}),
        (RMSprop, {"foreach": True}),
    ],
)
def test_before_the_onset_s_moves_exactly_as_forecast(kind, settings):
    """Below s = -88.7 only decay moves s: the forecast of attach() and the training must agree to rounding."""
    model = _net()
    sparsifier = sparsify(model, STR(s_init=-200.0))
    groups = sparsifier.param_groups(weight_decay=1e-4, threshold_decay=0.01)
    optimizer = sparsifier.attach(kind(groups, lr=0.05, **settings), total_steps=20)
    expected = sparsifier.forecast.s_end
    assert -200.0 < expected < -100.0
    _train(model, optimizer, CosineAnnealingLR(optimizer, 10**9), _batches(torch.float32, 20))
    for index in (0, 3, 7):
        assert model[index].parametrizations.weight[0].s.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_threshold_of_exactly_zero_gets_a_gradient_of_exactly_zero_and_decays(set_to_none):
    """torch skips a parameter whose gradient is None, its decay included: then s would never leave s_init."""
    model = _net()
    sparsifier = sparsify(model, STR(s_init=-3200.0))
    optimizer = SGD(sparsifier.param_groups(weight_decay=0.01), lr=0.1)
    sparsifier.attach(optimizer, total_steps=100)
    expected = torch.tensor([-3200.0])
    for x, y in _batches(torch.float32, 3):
        optimizer.zero_grad(set_to_none=set_to_none)
        F.cross_entropy(model(x), y).backward()
        for index in (0, 3, 7):
            transform = model[index].parametrizations.weight[0]
            assert transform.alpha.item() == 0.0
            assert transform.s.grad is not None
            assert torch.equal(transform.s.grad, torch.zeros(1))
        optimizer.step()
        expected = expected - 0.1 * (0.01 * expected)
        torch.testing.assert_close(model[0].parametrizations.weight[0].s.detach(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradient_accumulation_is_one_step_of_the_larger_batch(set_to_none):
    torch.manual_seed(1)
    whole = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    parts = copy.deepcopy(whole)
    pairs = []
    for model in (whole, parts):
        sparsifier = sparsify(model, STR(s_init=-3.0))
        optimizer = SGD(sparsifier.param_groups(weight_decay=0.01), lr=0.1, momentum=0.9)
        pairs.append((sparsifier, sparsifier.attach(optimizer, total_steps=10)))
    for _ in range(5):
        x, y = torch.randn(12, 6).double(), torch.randint(3, (12,))
        pairs[0][1].zero_grad(set_to_none=set_to_none)
        F.cross_entropy(whole(x), y).backward()
        pairs[0][1].step()
        pairs[1][1].zero_grad(set_to_none=set_to_none)
        for xs, ys in zip(x.split(4), y.split(4), strict=True):
            (F.cross_entropy(parts(xs), ys) / 3).backward()
        pairs[1][1].step()
    assert pairs[0][0].step == pairs[1][0].step == 5
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert 0 < pairs[0][0].measure().densities["2.weight"] < 1


def test_clipping_counts_the_thresholds_like_any_gradient():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    sparsifier = sparsify(model, STR(s_init=-2.0))
    optimizer = sparsifier.attach(SGD(sparsifier.param_groups(weight_decay=0.01), lr=0.1), total_steps=10)
    model(torch.randn(12, 6).double()).square().sum().mul(100).backward()
    grads = [p.grad.clone() for p in model.parameters()]
    assert all(p.grad.abs().max() > 0 for n, p in model.named_parameters() if n.endswith(".0.s"))
    norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
    assert norm > 1
    assert clip_grad_norm_(model.parameters(), 1.0).item() == pytest.approx(norm)
    s = model[0].parametrizations.weight[0].s
    at, grad = s.item(), s.grad.item()
    optimizer.step()
    # The clipped gradient of the loss, the whole decay: decay is added inside the optimizer.
    assert s.item() == pytest.approx(at - 0.1 * (grad + 0.01 * at), rel=1e-12)
    assert sparsifier.step == 1


@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight", "global"])
def test_every_granularity_learns(granularity):
    model = _net()
    sparsifier = sparsify(model, STR(s_init=S_INIT, granularity=granularity))
    groups = sparsifier.param_groups(weight_decay=5e-4, threshold_decay=DECAY)
    optimizer = sparsifier.attach(SGD(groups, lr=LR, momentum=MOMENTUM), total_steps=STEPS)
    before = sparsifier.measure()
    _train(model, optimizer, CosineAnnealingLR(optimizer, STEPS), _batches(torch.float32))
    after = sparsifier.measure()
    assert before.densities["3.weight"] > 0.95
    assert after.densities["3.weight"] < 0.9
    for p in optimizer.param_groups[-1]["params"]:
        assert (p > S_INIT).all()
