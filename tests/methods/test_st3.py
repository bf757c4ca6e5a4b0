"""ST-3 by hand: Vanderschueren and De Vleeschouwer 2023; sigma ranks |w| * sqrt(sum of the dimensions)."""

import pytest
import torch
from torch import nn

import softprune
from softprune import GMP, ST3, Params, constant


def two_layers():
    """Sums of dimensions 2 + 2 = 4 and 8 + 1 = 9, roots 2 and 3."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(8, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.8, 0.7], [0.6, 0.1]]))
        model[1].weight.copy_(torch.tensor([[0.5, -0.45, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1]]))
    return model


def living(model):
    return [(layer.weight != 0).int().flatten().tolist() for layer in model]


def test_one_threshold_for_all_weights():
    model = two_layers()
    softprune.sparsify(model, ST3(), goal=Params(4), schedule=constant())
    assert living(model) == [[1, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0, 0]]


def test_sigma_compares_scaled_weights():
    # Keys 1.6, 1.4, 1.2, 0.2 and 1.5, 1.35, 0.9, ...: the four largest are 1.6, 1.5, 1.4, 1.35.
    model = two_layers()
    sparsifier = softprune.sparsify(model, ST3(sigma=True), goal=Params(4), schedule=constant())
    assert living(model) == [[1, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]]
    # The border lies at the fifth key, 1.2: thresholds 1.2 / 2 and 1.2 / 3.
    assert [float(t.transform.alpha) for t in sparsifier.targets] == pytest.approx([0.6, 0.4], rel=1e-5)


def test_the_weight_in_use_is_shrunk_and_scaled():
    # c = 1.01 / (0.01 + r) per filter, r the share of |w| that survives.
    model = two_layers()
    sparsifier = softprune.sparsify(model, ST3(sigma=True), goal=Params(4), schedule=constant())
    share = (0.5 + 0.45) / (0.5 + 0.45 + 0.3 + 0.2 + 0.4)
    alpha = float(sparsifier.targets[1].transform.alpha)
    wanted = 1.01 / (0.01 + share) * (0.5 - alpha)
    assert model[1].weight[0, 0].item() == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("method", [ST3(), ST3(sigma=True), GMP(every=1)], ids=["st3", "sigma", "gmp"])
def test_a_tensor_that_was_at_its_floor_is_measured_like_all_others_afterwards(method):
    # All but the floor of the second would go at first; when its weights have grown they count as much as others.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 20, bias=False), nn.Linear(20, 20, bias=False))
    with torch.no_grad():
        model[1].weight.mul_(0.01)
    sparsifier = softprune.sparsify(model, method, goal=Params(160), schedule=constant())
    assert int(torch.count_nonzero(model[1].weight)) <= 5
    with torch.no_grad():
        sparsifier.targets[1].raw.mul_(100.0)
    for _ in range(5):
        sparsifier.solve()
    raw = torch.cat([t.raw.detach().abs().flatten() for t in sparsifier.targets])
    alive = torch.cat([(t.effective != 0).flatten() for t in sparsifier.targets])
    assert int(alive.sum()) == 160 and raw[alive].min() > raw[~alive].max()


def test_sigma_is_a_fact():
    with pytest.raises(TypeError, match="sigma is true or false"):
        ST3(sigma="yes")
