"""VD: the divergence and its gradient, noise in training alone, and the cut, fixed or by a goal."""

import copy
import math

import pytest
import torch
from small_training import network, step
from torch import nn

import softprune
from softprune import Sparsity, constant, uniform
from softprune.methods import VD
from softprune.methods.base import Context
from softprune.methods.vd import Variational, VariationalMask, divergence, divergence_slopes, log_alpha

TOTAL = 20


WEIGHTS = 12 * 16 + 16 * 4  # 256


def begun(method=None, *, optimizer=torch.optim.SGD, total=TOTAL, decay=1e-3, **arguments):
    model = network()
    sparsifier = softprune.sparsify(model, method or VD(), **arguments)
    made = optimizer(sparsifier.param_groups(weight_decay=decay), lr=0.05)
    sparsifier.attach(made, total_steps=total)
    return model, sparsifier, made


def test_the_divergence_by_hand():
    # log alpha 0: 0.63576 - 0.63576 * sigmoid(1.8732) + 0.5 * log(2)
    at_zero = 0.63576 * (1 - 1 / (1 + math.exp(-1.8732))) + 0.5 * math.log(2)
    # log alpha -4: sigmoid(1.8732 - 5.9478) = 0.016718..., log(1 + e^4) / 2 = 2.00907...
    at_minus_four = 0.63576 * (1 - 1 / (1 + math.exp(4.0746))) + 0.5 * math.log1p(math.exp(4))
    found = divergence(torch.tensor([0.0, -4.0, 60.0], dtype=torch.float64)).tolist()
    assert found == pytest.approx([at_zero, at_minus_four, 0.0])
    assert found[:2] == pytest.approx([0.43124, 2.63421], abs=1e-4)


def test_log_alpha_by_hand():
    found = log_alpha(torch.tensor([1.0, -0.1, 0.0]), torch.tensor([-10.0, -2.0, -10.0]))
    assert found.tolist() == pytest.approx([-10.0, -2.0 + math.log(100), -10.0 + math.log(1e8)], abs=1e-4)


def test_its_slopes_are_those_of_autograd():
    w = torch.tensor([0.9, -0.3, 0.02, -1e-4, 0.0, 2.5], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([-10.0, -4.0, -6.0, -10.0, -10.0, 3.0], dtype=torch.float64, requires_grad=True)
    divergence(log_alpha(w, v)).sum().backward()
    by_weight, by_variance = divergence_slopes(w.detach(), v.detach())
    torch.testing.assert_close(by_weight, w.grad)
    torch.testing.assert_close(by_variance, v.grad)


@pytest.mark.parametrize(("progress", "weight"), [(0.1, 0.0), (0.2, 0.0), (0.3, 2.0), (0.6, 8.0), (1.0, 8.0)])
def test_its_weight_rises_in_a_straight_line(progress, weight):
    assert VD(kl=8.0, begin=0.2, saturate=0.6).weight_at(progress) == pytest.approx(weight)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_the_gradient_is_that_of_the_mean_divergence_beside_the_loss(scale):
    _, sparsifier, _ = begun(VD(kl=8.0))
    for target in sparsifier.targets:
        target.raw.grad = torch.full_like(target.raw, 0.5 * scale)
    method, targets = sparsifier.method, sparsifier.targets
    with torch.no_grad():
        method.before_step(Context(15, 20, targets, (), loss_scale=scale))
    total = sum(divergence(log_alpha(t.raw, t.transform.log_sigma2)).sum() for t in targets)
    wanted = [p for t in targets for p in (t.raw, t.transform.log_sigma2)]
    exact = torch.autograd.grad(8.0 * total / WEIGHTS, wanted)
    for parameter, gradient in zip(wanted, exact, strict=True):
        loss = 0.5 if any(parameter is t.raw for t in targets) else 0.0
        torch.testing.assert_close(parameter.grad / scale, gradient + loss)


def test_noise_is_drawn_in_training_alone():
    model, sparsifier, _ = begun(VD(log_sigma2_init=-2.0))
    x = torch.randn(3, 12)
    assert not torch.equal(model(x), model(x))
    with torch.no_grad():  # as batch norm is measured again
        assert torch.equal(model(x), model(x))
    before = torch.get_rng_state()
    sparsifier.measure()
    model.eval()
    assert torch.equal(model(x), model(x)) and torch.equal(before, torch.get_rng_state())


def test_noise_has_the_variance_that_was_learnt():
    transform = Variational(torch.zeros(20_000), -2.0)
    noise = transform(torch.zeros(20_000)).detach()
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.exp(-2.0), rel=0.05)


def test_without_a_goal_the_cut_is_at_three():
    w = torch.tensor([1.0, 0.1, 0.1, 0.1, 0.0])
    transform = Variational(w, 0.0).eval()
    at_the_cut = 3.0 + math.log(0.01)
    with torch.no_grad():
        transform.log_sigma2.copy_(torch.tensor([2.9, at_the_cut - 0.01, at_the_cut + 0.01, -10.0, -10.0]))
    # The last one has an alpha of e^-10 / 1e-8, which is far above.
    assert torch.equal(transform(w), torch.tensor([1.0, 0.1, 0.0, 0.1, 0.0]))


def test_under_a_goal_the_largest_ratios_stay():
    _, sparsifier, _ = begun(goal=Sparsity(0.9))
    with torch.no_grad():
        for target in sparsifier.targets:
            target.transform.log_sigma2.copy_(torch.randn_like(target.raw) * 3)
    sparsifier.solve()
    scores = torch.cat([(t.raw.detach().abs() / (t.transform.log_sigma2.detach() / 2).exp()).flatten()
                        for t in sparsifier.targets])  # fmt: skip
    kept = torch.cat([t.transform.mask.flatten() for t in sparsifier.targets])
    assert int(kept.sum()) == 26
    assert torch.equal(kept, scores >= scores.sort(descending=True).values[25])


def test_ties_are_parted_without_touching_the_weights():
    model = nn.Linear(8, 8, bias=False)
    nn.init.constant_(model.weight, 0.5)
    sparsifier = softprune.sparsify(model, VD(), goal=Sparsity(0.75))
    assert sparsifier.measure().params == 16
    assert torch.equal(sparsifier.targets[0].raw, torch.full((8, 8), 0.5))


def test_training_is_not_masked_and_the_end_is_exact():
    model, sparsifier, optimizer = begun(goal=Sparsity(0.9))
    for number in range(TOTAL):
        assert int(torch.count_nonzero(model[0].weight)) == 12 * 16
        step(model, optimizer, number)
    assert sparsifier.measure().params == 26
    model.eval()
    x = torch.randn(3, 12)
    expected = model(x)
    model.train()
    baked = sparsifier.bake().eval()
    assert torch.equal(baked(x), expected) and list(baked.state_dict()) == list(network().state_dict())
    assert sum(int(torch.count_nonzero(baked[i].weight)) for i in (0, 2)) == 26


def test_more_divergence_is_sparser():
    kept = []
    for kl in (0.0, 5.0, 500.0):
        model, sparsifier, optimizer = begun(VD(kl=kl), optimizer=torch.optim.Adam, total=200, decay=0.0)
        for number in range(200):
            step(model, optimizer, number % 4)
        kept.append(sparsifier.measure().params)
    assert kept[0] > kept[1] > kept[2]


@pytest.mark.parametrize("goal", [None, Sparsity(0.9)], ids=["none", "goal"])
def test_a_training_goes_on_bit_for_bit(tmp_path, goal):
    whole, _, optimizer = begun(goal=goal, optimizer=torch.optim.AdamW)
    torch.manual_seed(1)
    for number in range(TOTAL):
        step(whole, optimizer, number)
    first, sparsifier, optimizer = begun(goal=goal, optimizer=torch.optim.AdamW)
    torch.manual_seed(1)
    for number in range(9):
        step(first, optimizer, number)
    sparsifier.save(tmp_path)
    state, random = copy.deepcopy(optimizer.state_dict()), torch.get_rng_state()
    second, sparsifier, optimizer = begun(goal=goal, optimizer=torch.optim.AdamW)
    sparsifier.load(tmp_path)
    optimizer.load_state_dict(state)
    torch.set_rng_state(random)
    for number in range(9, TOTAL):
        step(second, optimizer, number)
    theirs = whole.state_dict()
    assert all(torch.equal(t, theirs[name]) for name, t in second.state_dict().items())


def test_the_variance_is_in_a_group_without_decay():
    _, _, optimizer = begun()
    groups = {group["name"]: group for group in optimizer.param_groups}
    assert set(groups) == {"weight", "norm", "undecayed"} and groups["undecayed"]["weight_decay"] == 0.0
    assert len(groups["undecayed"]["params"]) == 2 and len(groups["weight"]["params"]) == 2
    assert groups["weight"]["weight_decay"] == 1e-3


def test_an_optimizer_from_before_gets_it_too():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    sparsifier = softprune.sparsify(model, VD())
    sparsifier.attach(optimizer, total_steps=10)
    assert [(g.get("name"), g["weight_decay"], len(g["params"])) for g in optimizer.param_groups] == [
        (None, 0.1, 4),
        ("undecayed", 0.0, 2),
    ]


def test_decay_on_it_is_refused():
    model = network()
    sparsifier = softprune.sparsify(model, VD())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    with pytest.raises(ValueError, match=r"log_sigma2 is in a group of SGD with weight_decay 0\.1"):
        sparsifier.attach(optimizer, total_steps=10)
    assert sparsifier.attach(torch.optim.SGD(model.parameters(), lr=0.1), total_steps=10)


def test_freezing():
    model, sparsifier, optimizer = begun()
    with pytest.raises(ValueError, match=r"use freeze\('support'\)"):
        sparsifier.freeze("budget")
    step(model, optimizer, 0)
    kept = sparsifier.measure().params
    sparsifier.freeze("thresholds")
    assert not any(t.transform.log_sigma2.requires_grad for t in sparsifier.targets)
    sparsifier.freeze("support")
    step(model, optimizer, 1)
    assert sparsifier.measure().params == kept


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype):
    model = network().to(dtype)
    sparsifier = softprune.sparsify(model, VD(), goal=Sparsity(0.9))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert sparsifier.targets[0].transform.log_sigma2.dtype == wide
    assert model(torch.zeros(2, 12, dtype=dtype)).dtype == dtype and sparsifier.measure().params == 26
    model.float()
    assert isinstance(sparsifier.targets[0].transform, VariationalMask)


def test_a_budget_is_refused():
    budget = uniform(softprune.profile(network(), torch.zeros(1, 12)), Sparsity(0.75))
    with pytest.raises(ValueError, match="finds out by itself what each tensor keeps"):
        softprune.sparsify(network(), VD(), budget=budget)
    assert softprune.sparsify(network(), VD(), goal=Sparsity(0.5), schedule=constant()).measure().params == 128


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"kl": -1.0}, "0 or more"), ({"kl": math.inf}, "finite"), ({"begin": 0.7}, "begin comes before saturate"),
     ({"saturate": 1.1}, "fractions of the training"), ({"log_sigma2_init": math.nan}, "finite"),
     ({"min_keep": -1}, "min_keep")],
)  # fmt: skip
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        VD(**fields)


def test_the_ends_of_the_ramp():
    assert VD(begin=0.0).weight_at(0.0) == 0.0 and VD(saturate=1.0).weight_at(1.0) == 20.0
    for begin, saturate in ((0.5, 0.5), (-0.1, 0.5), (0.5, 1.1)):
        with pytest.raises(ValueError, match="begin comes before saturate"):
            VD(begin=begin, saturate=saturate)
