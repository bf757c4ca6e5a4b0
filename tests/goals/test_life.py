"""A model under a goal is copied, pickled, compiled, frozen, saved and baked like any other."""

import copy
import pickle

import pytest
import torch
from networks import NETWORKS, Tied
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import softprune
from softprune import GMP, ST3, STR, Budget, Params, Rule, Sparsity, constant, cubic


def kept_by(model, names=("0.weight", "2.weight", "4.weight")):
    return sum(int(torch.count_nonzero(model.get_submodule(n.rpartition(".")[0]).weight)) for n in names)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def begun(method=None, *, steps=20, **arguments):
    torch.manual_seed(0)
    model = NETWORKS["mlp"][0]()
    sparsifier = softprune.sparsify(model, method or STR(), **{"goal": Sparsity(0.9), **arguments})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sparsifier.attach(optimizer, total_steps=steps)
    return model, sparsifier, optimizer, torch.randn(4, 20)


def trained(method=None, *, steps=20, upto=None, **arguments):
    model, sparsifier, optimizer, x = begun(method, steps=steps, **arguments)
    for _ in range(steps if upto is None else upto):
        step(model, optimizer, x)
    return model, sparsifier, optimizer, x


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("method", [STR(), GMP(every=3), ST3()], ids=["str", "gmp", "st3"])
def test_a_copy_computes_the_same_and_is_independent(how, method):
    model, _, optimizer, x = trained(method)
    other = how(model)
    assert torch.equal(other(x), model(x)) and kept_by(other) == 123
    before = {key: t.clone() for key, t in other.state_dict().items()}
    step(model, optimizer, x)
    assert all(torch.equal(t, before[key]) for key, t in other.state_dict().items())


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_step_that_overflows_leaves_everything_alone(fused):
    torch.manual_seed(0)
    model = NETWORKS["mlp"][0]()
    sparsifier = softprune.sparsify(model, STR(), goal=Sparsity(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=fused)
    sparsifier.attach(optimizer, total_steps=20)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, seen = torch.randn(4, 20), []
    for number in range(12):
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean() * (float("inf") if number == 8 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((sparsifier.step, {key: t.clone() for key, t in model.state_dict().items()}))
    (before, state), (after, same) = seen[7:9]
    assert before == after == 8
    assert [key for key in state if not torch.equal(state[key], same[key])] == []
    assert seen[9][0] == 9 and kept_by(model) == sparsifier.goals[0].allowed(sparsifier.progress)


def test_a_fused_optimizer_learns_the_same_while_the_loss_scale_changes():
    learnt = []
    for growth in (10**6, 2):
        torch.manual_seed(0)
        model = NETWORKS["mlp"][0]()
        sparsifier = softprune.sparsify(model, STR(), goal=Sparsity(0.9))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
        sparsifier.attach(optimizer, total_steps=12)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=growth)
        x = torch.randn(4, 20)
        for _ in range(12):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        learnt.append([float(t.transform.s) for t in sparsifier.targets])
    assert learnt[0] == pytest.approx(learnt[1], rel=1e-5)


@pytest.mark.parametrize("method", [STR(), GMP(every=3), ST3()], ids=["str", "gmp", "st3"])
def test_nothing_is_compiled_again_while_the_goal_is_approached(method):
    torch._dynamo.reset()
    model, _, optimizer, x = begun(method)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for _ in range(20):
        optimizer.zero_grad()
        compiled(x).square().mean().backward()
        optimizer.step()
    assert counter.frame_count == 1
    assert kept_by(model) == 123
    torch.testing.assert_close(compiled(x), model(x))
    torch._dynamo.reset()


def test_pruned_weights_learn_at_first_and_no_longer_at_the_end():
    model, _, optimizer, x = begun(schedule=constant())
    transform = model[4].parametrizations.weight[0]
    leaks = []
    for _ in range(20):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        pruned = model[4].weight == 0
        heard = model[4].parametrizations.weight.original.grad[pruned].abs().sum()
        assert (heard > 0) == (transform.leak > 0)
        leaks.append(float(transform.leak))
        optimizer.step()
    assert leaks == pytest.approx([1 - n / 20 for n in range(20)])
    assert float(transform.leak) == 0.0


def test_without_a_goal_the_gradient_is_the_papers():
    model = nn.Linear(4, 3)
    softprune.sparsify(model, STR(s_init=-1.0))
    assert model.parametrizations.weight[0].leak is None
    assert model.parametrizations.weight[0].backward_mode == softprune.masked


def test_what_was_trained_elsewhere_is_loaded_and_baked_without_an_optimizer(tmp_path):
    _, sparsifier, _, x = trained()
    expected = sparsifier.model(x)
    sparsifier.save(tmp_path)
    again = softprune.sparsify(NETWORKS["mlp"][0](), STR(), goal=Sparsity(0.9))
    again.load(tmp_path)
    baked = again.bake()
    assert torch.equal(baked(x), expected) and kept_by(baked) == 123


def test_a_schedule_of_one_s_own_is_known_again_in_another_process():
    def made(schedule):
        return softprune.sparsify(NETWORKS["mlp"][0](), STR(), goal=Sparsity(0.9), schedule=schedule)

    state = made(lambda progress: min(1.0, 2 * progress)).state_dict()
    assert "0x" not in str(state["goals"])
    made(lambda progress: min(1.0, progress + progress)).load_state_dict(state)
    with pytest.raises(ValueError, match="saved with the goals"):
        made(lambda progress: progress).load_state_dict(state)


def test_a_mask_between_two_updates_is_brought_up_to_date_by_bake():
    # Updated at steps 8 and 16; the goal holds from step 10 on.
    model, sparsifier, _, _ = trained(GMP(every=8), steps=20, upto=13, schedule=cubic(0.0, 0.5))
    assert kept_by(model) > 123
    assert kept_by(sparsifier.bake()) == 123


def test_weights_that_start_at_zero_can_grow_before_the_goal_asks():
    for method in (STR(), GMP(every=2), ST3()):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        nn.init.zeros_(model[2].weight)
        sparsifier = softprune.sparsify(model, method, goal=Sparsity(0.5), schedule=cubic(0.5, 0.9))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sparsifier.attach(optimizer, total_steps=10)
        x, y = torch.randn(8, 4), torch.randn(8, 3)
        for _ in range(10):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        assert int(torch.count_nonzero(model[2].weight)) > 0
        assert kept_by(model, ("0.weight", "2.weight")) == 21


def test_a_tensor_of_zeros_takes_nothing_from_the_others():
    model = NETWORKS["mlp"][0]()
    nn.init.zeros_(model[4].weight)
    softprune.sparsify(model, STR(min_keep=5), goal=Params(100), schedule=constant())
    assert kept_by(model) == 100
    assert int(torch.count_nonzero(model[4].weight)) == 0


@pytest.mark.parametrize("method", [STR(), STR(rescale=True), GMP(every=3), ST3()], ids=["str", "scaled", "gmp", "st3"])
@pytest.mark.parametrize("what", ["support", "budget"])
def test_freezing_does_not_change_what_the_network_computes_and_loads_back(tmp_path, method, what):
    model, sparsifier, optimizer, x = trained(method, upto=16)
    before, early = model(x), copy.deepcopy(model)
    sparsifier.freeze(what)
    torch.testing.assert_close(model(x), before)
    step(model, optimizer, x)
    assert kept_by(model) == 123 or what == "budget"
    sparsifier.save(tmp_path)
    again = softprune.sparsify(NETWORKS["mlp"][0](), method, goal=Sparsity(0.9))
    again.load(tmp_path)
    assert torch.equal(again.model(x), model(x)) and again.frozen == what
    assert sum(round(d * n) for d, n in zip(sparsifier.measure().values(), (640, 512, 80), strict=True)) == 123
    softprune.bake(copy.deepcopy(model), at="now")
    if what == "support":
        with pytest.raises(ValueError, match="was frozen since this copy was made"):
            sparsifier.solve(early)


def test_a_rule_finds_a_tied_weight_by_any_of_its_names():
    model = Tied()
    rules = [Rule("out.weight", goal=Params(32))]
    softprune.sparsify(model, STR(), rules=rules, schedule=constant())
    assert int(torch.count_nonzero(model.embedding.weight)) == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"goal": 0.95}, r"did you mean Sparsity\(0.95\)"),
        ({"goal": 500}, r"did you mean Params\(500\)"),
        ({"goal": "90%"}, "got '90%'"),
        ({"rules": [Rule("0", goal=0.5)]}, r"did you mean Sparsity\(0.5\)"),
        ({"goal": Sparsity(0.9), "schedule": "cubic"}, "a schedule is cubic"),
    ],
    ids=["fraction", "count", "text", "rule", "schedule"],
)
def test_what_is_no_goal_or_schedule_is_refused_with_a_hint(arguments, message):
    model = NETWORKS["mlp"][0]()
    with pytest.raises(TypeError, match=message):
        softprune.sparsify(model, STR(), **arguments)
    assert isinstance(model[0].weight, nn.Parameter)


def test_a_goal_and_a_decay_of_thresholds_contradict_each_other():
    model = NETWORKS["mlp"][0]()
    sparsifier = softprune.sparsify(model, STR(), goal=Sparsity(0.9))
    with pytest.raises(ValueError, match="threshold_decay has no effect under a goal"):
        sparsifier.attach(torch.optim.SGD(model.parameters(), lr=0.1), total_steps=5, threshold_decay=0.1)


@pytest.mark.parametrize("method", [GMP(), ST3()], ids=["gmp", "st3"])
def test_methods_that_prune_to_a_total_ask_for_one(method):
    with pytest.raises(ValueError, match="prunes to a total"):
        softprune.sparsify(NETWORKS["mlp"][0](), method)


def test_a_method_without_a_total_takes_none():
    with pytest.raises(ValueError, match="KeepZeros takes neither a goal nor a budget"):
        softprune.sparsify(NETWORKS["mlp"][0](), softprune.methods.KeepZeros(), goal=Sparsity(0.5))


def test_a_budget_that_was_measured_is_met_by_another_method(tmp_path):
    _, sparsifier, _, _ = trained()
    sparsifier.save(tmp_path)
    learnt = Budget.load(tmp_path)
    _, other, _, _ = trained(GMP(every=5), goal=None, budget=learnt)
    assert dict(other.measure()) == dict(learnt) and learnt.overall == 1 - 123 / 1232
