"""freeze: what stops, what goes on, and what may follow what."""

import pytest
import torch
from torch import nn

from softprune.core.sparsify import freeze_support, sparsify
from softprune.methods import STR

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.003),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.003),
}


def net():
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 3))


def batch():
    return torch.randn(16, 2, 4, 4), torch.randint(0, 3, (16,))


def trained(*, optimizer="sgd", method=None, steps=12):
    """A model in the middle of its training, with momentum in the buffers of weights that are about to be fixed."""
    model = net()
    sparsifier = sparsify(model, method or STR(s_init=-3.0))
    optimizer = OPTIMIZERS[optimizer](sparsifier.param_groups(weight_decay=5e-3, threshold_decay=0.05))
    sparsifier.attach(optimizer, total_steps=200)
    train(model, optimizer, steps)
    assert all(0 < d < 1 for d in sparsifier.measure().values())
    return model, sparsifier, optimizer


def train(model, optimizer, steps):
    for _ in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def zeros(sparsifier):
    return {t.name: t.effective.detach() == 0 for t in sparsifier.targets}


def counts(sparsifier):
    return {t.name: int(t.effective.count_nonzero()) for t in sparsifier.targets}


# thresholds


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("after_backward", [False, True])
def test_frozen_thresholds_stand_still_and_weights_go_on(optimizer, after_backward):
    model, sparsifier, optimizer = trained(optimizer=optimizer)
    if after_backward:
        x, y = batch()
        nn.functional.cross_entropy(model(x), y).backward()
    sparsifier.freeze("thresholds")
    assert sparsifier.frozen == "thresholds"
    before = {t.name: (t.transform.s.detach().clone(), t.raw.detach().clone()) for t in sparsifier.targets}
    if after_backward:
        optimizer.step()
    train(model, optimizer, 15)
    for target in sparsifier.targets:
        s, raw = before[target.name]
        assert torch.equal(target.transform.s, s)  # neither the gradient, nor decay, nor momentum
        assert not torch.equal(target.raw, raw)
        assert target.transform.s.grad is None


def test_weights_may_cross_a_frozen_threshold():
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, 0.2]]))
    sparsifier = sparsify(model, STR(s_init=-2.0))  # alpha = 0.119
    sparsifier.freeze("thresholds")
    with torch.no_grad():
        sparsifier.targets[0].raw.copy_(torch.tensor([[0.1, 0.2]]))
    assert torch.equal(model.weight != 0, torch.tensor([[False, True]]))
    with torch.no_grad():
        sparsifier.targets[0].raw.copy_(torch.tensor([[0.3, 0.2]]))
    assert bool(model.weight.all())


# support


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight", "global"])
def test_a_frozen_support_keeps_the_output_and_the_zeros(optimizer, granularity):
    model, sparsifier, optimizer = trained(optimizer=optimizer, method=STR(s_init=-3.0, granularity=granularity))
    x, _ = batch()
    expected, dead = model(x).detach(), zeros(sparsifier)
    raws = [t.raw for t in sparsifier.targets]
    sparsifier.freeze("support")
    assert torch.equal(model(x), expected)
    assert [t.raw for t in sparsifier.targets] == raws
    assert all(torch.equal(t.raw, t.effective) for t in sparsifier.targets)
    start = {t.name: t.effective.detach().clone() for t in sparsifier.targets}
    train(model, optimizer, 25)
    for target in sparsifier.targets:
        assert not target.effective[dead[target.name]].any()
        living = ~dead[target.name]
        assert bool((target.effective[living] != start[target.name][living]).all())
    baked = sparsifier.bake()
    assert all(not p[dead[name]].any() for name, p in baked.named_parameters() if name in dead)


def test_a_frozen_support_has_no_thresholds_left():
    model, sparsifier, optimizer = trained()
    thresholds = [t.transform.s for t in sparsifier.targets]
    values = [s.detach().clone() for s in thresholds]
    sparsifier.freeze()
    assert sparsifier.frozen == "support"
    assert not {id(s) for s in thresholds} & {id(p) for p in model.parameters()}
    assert [g["name"] for g in sparsifier.param_groups(weight_decay=0.1)] == ["weight", "norm"]
    train(model, optimizer, 5)
    assert all(torch.equal(s, v) for s, v in zip(thresholds, values, strict=True))


# budget


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight", "global"])
def test_a_frozen_budget_keeps_every_count(optimizer, granularity):
    model, sparsifier, optimizer = trained(optimizer=optimizer, method=STR(s_init=-3.0, granularity=granularity))
    x, _ = batch()
    expected, kept, dead = model(x).detach(), counts(sparsifier), zeros(sparsifier)
    before = dict(sparsifier.measure())
    sparsifier.freeze("budget")
    assert torch.equal(model(x), expected)
    for _ in range(5):
        train(model, optimizer, 7)
        assert dict(sparsifier.measure()) == before
    train(model, optimizer, 3)  # 12 + 38 = 50: a step at which the thresholds follow
    assert sparsifier.step == 50 and counts(sparsifier) == kept
    # The places move, which is what sets a budget apart from a support.
    assert any(bool((target.effective[dead[target.name]] != 0).any()) for target in sparsifier.targets)
    sparsifier.bake()
    assert {t.name: int(t.raw.count_nonzero()) for t in sparsifier.targets} == kept


def test_a_frozen_budget_can_be_measured_without_changing_the_training():
    def run(*, measured):
        torch.manual_seed(3)
        model, sparsifier, optimizer = trained()
        sparsifier.freeze("budget")
        for _ in range(4):
            train(model, optimizer, 3)
            if measured:
                sparsifier.measure()
        return model

    a, b = run(measured=True), run(measured=False)
    assert all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_a_settled_budget_bakes_to_the_same_output():
    model, sparsifier, optimizer = trained()
    sparsifier.freeze("budget")
    train(model, optimizer, 8)
    assert sparsifier.step == 20
    x, _ = batch()
    expected = model(x)
    sparsifier.bake()
    assert torch.equal(model(x), expected)


def test_bake_between_two_settlings_keeps_the_budget():
    model, sparsifier, _ = trained()
    kept = counts(sparsifier)
    sparsifier.freeze("budget")
    with torch.no_grad():
        for target in sparsifier.targets:
            target.raw.mul_(20.0)  # many weights grow above the thresholds of now
    assert all(counts(sparsifier)[name] > count for name, count in kept.items())
    sparsifier.bake()
    assert {name: int(model.get_parameter(name).count_nonzero()) for name in kept} == kept


# one after the other


def test_support_after_thresholds_and_after_budget():
    model, sparsifier, optimizer = trained()
    sparsifier.freeze("thresholds")
    sparsifier.freeze("budget")
    train(model, optimizer, 8)  # step 20
    x, _ = batch()
    expected, kept = model(x).detach(), counts(sparsifier)
    sparsifier.freeze("support")
    assert torch.equal(model(x), expected) and sparsifier.frozen == "support"
    train(model, optimizer, 5)
    assert counts(sparsifier) == kept


@pytest.mark.parametrize("what", ["thresholds", "support", "budget"])
def test_freezing_twice_is_freezing_once(what):
    model, sparsifier, _optimizer = trained()
    x, _ = batch()
    sparsifier.freeze(what)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    expected = model(x)
    sparsifier.freeze(what)
    assert {k: v.tolist() for k, v in model.state_dict().items()} == {k: v.tolist() for k, v in before.items()}
    assert torch.equal(model(x), expected) and sparsifier.frozen == what


@pytest.mark.parametrize(
    ("first", "then"), [("support", "budget"), ("support", "thresholds"), ("budget", "thresholds")]
)
def test_what_would_change_nothing_is_refused(first, then):
    model, sparsifier, _ = trained()
    sparsifier.freeze(first)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=rf"the {first} of 0\.weight is fixed already, freeze\('{then}'\)"):
        sparsifier.freeze(then)
    assert sparsifier.frozen == first
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_model_with_kept_zeros_has_no_threshold_to_freeze():
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight[0] = 0.0
    sparsifier = freeze_support(model)
    with pytest.raises(ValueError, match="the support of weight is fixed already"):
        sparsifier.freeze("thresholds")
    sparsifier.freeze("support")
    assert not model.weight[0].any()


@pytest.mark.parametrize("what", ["mask", "", None, "Support"])
def test_unknown_words_are_refused(what):
    _model, sparsifier, _ = trained()
    with pytest.raises(ValueError, match=r"freeze\(\) takes 'thresholds', 'support', 'budget'; got"):
        sparsifier.freeze(what)
    assert sparsifier.frozen is None
    sparsifier.bake()
    with pytest.raises(ValueError, match="baked or removed already"):
        sparsifier.freeze("support")


@pytest.mark.parametrize("what", ["thresholds", "support", "budget"])
@pytest.mark.parametrize("anew", [True, False])
def test_data_parallel_goes_on_wrapped_anew_or_told_to_expect_it(what, anew):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = net()
        sparsifier = sparsify(model, STR(s_init=-3.0))
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=not anew)
        optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=1e-3), lr=0.05)
        sparsifier.attach(optimizer, total_steps=20)
        thresholds = [t.transform.s for t in sparsifier.targets]
        train(wrapped, optimizer, 3)
        sparsifier.freeze(what)
        if anew:
            wrapped = nn.parallel.DistributedDataParallel(model)
        frozen = [s.detach().clone() for s in thresholds]
        before = [t.raw.detach().clone() for t in sparsifier.targets]
        train(wrapped, optimizer, 3)
        assert all(torch.equal(s, v) for s, v in zip(thresholds, frozen, strict=True))
        assert not any(torch.equal(t.raw, v) for t, v in zip(sparsifier.targets, before, strict=True))
    finally:
        # The threads of the group are joined while the interpreter is locked: none may still be at work.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
