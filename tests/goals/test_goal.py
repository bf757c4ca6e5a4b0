"""Name the target, get the target: the total is exact at every step, on every kind of network."""

import copy

import pytest
import torch
from goal_training import train
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import NETWORKS
from torch import nn
from torch.optim.swa_utils import AveragedModel

import softprune
from softprune import STR, Flops, Params, Rule, Sparsity, constant, cubic


def counted(sparsifier):
    kept = sum(int(torch.count_nonzero(t.effective)) for t in sparsifier.targets)
    return kept, sum(t.raw.numel() for t in sparsifier.targets)


def zeros_of(module, names):
    tensors = dict(module.named_parameters())
    return sum(int((tensors[name] == 0).sum()) for name in names)


@pytest.mark.parametrize("kind", NETWORKS)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sparsity=st.floats(0.05, 0.99), seed=st.integers(0, 1000))
def test_the_count_is_exact_at_every_step_in_eval_after_bake_and_in_a_file(kind, sparsity, seed, tmp_path_factory):
    torch.manual_seed(seed)
    build, inputs = NETWORKS[kind]
    model, x = build(), inputs()
    sparsifier = softprune.sparsify(model, STR(), goal=Sparsity(sparsity), schedule=cubic(0.2, 0.8))
    part = sparsifier.goals[0]
    seen = []
    train(
        model, sparsifier, x, 6, look=lambda: seen.append((counted(sparsifier)[0], part.allowed(sparsifier.progress)))
    )
    assert all(kept == allowed for kept, allowed in seen)
    kept, total = counted(sparsifier)
    assert total - kept == round(sparsity * total)
    model.eval()
    assert counted(sparsifier)[0] == kept
    folder = tmp_path_factory.mktemp("goal")
    sparsifier.save(folder)
    other = build()
    again = softprune.sparsify(other, STR(), goal=Sparsity(sparsity), schedule=cubic(0.2, 0.8))
    again.load(folder)
    assert counted(again)[0] == kept
    names = [t.name for t in sparsifier.targets]
    assert zeros_of(sparsifier.bake(), names) == total - kept
    assert all(int(torch.count_nonzero(w)) for w in (model.get_parameter(name) for name in names))


@pytest.mark.parametrize("goal", [Params(700), Params(1), Sparsity(0.5, scope="all"), Params(900, scope="all")])
def test_other_totals(goal):
    torch.manual_seed(0)
    model = NETWORKS["mlp"][0]()  # 1,232 weights, 53 biases
    method = STR(min_keep=0) if goal != Params(1) else None
    if method is None:
        with pytest.raises(ValueError, match=r"floors of the 3 tensors \(min_keep\) take 3"):
            softprune.sparsify(model, STR(), goal=goal)
        return
    sparsifier = softprune.sparsify(model, method, goal=goal, schedule=constant())
    kept = counted(sparsifier)[0]
    wanted = {Params(700): 700, Sparsity(0.5, scope="all"): 1285 - 642 - 53, Params(900, scope="all"): 900 - 53}[goal]
    assert kept == wanted


@pytest.mark.parametrize("kind", ["mlp", "depthwise", "resnet", "transformer", "lstm", "tied"])
@pytest.mark.parametrize("share", [0.9, 0.3, 0.05])
def test_flops_are_met_to_the_cost_of_one_weight(kind, share):
    torch.manual_seed(1)
    build, inputs = NETWORKS[kind]
    model, x = build(), inputs()
    profile = softprune.profile(model, x[:1])
    fixed = profile.total_macs() - sum(t.macs for t in profile)
    goal = Flops(round(fixed + share * (profile.total_macs() - fixed)))
    sparsifier = softprune.sparsify(model, STR(), goal=goal, example=x[:1])
    train(model, sparsifier, x, 5)
    dearest = max(t.macs / t.params for t in profile)
    spent = sparsifier.measure().macs() if hasattr(sparsifier.measure(), "macs") else 0
    assert goal.macs - dearest - 1 <= spent <= goal.macs + 1


@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight", "global"])
@pytest.mark.parametrize(
    "backward",
    [softprune.masked, softprune.straight_through, softprune.annealed(0.3)],
    ids=["masked", "through", "annealed"],
)
def test_every_granularity_and_backward(granularity, backward):
    torch.manual_seed(2)
    build, inputs = NETWORKS["depthwise"]
    model, x = build(), inputs()
    sparsifier = softprune.sparsify(model, STR(granularity=granularity, backward=backward), goal=Sparsity(0.8))
    train(model, sparsifier, x, 12)
    kept, total = counted(sparsifier)
    assert total - kept == round(0.8 * total)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=1e-2),
        lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
        lambda p: torch.optim.SGD(p, lr=1e-2),
    ],
    ids=["adamw", "fused adam", "sgd"],
)
def test_any_optimizer_and_any_scale_of_the_loss_give_the_same_thresholds_to_learn(make):
    """The rule that moves s divides the size of the gradient out."""
    moved = []
    for scale in (1.0, 1024.0):
        torch.manual_seed(3)
        model, x = NETWORKS["mlp"][0](), torch.randn(4, 20)
        sparsifier = softprune.sparsify(model, STR(), goal=Sparsity(0.7))
        optimizer = make(model.parameters())
        sparsifier.attach(optimizer, total_steps=10)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for _ in range(10):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        moved.append([float(t.transform.s) for t in sparsifier.targets])
    assert moved[0] == pytest.approx(moved[1], rel=1e-4)
    start = [float(t.transform.s) for t in sparsifier.targets]
    assert len(set(start)) == 3


def test_s_is_no_parameter_and_the_user_s_groups_do_not_see_it():
    model = NETWORKS["mlp"][0]()
    before = len(list(model.parameters()))
    softprune.sparsify(model, STR(), goal=Sparsity(0.7))
    assert len(list(model.parameters())) == before


def test_parts_of_the_model_have_goals_of_their_own():
    torch.manual_seed(4)
    model, x = NETWORKS["mlp"][0](), torch.randn(4, 20)
    rules = [Rule("0", goal=Sparsity(0.5)), Rule("4", goal=Params(20))]
    sparsifier = softprune.sparsify(model, STR(), goal=Sparsity(0.9), rules=rules)
    train(model, sparsifier, x, 8)
    kept = {t.name: int(torch.count_nonzero(t.effective)) for t in sparsifier.targets}
    assert kept == {"0.weight": 320, "2.weight": 51, "4.weight": 20}


def test_a_goal_for_one_rule_alone_leaves_the_rest_dense():
    model = NETWORKS["mlp"][0]()
    sparsifier = softprune.sparsify(model, STR(), rules=[Rule("0", goal=Sparsity(0.5))], schedule=constant())
    assert [t.name for t in sparsifier.targets] == ["0.weight"]
    assert "no goal is for it" in str(sparsifier.plan)


def test_before_the_ramp_nothing_changes():
    torch.manual_seed(5)
    model, x = NETWORKS["mlp"][0](), torch.randn(4, 20)
    twin = copy.deepcopy(model)
    sparsifier = softprune.sparsify(model, STR(), goal=Sparsity(0.9), schedule=cubic(0.5, 0.9))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    sparsifier.attach(optimizers[0], total_steps=10)
    for _ in range(4):
        for m, o in zip((model, twin), optimizers, strict=True):
            o.zero_grad()
            m(x).square().mean().backward()
            o.step()
    assert all(torch.equal(t.raw, twin.get_parameter(t.name)) for t in sparsifier.targets)
    assert all(float(t.transform.alpha) == 0.0 for t in sparsifier.targets)


def test_bake_before_the_goal_holds_must_be_asked_for():
    torch.manual_seed(6)
    model = NETWORKS["mlp"][0]()
    sparsifier = softprune.sparsify(model, STR(), goal=Sparsity(0.75))
    with pytest.raises(ValueError, match='bake\\(at="now"\\)'):
        sparsifier.bake()
    names = [t.name for t in sparsifier.targets]
    assert zeros_of(copy.deepcopy(sparsifier).bake(at="now"), names) == 0
    assert zeros_of(sparsifier.bake(at="target"), names) == 924


def test_an_average_of_the_weights_is_solved_by_itself():
    torch.manual_seed(7)
    model, x = NETWORKS["mlp"][0](), torch.randn(4, 20)
    sparsifier = softprune.sparsify(model, STR(), goal=Sparsity(0.9))
    average = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    train(model, sparsifier, x, 20, look=lambda: average.update_parameters(model))
    sparsifier.solve(average.module)
    zeros = sum(int((m.weight == 0).sum()) for m in average.module if isinstance(m, nn.Linear))
    assert zeros == round(0.9 * 1232)
    assert counted(sparsifier)[0] == 1232 - zeros


def test_a_resumed_training_is_equal_bit_for_bit(tmp_path):
    def begin():
        torch.manual_seed(8)
        model = NETWORKS["depthwise"][0]()
        sparsifier = softprune.sparsify(model, STR(), goal=Sparsity(0.9))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return model, sparsifier, optimizer

    def go(model, optimizer, steps):
        for step in steps:
            x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    whole, sparsifier, optimizer = begin()
    sparsifier.attach(optimizer, total_steps=20)
    go(whole, optimizer, range(20))
    first, sparsifier, optimizer = begin()
    sparsifier.attach(optimizer, total_steps=20)
    go(first, optimizer, range(9))
    sparsifier.save(tmp_path)
    kept = optimizer.state_dict()
    second, sparsifier, optimizer = begin()
    sparsifier.load(tmp_path)
    sparsifier.attach(optimizer, total_steps=20)
    optimizer.load_state_dict(kept)
    go(second, optimizer, range(9, 20))
    ours, theirs = second.state_dict(), whole.state_dict()
    assert list(ours) == list(theirs)
    assert [k for k in ours if not torch.equal(ours[k], theirs[k])] == []


@pytest.mark.parametrize("what", ["thresholds", "support", "budget"])
def test_frozen_in_the_middle_the_total_stays(what):
    torch.manual_seed(9)
    model, x = NETWORKS["mlp"][0](), torch.randn(4, 20)
    sparsifier = softprune.sparsify(model, STR(), goal=Sparsity(0.9), schedule=cubic(0.0, 0.4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sparsifier.attach(optimizer, total_steps=30)
    for step in range(30):
        if step == 15:
            sparsifier.freeze(what)
            before = (
                sparsifier.measure(),
                [float(t.transform.s) for t in sparsifier.targets if hasattr(t.transform, "s")],
            )
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    after = sparsifier.measure()
    assert after.overall == before[0].overall
    if what == "thresholds":
        assert [float(t.transform.s) for t in sparsifier.targets] == before[1]
    else:
        assert dict(after) == dict(before[0])


def test_a_tensor_that_would_die_keeps_its_floor():
    torch.manual_seed(10)
    model, x = NETWORKS["mlp"][0](), torch.randn(4, 20)
    with torch.no_grad():
        model[2].weight.mul_(1e-6)
    sparsifier = softprune.sparsify(model, STR(start="equal", min_keep=7), goal=Sparsity(0.9), schedule=constant())
    assert int(torch.count_nonzero(model[2].weight)) == 7
    assert counted(sparsifier)[0] == 1232 - round(0.9 * 1232)
    train(model, sparsifier, x, 10)
    assert min(int(torch.count_nonzero(t.effective)) for t in sparsifier.targets) >= 7
    assert counted(sparsifier)[0] == 1232 - round(0.9 * 1232)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"goal": Params(2000)}, r"at most 1,232 weights"),
        ({"goal": Flops(10)}, "multiply-adds were not counted"),
        ({"goal": Sparsity(0.5), "schedule": lambda progress: progress / 2}, "0.5 of the goal at the end"),
        ({"goal": Sparsity(0.5), "schedule": lambda progress: 2.0}, "from 0 to 1, got 2.0"),
        ({"schedule": constant()}, "name one, as in goal=Sparsity"),
        ({"goal": Sparsity(0.99, scope="all")}, "53 of the 1,285 parameters"),
        ({"rules": [Rule("0", goal=Sparsity(0.5)), Rule("*", goal=Sparsity(0.6))]}, "is for no tensor"),
    ],
    ids=["too many", "no example", "half", "double", "no goal", "scope", "hidden rule"],
)  # fmt: skip
def test_what_cannot_be_met_is_refused_and_the_model_untouched(arguments, message):
    model = NETWORKS["mlp"][0]()
    with pytest.raises(ValueError, match=message):
        softprune.sparsify(model, STR(), **arguments)
    assert all(isinstance(m.weight, nn.Parameter) for m in model if isinstance(m, nn.Linear))


@pytest.mark.parametrize("arguments", [(0.5, 0.5), (0.7, 0.2), (-0.1, 0.5), (0.1, 1.5)])
def test_a_ramp_ends_after_it_begins(arguments):
    with pytest.raises(ValueError, match="begins before it ends"):
        cubic(*arguments)


def test_a_budget_is_kept_tensor_by_tensor():
    torch.manual_seed(11)
    model, x = NETWORKS["mlp"][0](), torch.randn(4, 20)
    budget = softprune.Budget({"0.weight": 0.1, "2.weight": 0.5, "4.weight": 1.0})
    sparsifier = softprune.sparsify(model, softprune.GMP(every=3), budget=budget)
    train(model, sparsifier, x, 20)
    kept = {t.name: int(torch.count_nonzero(t.effective)) for t in sparsifier.targets}
    assert kept == {"0.weight": 64, "2.weight": 256, "4.weight": 80}


@pytest.mark.parametrize(
    ("densities", "message"),
    [
        ({"0.weight": 0.5}, "says nothing of 2.weight, 4.weight"),
        ({"0.weight": 0.5, "2.weight": 0.0, "4.weight": 1.0}, "0 of its 512 weights"),
        ({"0.weight": 0.5, "2.weight": 0.5, "4.weight": 1.0, "6.weight": 1.0}, "this model has not: 6.weight"),
    ],
    ids=["missing", "empty", "strange"],
)
def test_a_budget_that_does_not_fit_is_refused(densities, message):
    with pytest.raises(ValueError, match=message):
        softprune.sparsify(NETWORKS["mlp"][0](), softprune.GMP(), budget=softprune.Budget(densities))


@pytest.mark.parametrize("method", [softprune.GMP(every=4), softprune.ST3()], ids=["gmp", "st3"])
def test_other_methods_meet_a_goal_too(method):
    torch.manual_seed(12)
    model, x = NETWORKS["depthwise"][0](), torch.randn(4, 3, 8, 8)
    sparsifier = softprune.sparsify(model, method, goal=Sparsity(0.9))
    train(model, sparsifier, x, 21)
    kept, total = counted(sparsifier)
    assert total - kept == round(0.9 * total)
    effective = {t.name: t.effective.detach().clone() for t in sparsifier.targets}
    baked = sparsifier.bake()
    assert all(torch.equal(baked.get_parameter(name), w) for name, w in effective.items())
