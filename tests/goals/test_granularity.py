"""What each granularity keeps and learns, on weights small enough to see."""

import pytest
import torch
from torch import nn

import softprune
from softprune import STR, Params, constant

FIRST, SECOND = [[8.0, -1.0], [3.0, 4.0]], [[6.0, -5.0]]


def made(granularity, kept=3, **settings):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    for layer, rows in zip(model, (FIRST, SECOND), strict=True):
        layer.weight.data = torch.tensor(rows)
    method = STR(granularity=granularity, start="equal", **settings)
    return model, softprune.sparsify(model, method, goal=Params(kept), schedule=constant())


def solved_with(granularity, scales, kept=3):
    """The weights in use where t = exp(s) has these values; the key of a weight is |w| / t."""
    model, sparsifier = made(granularity, kept)
    for target, scale in zip(sparsifier.targets, scales, strict=True):
        target.transform.s.copy_(torch.tensor(scale).log().view_as(target.transform.s))
    sparsifier.solve()
    return model[0].weight.tolist(), model[1].weight.tolist()


def test_equal_thresholds_are_one_for_all_weights():
    model, _ = made("tensor")
    # The border is 4, the largest weight that goes: 8, 6 and 5 stay, less 4.
    assert model[0].weight.tolist() == [[4.0, 0.0], [0.0, 0.0]]
    assert model[1].weight.tolist() == [[2.0, -1.0]]


def test_one_threshold_per_tensor():
    # Keys 8, 1, 3, 4 and 6 / 1.6 = 3.75, 5 / 1.6 = 3.125, which is the border: thresholds 3.125 and 5.
    first, second = solved_with("tensor", [1.0, 1.6])
    assert first == [[4.875, 0.0], [0.0, 0.875]] and second == [[1.0, 0.0]]


def test_a_floor_holds_the_largest_weight_of_a_tensor_that_has_none_above_the_border():
    # Keys 8, 1, 3, 4 and 3, 2.5: the two largest are in the first tensor, but each keeps one.
    first, second = solved_with("tensor", [1.0, 2.0], kept=2)
    assert first == [[4.0, 0.0], [0.0, 0.0]] and second == [[1.0, 0.0]]


def test_one_threshold_per_filter():
    # Keys [2, 1/4], [3, 4] and [6, 5] / 4 = [1.5, 1.25]; all but 1/4 and 1.25 stay.
    first, second = solved_with("filter", [[4.0, 1.0], [4.0]], kept=4)
    assert [[v != 0 for v in row] for row in first] == [[True, False], [True, True]]
    assert [v != 0 for v in second[0]] == [True, False]
    # The border is 1.25: thresholds 5, 1.25 and 5.
    assert first == [[3.0, 0.0], [1.75, 2.75]] and second == [[1.0, 0.0]]


def test_one_threshold_per_weight():
    # Keys 8/8, 1/0.1, 3/3, 4/1 and 6/12, 5/1: the border is 1.
    first, second = solved_with("weight", [[8.0, 0.1, 3.0, 1.0], [12.0, 1.0]])
    assert first[0][0] == 0.0 and first[1][0] == 0.0 and second[0][0] == 0.0
    assert first[0][1] == pytest.approx(-0.9) and first[1][1] == 3.0 and second[0][1] == -4.0


@pytest.mark.parametrize(("granularity", "shape"), [("tensor", (1,)), ("filter", (4, 1)), ("weight", (4, 6))])
def test_each_s_learns_by_itself(granularity, shape):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 4))
    sparsifier = softprune.sparsify(model, STR(granularity=granularity), goal=Params(20), schedule=constant())
    before = model[0].parametrizations.weight[0].s.clone()
    train(model, sparsifier)
    after = model[0].parametrizations.weight[0].s
    assert after.shape == shape
    assert int((after != before).sum()) >= max(1, after.numel() // 4)


def test_one_shared_threshold_has_nothing_to_learn():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 4))
    sparsifier = softprune.sparsify(model, STR(granularity="global"), goal=Params(20), schedule=constant())
    train(model, sparsifier)
    first, second = (t.transform for t in sparsifier.targets)
    assert float(first.s) == float(second.s) == 0.0
    sizes = torch.cat([t.raw.detach().abs().flatten() for t in sparsifier.targets])
    alive = torch.cat([t.effective.detach().flatten() != 0 for t in sparsifier.targets])
    assert int(alive.sum()) == 20 and sizes[alive].min() > sizes[~alive].max()


def train(model, sparsifier):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier.attach(optimizer, total_steps=10)
    x, y = torch.randn(16, 6), torch.randn(16, 4)
    for _ in range(10):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
