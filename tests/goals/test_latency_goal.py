"""A time as the goal: the table's prediction is met to a weight, on every kind of network, wherever it is looked at."""

import copy
import itertools

import pytest
import torch
from goal_training import train
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_tables import made_table
from networks import NETWORKS
from selected import selected
from torch import nn

import softprune
from softprune import GMP, STR, Latency, Rule, constant, cubic
from softprune.budget.costs import AlongCurve, PerWeight
from softprune.goals.select import Ranked
from softprune.methods import DSR, SNIP


def reachable(table, names, share):
    """The milliseconds at this share between none of the weights and all."""
    low, high = table.total(dict.fromkeys(names, 0.0)), table.total({})
    return 1e3 * (low + share * (high - low))


def one_weight(goal, sizes):
    """The most that one weight can add to the total."""
    slopes = []
    for name, size in sizes.items():
        curve = goal.table.curve(name)
        pairs = list(zip(curve.densities, curve.seconds, strict=True))
        slopes += [(d - b) / (c - a) / size for (a, b), (c, d) in itertools.pairwise(pairs)]
    return max(slopes)


@pytest.mark.parametrize("kind", ["mlp", "depthwise", "resnet", "tied", "lstm", "float64"])
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(share=st.floats(0.1, 0.99), seed=st.integers(0, 1000))
def test_the_prediction_is_met_at_the_end_in_a_file_and_after_bake(kind, share, seed, tmp_path_factory):
    torch.manual_seed(seed)
    build, inputs = NETWORKS[kind]
    model = build()
    table = made_table(model, seed)
    names = [layer.name for layer in table.layers]
    goal = Latency(reachable(table, names, share), table)
    sparsifier = softprune.sparsify(model, STR(), goal=goal, schedule=cubic(0.2, 0.8))
    train(model, sparsifier, inputs(), 5)
    sizes = {t.name: t.raw.numel() for t in sparsifier.targets}
    spent = table.total(sparsifier.measure().densities)
    assert goal.seconds - one_weight(goal, sizes) - 1e-15 < spent <= goal.seconds + 1e-15
    sparsifier.save(tmp_path_factory.mktemp("latency"))
    densities = sparsifier.measure().densities
    baked = dict(sparsifier.bake().named_parameters())
    assert {n: int(torch.count_nonzero(baked[n])) / sizes[n] for n in names} == dict(densities)
    assert min(densities.values()) > 0


def test_the_total_is_met_at_every_step_and_never_grows():
    torch.manual_seed(0)
    build, inputs = NETWORKS["resnet"]
    model = build()
    table = made_table(model, 5)
    goal = Latency(reachable(table, [x.name for x in table.layers], 0.3), table)
    sparsifier = softprune.sparsify(model, STR(), goal=goal, schedule=cubic(0.1, 0.9))
    constraint, seen = sparsifier.goals[0], []
    fixed = table.total({}) - constraint.full

    def look():
        spent = table.total(sparsifier.measure().densities) - fixed
        seen.append((spent, constraint.allowed(sparsifier.progress)))

    train(model, sparsifier, inputs(), 10, look=look)
    sizes = {t.name: t.raw.numel() for t in sparsifier.targets}
    assert all(allowed - one_weight(goal, sizes) - 1e-15 < spent <= allowed + 1e-15 for spent, allowed in seen)
    allowed = [a for _, a in seen]
    assert allowed == sorted(allowed, reverse=True) and allowed[-1] == constraint.final < allowed[1] < constraint.full


def test_a_flat_start_of_the_curve_does_not_take_most_weights_at_once():
    """Between densities 0.3 and 1 the time hardly changes; the total follows the density that it stands for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 100))
    table = made_table(model)
    layer = table.layers[0]
    flat = copy.copy(layer)
    object.__setattr__(flat, "seconds", (1e-6, 5e-6, 1e-5, 3e-5, 3.01e-5))
    table = softprune.LatencyTable((flat,), 0.0, "made up", "none", 1, 1)
    sparsifier = softprune.sparsify(model, STR(), goal=Latency(0.01, table), schedule=cubic(0.0, 1.0))
    assert sparsifier.goals[0].density == pytest.approx(0.1)
    densities = []
    train(model, sparsifier, torch.randn(8, 100), 20, look=lambda: densities.append(sparsifier.measure()["0.weight"]))
    assert 0.85 < densities[0] < 0.9 and densities[-1] == pytest.approx(0.1, abs=1e-3)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), fraction=st.floats(0.02, 0.98), same=st.booleans())
def test_a_selection_equals_that_of_a_full_sort(seed, fraction, same):
    torch.manual_seed(seed)
    model = nn.ModuleList([nn.Linear(30, 40, bias=False), nn.Linear(7, 5, bias=False), nn.Conv2d(8, 16, 3, bias=False)])
    table = made_table(model, seed)
    tensors = {n: p.detach().clone() for n, p in model.named_parameters()}
    if same:  # many equal sizes
        tensors = {n: (8 * w / w.abs().max()).round() / 8 for n, w in tensors.items()}
    candidates = [Ranked(w, torch.ones(1), AlongCurve(table.curve(n), w.numel())) for n, w in tensors.items()]
    full = sum(c.cost.of(c.w.numel()) for c in candidates)
    none = sum(c.cost.of(0) for c in candidates)
    allowed = none + fraction * (full - none)
    order = sorted(
        ((-float(size), number) for number, c in enumerate(candidates) for size in c.w.abs().flatten()),
        key=lambda entry: entry[0],
    )
    counts = [0] * len(candidates)
    for size, number in order:
        more = [n + (i == number) for i, n in enumerate(counts)]
        if size == 0 or sum(c.cost.of(n) for c, n in zip(candidates, more, strict=True)) > allowed:
            break
        counts = more
    found, _ = selected(candidates, allowed)
    assert [f.kept for f in found] == counts


def test_going_on_from_a_file_equals_training_through(tmp_path):
    def begin():
        torch.manual_seed(3)
        model = NETWORKS["depthwise"][0]()
        table = made_table(model, 3)
        goal = Latency(reachable(table, [x.name for x in table.layers], 0.3), table)
        return model, softprune.sparsify(model, STR(), goal=goal, schedule=cubic(0.1, 0.9))

    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model, sparsifier = begin()
    train(model, sparsifier, x, 8)
    half, first = begin()
    optimizer = train(half, first, x, 4, total=8)
    first.save(tmp_path)
    again, second = begin()
    other = torch.optim.SGD(again.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    second.attach(other, total_steps=8)
    second.load(tmp_path)
    other.load_state_dict(optimizer.state_dict())
    for _ in range(4):
        other.zero_grad()
        again(x).square().mean().backward()
        other.step()
    assert second.measure().densities == sparsifier.measure().densities
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def test_another_table_is_another_goal(tmp_path):
    model, other = NETWORKS["mlp"][0](), NETWORKS["mlp"][0]()
    table, slower = made_table(model, 0), made_table(model, 1)
    ms = max(reachable(t, [x.name for x in t.layers], 0.4) for t in (table, slower))
    ms = min(ms, 999e3 * table.total({}), 999e3 * slower.total({}))
    softprune.sparsify(model, STR(), goal=Latency(ms, table)).save(tmp_path)
    with pytest.raises(ValueError, match=f"table {table.digest}"):
        softprune.sparsify(other, STR(), goal=Latency(ms, slower)).load(tmp_path)


def test_floors_hold_and_the_slope_is_the_cost_of_a_crossing():
    torch.manual_seed(0)
    model = NETWORKS["mlp"][0]()
    table = made_table(model, 2)
    names = [x.name for x in table.layers]
    with torch.no_grad():
        model[2].weight.mul_(1e-6)  # would lose everything
    goal = Latency(reachable(table, names, 0.6), table)
    sparsifier = softprune.sparsify(model, STR(min_keep=40, start="equal"), goal=goal, schedule=constant())
    assert sparsifier.measure()["2.weight"] == 40 / 512
    spent = table.total(sparsifier.measure().densities)
    sizes = {t.name: t.raw.numel() for t in sparsifier.targets}
    assert goal.seconds - one_weight(goal, sizes) < spent <= goal.seconds
    price = AlongCurve(table.curve("0.weight"), 640)
    assert price.slope(320) == pytest.approx((price.of(352) - price.of(288)) / 64)
    assert price.slope(0) == pytest.approx(price.of(1) - price.of(0)) and price.slope(640) > 0
    assert PerWeight(3.0).slope(10) == 1.0 and PerWeight(3.0).most == 3.0


def test_masks_of_gmp_and_parts_of_a_network():
    torch.manual_seed(0)
    build, inputs = NETWORKS["resnet"]
    model = build()
    table = made_table(model, 9)
    names = [x.name for x in table.layers]
    goal = Latency(reachable(table, names, 0.3), table)
    sparsifier = softprune.sparsify(model, GMP(every=2), goal=goal)
    train(model, sparsifier, inputs(), 4)
    sizes = {t.name: t.raw.numel() for t in sparsifier.targets}
    assert table.total(sparsifier.measure().densities) == pytest.approx(goal.seconds, abs=one_weight(goal, sizes))
    other = build()
    part = [name for name in names if name.startswith("layer3")]
    goal = Latency(reachable(table, part, 0.5), table)
    sparsifier = softprune.sparsify(other, STR(), rules=[Rule("layer3.*", goal=goal)], schedule=constant())
    measured = sparsifier.measure().densities
    assert set(measured) == set(part)
    assert table.total(measured) == pytest.approx(goal.seconds, abs=one_weight(goal, {n: sizes[n] for n in part}))


def test_refusals_leave_the_model_alone():
    model = NETWORKS["mlp"][0]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    table = made_table(model)
    most = 1e3 * table.total({})
    with pytest.raises(ValueError, match="cannot be reached: its table reaches from"):
        softprune.sparsify(model, STR(), goal=Latency(1.01 * most, table))
    with pytest.raises(ValueError, match="cannot be reached: its table reaches from"):
        softprune.sparsify(model, STR(), goal=Latency(1e-6, table))
    with pytest.raises(ValueError, match=r"another network: it lacks 4.weight\. Measure one"):
        softprune.sparsify(model, STR(), goal=Latency(most, made_table(model, names=["0.weight", "2.weight"])))
    with pytest.raises(ValueError, match=r"0.weight is 32x20 there and 32x10 here"):
        softprune.sparsify(nn.Sequential(nn.Linear(10, 32)), STR(), goal=Latency(most, table))
    with pytest.raises(ValueError, match=r"floors of the 3 tensors \(min_keep\) take"):
        low = reachable(table, [x.name for x in table.layers], 0.05)
        softprune.sparsify(model, STR(min_keep=500), goal=Latency(low, table))
    for method in (DSR(), SNIP()):
        if "goal" in method.accepts:
            with pytest.raises(ValueError, match=r"counts milliseconds: divide it first|cannot"):
                softprune.sparsify(model, method, goal=Latency(0.5 * most, table))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
