"""Tables of times: what they say between the points, how they are kept, and what is refused."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import softprune
from softprune import Budget, Flops, Latency, LatencyTable, Profile, erk, scaled, uniform
from softprune.budget.costs import TensorCost
from softprune.budget.latency import Curve, LayerTime, isotonic
from softprune.goals.goal import checked_goal

DENSITIES = (0.01, 0.05, 0.1, 0.3, 1.0)


def table_of(**more):
    layers = (
        LayerTime("conv.weight", (8, 3, 3, 3), DENSITIES, (1e-3, 2e-3, 3e-3, 5e-3, 6e-3)),
        LayerTime("fc.weight", (10, 8), DENSITIES, (1e-4, 1e-4, 2e-4, 5e-4, 12e-4)),
    )
    return LatencyTable(
        layers, **{"fixed": 5e-4, "processor": "a cpu", "level": "avx2", "threads": 2, "batch": 3, **more}
    )


PROFILE = Profile((TensorCost("conv.weight", (8, 3, 3, 3), 21600), TensorCost("fc.weight", (10, 8), 80)))


def test_times_are_linear_between_points_and_go_on_with_the_slope_at_the_ends():
    table = table_of()
    assert table.seconds("conv.weight", 0.3) == pytest.approx(5e-3)
    assert table.seconds("conv.weight", 0.2) == pytest.approx(4e-3)
    # From 0.3 on 10 ms per unit of density as before it, up to nine tenths of the way to the dense time.
    assert table.seconds("conv.weight", 0.39) == pytest.approx(5.9e-3)
    assert table.seconds("conv.weight", 0.695) == pytest.approx(5.95e-3)
    assert Curve.through((0.1, 0.3, 1.0), (1.0, 2.0, 6.0))(0.65) == pytest.approx(4.0)  # rises faster: a straight line
    assert table.seconds("conv.weight", 0.0) == pytest.approx(7.5e-4)  # 1 ms less a quarter of the first rise
    short = Curve.through((0.1, 0.5), (1.0, 2.0))
    assert short(1.0) == pytest.approx(3.25) and short(0.0) == pytest.approx(0.75)
    assert Curve.through((0.1, 0.2), (1.0, 5.0))(0.0) == 0.0  # never negative


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=9))
def test_isotonic_rises_keeps_the_mean_and_leaves_what_rises_alone(values):
    found = isotonic(values)
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(found))
    assert math.fsum(found) == pytest.approx(math.fsum(values))
    assert isotonic(sorted(set(values))) == sorted(set(values))


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=6), st.floats(0, 1), st.floats(0, 1))
def test_a_curve_never_falls_and_is_never_negative(seconds, a, b):
    densities = [(n + 1) / len(seconds) for n in range(len(seconds))]
    curve = Curve.through(densities, seconds)
    low, high = curve(min(a, b)), curve(max(a, b))
    assert 0 <= low <= high * (1 + 1e-9) + 1e-9


def test_a_total_is_the_sum_and_what_is_not_named_is_dense():
    table = table_of()
    assert table.total({}) == pytest.approx(5e-4 + 6e-3 + 12e-4)
    assert table.total({"conv.weight": 0.1}) == pytest.approx(5e-4 + 3e-3 + 12e-4)
    with pytest.raises(ValueError, match="says nothing of other"):
        table.total({"other.weight": 0.5})
    with pytest.raises(KeyError, match="no tensor 'other'"):
        table.seconds("other", 0.5)
    with pytest.raises(ValueError, match="lies in"):
        table.seconds("fc.weight", 1.5)


def test_it_is_compared_with_a_budget():
    timing = table_of().of(Budget({"conv.weight": 0.1, "fc.weight": 0.05}, PROFILE))
    assert [(r.name, r.density) for r in timing.rows] == [("conv.weight", 0.1), ("fc.weight", 0.05)]
    assert timing.seconds == pytest.approx(5e-4 + 3e-3 + 1e-4) and timing.dense_seconds == pytest.approx(7.7e-3)
    assert timing.seconds == pytest.approx(timing.fixed + sum(r.seconds for r in timing.rows))
    other = Profile((TensorCost("conv.weight", (8, 3, 5, 5), 1), TensorCost("new.weight", (2, 2), 1)))
    with pytest.raises(ValueError, match=r"lacks new.weight; conv.weight is 8x3x3x3 there and 8x3x5x5 here"):
        table_of().of(Budget({"conv.weight": 0.1, "new.weight": 0.05}, other))


def test_a_file_holds_all_of_it_and_equal_tables_have_one_digest(tmp_path):
    table = table_of()
    path = table.save(tmp_path / "table.json")
    assert LatencyTable.load(path) == table and hash(LatencyTable.load(path)) == hash(table)
    assert LatencyTable.load(path).digest == table.digest != table_of(fixed=6e-4).digest
    assert [p.name for p in tmp_path.iterdir()] == ["table.json"]
    with pytest.raises(ValueError, match=r"saved as \.json"):
        table.save(tmp_path / "table.csv")


def broken(change):
    document = json.loads(json.dumps(table_of().to_dict()))
    change(document)
    return document


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(format="softprune-budget"), "format"),
        (lambda d: d.update(version=2), "version 2"),
        (lambda d: d.update(layers=[]), "at least one tensor"),
        (lambda d: d.update(layers={}), "no list 'layers'"),
        (lambda d: d["layers"].append(d["layers"][0]), "repeated: conv.weight"),
        (lambda d: d["layers"].append(7), "layer 2 needs a name"),
        (lambda d: d["layers"][0].update(name=""), "the name of layer 0"),
        (lambda d: d["layers"][0].update(shape=[8, -3]), "shape of conv.weight"),
        (lambda d: d["layers"][0].update(shape=None), "list 'shape'"),
        (lambda d: d["layers"][0].update(densities=[0.1, 0.1, 0.2, 0.3, 1]), "must rise within"),
        (lambda d: d["layers"][0].update(densities=[0.0, 0.1, 0.2, 0.3, 1]), "must rise within"),
        (lambda d: d["layers"][0].update(densities=[0.1, 0.2, 0.3, 0.4, 1.1]), "must rise within"),
        (lambda d: d["layers"][0].update(densities=[0.1]), "two densities or more"),
        (lambda d: d["layers"][0].update(seconds=[1, 2, 3, 4]), "as many seconds, got 5 and 4"),
        (lambda d: d["layers"][0].update(seconds=[1, 2, 3, 4, -5]), "not negative"),
        (lambda d: d["layers"][0].update(seconds=[1, 2, 3, 4, "5"]), "must be a number, got '5'"),
        (lambda d: d["layers"][0].update(seconds=[1, 2, 3, 4, 10**400]), "too large"),
        (lambda d: d.update(fixed=-1), "fixed seconds"),
        (lambda d: d.update(fixed=None), "fixed must be a number"),
        (lambda d: d.update(threads=0), "threads must be a whole number"),
        (lambda d: d.update(batch=1.5), "batch must be a whole number"),
        (lambda d: d.update(processor=5), "processor must be a text"),
    ],
)
def test_hostile_tables_are_refused_by_name(tmp_path, change, words):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(broken(change)))
    with pytest.raises(ValueError, match=words) as caught:
        LatencyTable.load(path)
    assert "table.json" in str(caught.value)


def test_text_that_is_no_table(tmp_path):
    path = tmp_path / "table.json"
    for text in ("", "[]", '{"fixed": NaN}', '{"a": 1, "a": 2}', "\x00"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"table.json"):
            LatencyTable.load(path)


def test_the_goal():
    table = table_of()
    assert checked_goal(Latency(3, table)) == Latency(3.0, table) and Latency(3, table).seconds == 0.003
    assert repr(Latency(3, table)) == f"Latency(ms=3.0, table {table.digest})"
    for ms in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="Latency needs"):
            Latency(ms, table)
    with pytest.raises(TypeError, match=r"LatencyTable.load"):
        Latency(3, "table.json")


@given(st.floats(1.45, 7.69))
def test_allocators_meet_it(ms):
    goal = Latency(ms, table_of())
    like = Budget({"conv.weight": 0.2, "fc.weight": 0.01}, PROFILE)
    for budget in (uniform(PROFILE, goal), erk(PROFILE, goal), scaled(PROFILE, goal, like=like)):
        assert goal.table.total(dict(budget)) == pytest.approx(goal.seconds, rel=1e-9)


def test_allocators_count_what_stays_whole_or_empty():
    goal = Latency(5, table_of())
    budget = uniform(PROFILE, goal, dense=["fc.weight"])
    assert budget["fc.weight"] == 1.0 and goal.table.total(dict(budget)) == pytest.approx(0.005)
    like = Budget({"conv.weight": 0.2, "fc.weight": 0.0}, PROFILE)
    budget = scaled(PROFILE, goal, like=like)
    assert budget["fc.weight"] == 0.0 and goal.table.total(dict(budget)) == pytest.approx(0.005)


def test_what_cannot_be_reached_names_what_can():
    with pytest.raises(ValueError, match=r"reaches from 1\.3500 to 7\.7000 milliseconds with 2 threads and a batch"):
        uniform(PROFILE, Latency(0.9, table_of()))
    with pytest.raises(ValueError, match="cannot be reached"):
        uniform(PROFILE, Latency(8, table_of()))
    with pytest.raises(ValueError, match=r"another network: it lacks new.weight"):
        uniform(Profile((TensorCost("new.weight", (2, 2), 4),)), Latency(5, table_of()))


def test_global_magnitude_meets_it_to_a_weight():
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.ModuleDict({"conv": nn.Conv2d(3, 8, 3), "fc": nn.Linear(8, 10)})
    for ms in (1.5, 2.0, 4.0, 7.0, 7.7):
        goal = Latency(ms, table_of())
        budget = softprune.global_magnitude(model, goal)
        spent = goal.table.total(dict(budget))
        assert goal.seconds - 1.2e-4 < spent <= goal.seconds + 1e-12  # conv: 25 ms per unit of density, 216 weights
    kept = [torch.full((8, 3, 3, 3), 0.5), torch.full((10, 8), 0.5)]
    with torch.no_grad():
        for layer, weight in zip(model.values(), kept, strict=True):
            layer.weight.copy_(weight)
    tied = softprune.global_magnitude(model, Latency(4.0, table_of()))
    assert tied["fc.weight"] == 0.0 and tied["conv.weight"] > 0.1  # equal weights go by the order of the tensors
    assert softprune.global_magnitude(model, Flops(21680), profile=PROFILE).overall == 0.0
