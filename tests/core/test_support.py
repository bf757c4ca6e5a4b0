"""freeze_support: fine-tune any sparse checkpoint without losing a zero."""

import pytest
import torch
from torch import nn

from softprune.core.sparsify import freeze_support


def sparse_net():
    """Two layers with zeros, one without."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 3))
    with torch.no_grad():
        for layer in (model[0], model[4]):
            layer.weight[layer.weight.abs() < 0.1] = 0.0
    assert bool((model[0].weight == 0).any()) and bool((model[4].weight == 0).any())
    return model


def train(model, optimizer, steps=15):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 2, 4, 4)), torch.randint(0, 3, (8,))).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_zeros_stay_and_the_rest_trains(kind):
    model = sparse_net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    keys, x = list(model.state_dict()), torch.randn(3, 2, 4, 4)
    expected = model(x)
    sparsifier = freeze_support(model)
    assert torch.equal(model(x), expected)
    assert [t.name for t in sparsifier.targets] == ["0.weight", "4.weight"]
    arguments = {"momentum": 0.9, "weight_decay": 0.1} if kind is torch.optim.SGD else {"weight_decay": 0.1}
    train(model, kind(model.parameters(), lr=0.01, **arguments))
    assert sparsifier.bake() is model and list(model.state_dict()) == keys
    for name, p in model.named_parameters():
        dead = before[name] == 0
        assert not p[dead].any() if name in ("0.weight", "4.weight") else True
        assert bool((p[~dead] != before[name][~dead]).all())


def test_density_is_counted_and_tied_zeros_stay_tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with torch.no_grad():
        model[0].weight[:, :2] = 0.0
    sparsifier = freeze_support(model)
    assert dict(sparsifier.measure()) == {"0.weight": 0.5}
    model(torch.randn(2, 4)).sum().backward()
    assert not sparsifier.targets[0].raw.grad[:, :2].any()
    sparsifier.bake()
    assert model[0].weight is model[1].weight


def test_a_compiled_model():
    model = sparse_net()
    sparsifier = freeze_support(torch.compile(model, backend="eager"))
    assert sparsifier.model is model and [t.name for t in sparsifier.targets] == ["0.weight", "4.weight"]


def test_without_zeros_there_is_nothing_to_keep():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with torch.no_grad():
        model[0].bias.zero_()  # a bias is no weight
    with pytest.raises(ValueError, match=r"Sequential has no zero in its weights.*load the sparse checkpoint first"):
        freeze_support(model)
    assert [type(m) for m in model] == [nn.Linear, nn.Linear]


def test_frozen_twice_is_refused():
    model = sparse_net()
    freeze_support(model)
    with pytest.raises(ValueError, match=r"0\.weight is sparsified already"):
        freeze_support(model)
