"""AutoSparse: STR whose pruned weights learn on, ever less, along a cosine."""

import copy
import math

import pytest
import torch
from small_training import network, step
from torch import nn

import softprune
from softprune import STR, Sparsity, constant, uniform
from softprune.methods import AutoSparse, from_config, to_config
from softprune.methods.transforms import SoftThreshold, SolvedThreshold

TOTAL = 20


def begun(method=None, *, lr=0.05, **arguments):
    model = network()
    sparsifier = softprune.sparsify(model, method or AutoSparse(), **arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-3)
    sparsifier.attach(optimizer, total_steps=TOTAL)
    return model, sparsifier, optimizer


def test_the_leak_falls_along_a_cosine():
    method = AutoSparse(leak=0.8, until=0.6)
    # (1 + cos(pi x)) / 2 at x = 0, 1/6, 1/3, 1/2, 1 and beyond
    by_hand = [0.8, 0.8 * (1 + math.sqrt(0.75)) / 2, 0.6, 0.4, 0.0, 0.0]
    assert [method.leak_at(p) for p in (0.0, 0.1, 0.2, 0.3, 0.6, 0.9)] == pytest.approx(by_hand, abs=1e-12)


def test_pruned_weights_get_that_part_of_the_gradient():
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1, -0.2, 0.6, -0.9]]))
    method = AutoSparse(leak=0.8, until=0.5, s_init=math.log(0.5), g=softprune.ops.Exp())
    sparsifier = softprune.sparsify(model, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, weight_decay=1e-3)
    sparsifier.attach(optimizer, total_steps=8)
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    raw, s = sparsifier.targets[0].raw, sparsifier.targets[0].transform.s
    for leak in (0.8, 0.8 * (1 + math.sqrt(0.5)) / 2, 0.4, 0.8 * (1 - math.sqrt(0.5)) / 2, 0.0, 0.0):
        optimizer.zero_grad()
        model(x).sum().backward()
        assert torch.allclose(raw.grad, torch.tensor([[leak, 2 * leak, 3.0, 4.0]]))
        # -g'(s) <grad, sign(w)> over those that live: -0.5 * (3 - 4)
        assert s.grad.tolist() == pytest.approx([0.5])
        optimizer.step()


def test_without_a_goal_s_is_in_the_optimizer_as_for_str():
    model, sparsifier, optimizer = begun(AutoSparse(s_init=-8.0))
    assert all(isinstance(t.transform, SoftThreshold) for t in sparsifier.targets)
    assert sparsifier.forecast is not None
    before = sparsifier.targets[0].transform.s.item()
    for number in range(5):
        step(model, optimizer, number)
    assert before == -8.0 and sparsifier.targets[0].transform.s.item() > before


def test_with_no_leak_it_is_str():
    ours, _, optimizer = begun(AutoSparse(leak=0.0, s_init=-4.0))
    theirs, _, other = begun(STR(s_init=-4.0))
    for number in range(TOTAL):
        step(ours, optimizer, number)
        step(theirs, other, number)
    state = ours.state_dict()
    assert all(torch.allclose(t, state[name], atol=1e-6) for name, t in theirs.state_dict().items())


@pytest.mark.parametrize("per_tensor", [False, True], ids=["goal", "budget"])
def test_a_total_is_met_exactly(per_tensor):
    profile = softprune.profile(network(), torch.zeros(1, 12))
    aim = {"budget": uniform(profile, Sparsity(0.75))} if per_tensor else {"goal": Sparsity(0.75)}
    model, sparsifier, optimizer = begun(**aim)
    for number in range(TOTAL):
        step(model, optimizer, number)
    assert all(isinstance(t.transform, SolvedThreshold) for t in sparsifier.targets)
    assert all(float(t.transform.leak) == 0.0 for t in sparsifier.targets)
    assert sparsifier.measure().params == 64
    if per_tensor:
        assert set(sparsifier.measure().values()) == {0.25}
    baked = sparsifier.bake()
    assert sum(int(torch.count_nonzero(baked[i].weight)) for i in (0, 2)) == 64


def test_a_pruned_weight_can_come_back():
    came_back = {}
    for leak in (0.0, 1.0):
        method = AutoSparse(leak=leak, pace=0.0)
        model, sparsifier, optimizer = begun(method, lr=0.5, goal=Sparsity(0.75), schedule=constant())
        first = [t.effective.detach() != 0 for t in sparsifier.targets]
        for number in range(TOTAL):
            step(model, optimizer, number)
        now = [t.effective.detach() != 0 for t in sparsifier.targets]
        came_back[leak] = sum(int((b & ~a).sum()) for a, b in zip(first, now, strict=True))
    assert came_back[1.0] > came_back[0.0]


@pytest.mark.parametrize("goal", [None, Sparsity(0.9)], ids=["none", "goal"])
def test_a_training_goes_on_bit_for_bit(tmp_path, goal):
    method = AutoSparse(s_init=-4.0)
    whole, _, optimizer = begun(method, goal=goal)
    for number in range(TOTAL):
        step(whole, optimizer, number)
    first, sparsifier, optimizer = begun(method, goal=goal)
    for number in range(9):
        step(first, optimizer, number)
    sparsifier.save(tmp_path)
    state = copy.deepcopy(optimizer.state_dict())
    second, sparsifier, optimizer = begun(method, goal=goal)
    sparsifier.load(tmp_path)
    optimizer.load_state_dict(state)
    for number in range(9, TOTAL):
        step(second, optimizer, number)
    theirs = whole.state_dict()
    assert all(torch.equal(t, theirs[name]) for name, t in second.state_dict().items())


def test_its_floor_holds_without_a_goal():
    model, sparsifier, optimizer = begun(AutoSparse(s_init=5.0, min_keep=3))
    assert all(count >= 3 for count in (int(torch.count_nonzero(t.effective)) for t in sparsifier.targets))
    step(model, optimizer, 0)
    assert all(count >= 3 for count in (int(torch.count_nonzero(t.effective)) for t in sparsifier.targets))


def test_it_is_plain_data():
    method = AutoSparse(leak=0.5, g=softprune.ops.Exp(2.0), s_init=-5.0)
    assert from_config(to_config(method)) == method
    assert to_config(AutoSparse()) == {"method": "autosparse"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"leak": 1.5}, r"\[0, 1\]"), ({"until": 0.0}, "above 0"), ({"s_init": math.nan}, "finite"),
     ({"min_keep": -1}, "min_keep"), ({"pace": -1.0}, "0 or more")],
)  # fmt: skip
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        AutoSparse(**fields)


def test_whole_weights_are_read_only_for_a_floor():
    assert AutoSparse().reads_weights is False and AutoSparse(min_keep=1).reads_weights is True
