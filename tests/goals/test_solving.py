"""The solver by hand: where thresholds start, what floors do to them, and what cannot be solved."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import softprune
from softprune import STR, Latency, Params, Sparsity, constant
from softprune.budget.latency import LatencyTable, LayerTime
from softprune.goals.solve import solve
from softprune.methods import ST3

ROWS = ([[8.0, -1.0], [3.0, 4.0]], [[6.0, -5.0]])


def made(method, kept, rows=ROWS):
    model = nn.Sequential(*(nn.Linear(len(row[0]), len(row), bias=False) for row in rows))
    for layer, row in zip(model, rows, strict=True):
        layer.weight.data = torch.tensor(row)
    return softprune.sparsify(model, method, goal=Params(kept), schedule=constant())


def state(sparsifier, name):
    return [float(t.transform.get_buffer(name)) for t in sparsifier.targets]


@pytest.mark.parametrize(
    ("method", "s"),
    [
        (STR(start="equal"), [0.0, 0.0]),
        (STR(start="mean"), [math.log(4.0), math.log(5.5)]),
        (ST3(sigma=True), [-0.5 * math.log(4.0), -0.5 * math.log(3.0)]),
    ],
    ids=["equal", "mean", "dimensions"],
)
def test_where_thresholds_start(method, s):
    assert state(made(method, 5), "s") == pytest.approx(s, rel=1e-6)


@pytest.mark.parametrize("rows", [([[0.0, 0.0]], [[6.0, -5.0]]), ([[math.inf, 1.0]], [[6.0, -5.0]])])
def test_a_mean_that_is_no_size_starts_at_one(rows):
    sparsifier = made(STR(start="mean"), 2, ([[1.0, 1.0]], rows[1]))
    with torch.no_grad():
        sparsifier.targets[0].transform.s.fill_(math.nan)
        sparsifier.targets[0].raw.copy_(torch.tensor(rows[0]))
        solve(sparsifier.goals[0], 2)
    # Whatever the floor then does to it, it is a number.
    assert math.isfinite(state(sparsifier, "s")[0])


@pytest.mark.parametrize("size", [1.0, 1 / 1024])
@pytest.mark.parametrize(("pace", "s"), [(3.0, math.log(1.25)), (0.5, math.log(1.25)), (0.0, math.log(2.0))])
def test_a_tensor_at_its_floor_is_told_what_that_means_if_it_learns(pace, s, size):
    # Keys 8, 1, 3, 4 and, with t = 2, 3 and 2.5: the second keeps one at a border of 2.5 while that of the first is 4.
    sparsifier = made(STR(pace=pace), 2, [[[size * w for w in line] for line in rows] for rows in ROWS])
    first, second = (t.transform for t in sparsifier.targets)
    second.s.fill_(math.log(2.0))
    second.pull.fill_(7.0)
    sparsifier.solve()
    assert (float(first.alpha), float(second.alpha)) == (4.0 * size, 5.0 * size)
    assert float(second.s) == pytest.approx(s, abs=1e-6) and float(first.s) == 0.0
    assert (float(second.pull), float(second.crossing)) == (0.0, 0.0)


def test_room_for_all_is_no_threshold_at_all():
    sparsifier = made(STR(), 5)
    (constraint,) = sparsifier.goals
    assert min(state(sparsifier, "alpha")) > 0.0
    solve(constraint, constraint.full)
    assert state(sparsifier, "alpha") == [0.0, 0.0] == state(sparsifier, "crossing")
    solve(constraint, constraint.full - 1)
    assert sum(int(torch.count_nonzero(t.effective)) for t in sparsifier.targets) == 5
    # Keys 8, 1, 3, 4, 6, 5: the border is 1.
    assert state(sparsifier, "alpha") == [1.0, 1.0] and constraint.predictor.last == 0.0


def test_tensors_on_several_devices_are_refused_by_name():
    (constraint,) = made(STR(), 5).goals
    away = SimpleNamespace(raw=torch.empty(2, device="meta"), transform=constraint.tensors[1].transform)
    scattered = replace(constraint, tensors=(constraint.tensors[0], replace(constraint.tensors[1], target=away)))
    with pytest.raises(ValueError, match=r"on several devices \(cpu, meta\), whose weights cannot be compared"):
        solve(scattered, 3)


def test_sizes_that_the_processor_takes_for_zero_are_refused():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps denormal numbers")
    try:
        tiny = ([[8e-36, -1e-36], [3e-36, 4e-36]], [[6e-36, -5e-36]])
        with pytest.raises(ValueError, match=r"torch\.set_flush_denormal"):
            made(STR(), 3, tiny)
        assert state(made(STR(), 3), "alpha") == [4.0, 4.0], "others are fine"
    finally:
        torch.set_flush_denormal(False)
    assert state(made(STR(), 3, tiny), "alpha") == pytest.approx([4e-36, 4e-36], rel=1e-6)


def test_a_tensor_of_zeros_has_no_floor():
    # Nothing of it can be kept, so the other has the whole total.
    sparsifier = made(STR(), 2, ([[8.0, -1.0], [3.0, 4.0]], [[0.0, 0.0]]))
    assert [int(torch.count_nonzero(t.effective)) for t in sparsifier.targets] == [2, 0]


def test_a_dearer_weight_is_worth_more_crossings():
    sparsifier = softprune.sparsify(nn.Linear(100, 100, bias=False), STR(), goal=Sparsity(0.5), schedule=constant())
    (constraint,) = sparsifier.goals
    before = float(constraint.tensors[0].transform.crossing)
    # Uniform sizes up to u with the border in the middle: of 10,000 weights as many as lie below it meet it per log.
    assert before == pytest.approx(5000, rel=0.1)
    # The same in seconds, of which each weight takes two millionths.
    layer = LayerTime("weight", (100, 100), (0.1, 1.0), (0.002, 0.02))
    table = LatencyTable((layer,), fixed=0.0, processor="a", level="avx2", threads=1, batch=1)
    goal = Latency(10.0, table)
    sparsifier = softprune.sparsify(nn.Linear(100, 100, bias=False), STR(), goal=goal, schedule=constant())
    assert float(sparsifier.goals[0].tensors[0].transform.crossing) == pytest.approx(5000 * 2e-6, rel=0.1)
