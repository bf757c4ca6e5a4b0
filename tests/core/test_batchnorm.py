"""recalibrate_bn against statistics computed by hand."""

import copy

import pytest
import torch
from torch import nn

from softprune.core.bake import recalibrate_bn


def net():
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.Dropout(0.5), nn.BatchNorm2d(3, momentum=0.3), nn.Flatten(), nn.Linear(12, 4)
    )
    model[2].running_mean.fill_(7.0)
    model[2].running_var.fill_(9.0)
    model[2].num_batches_tracked.fill_(5)
    return model


def batches(n=3):
    return [torch.randn(8, 2, 4, 4) + i for i in range(n)]


def statistics(model, data):
    """The mean over the batches of each batch's mean and unbiased variance, in float64."""
    seen = [model[0](x).double() for x in data]
    mean = torch.stack([h.mean(dim=(0, 2, 3)) for h in seen]).mean(0)
    var = torch.stack([h.transpose(0, 1).flatten(1).var(dim=1, unbiased=True) for h in seen]).mean(0)
    return mean, var


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x, torch.zeros(8)), lambda x: [x], lambda x: {"input": x}])
@pytest.mark.parametrize("training", [True, False])
def test_statistics_by_hand(wrap, training):
    model, data = net().train(training), batches()
    assert recalibrate_bn(model, [wrap(x) for x in data]) is model
    with torch.no_grad():
        mean, var = statistics(model, data)
    torch.testing.assert_close(model[2].running_mean.double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model[2].running_var.double(), var, rtol=1e-5, atol=1e-6)


def test_flags_momentum_and_parameters_stay():
    model = net().train()
    model[1].eval()
    model[4].eval()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    recalibrate_bn(model, batches())
    assert [m.training for m in model] == [True, False, True, True, False] and model.training
    assert model[2].momentum == 0.3
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())


def test_only_so_many_batches():
    model, data = net(), batches(4)
    recalibrate_bn(model, iter(data), batches=2)
    with torch.no_grad():
        mean, _ = statistics(model, data[:2])
    torch.testing.assert_close(model[2].running_mean.double(), mean, rtol=1e-5, atol=1e-6)
    assert int(model[2].num_batches_tracked) == 2


def test_the_second_norm_sees_the_first_in_training_mode():
    model, data = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2)), [torch.randn(16, 3) * 5 + 2]
    recalibrate_bn(model, data)
    x = data[0]
    with torch.no_grad():
        hidden = model[1]((x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt())
    torch.testing.assert_close(model[2].running_mean, hidden.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model[2].running_var, hidden.var(0), rtol=1e-5, atol=1e-6)


def one_by_one():
    """Batch norm cannot take the variance of a single row: the second batch fails."""
    return nn.Sequential(nn.BatchNorm1d(3)), [torch.randn(4, 3), torch.randn(1, 3)]


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        (lambda: (net(), []), ValueError, "the loader gave no batch"),
        (lambda: (net(), [torch.randn(8, 2, 4, 4), torch.randn(8, 5, 4, 4)]), RuntimeError, "expected input"),
        (one_by_one, ValueError, "Expected more than 1 value"),
    ],
)
def test_an_error_leaves_everything_as_it_was(case, error, message):
    model, data = case()
    model.train()
    twin = copy.deepcopy(model)
    with pytest.raises(error, match=message):
        recalibrate_bn(model, data)
    for key, value in twin.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key
    assert all(m.training for m in model.modules())
    assert [m.momentum for m in model if isinstance(m, nn.BatchNorm2d)] == [
        m.momentum for m in twin if isinstance(m, nn.BatchNorm2d)
    ]


def test_an_interrupted_loader_leaves_everything_as_it_was():
    def interrupted():
        yield torch.randn(8, 2, 4, 4)
        raise KeyboardInterrupt

    model = net()
    with pytest.raises(KeyboardInterrupt):
        recalibrate_bn(model, interrupted())
    assert torch.equal(model[2].running_mean, torch.full((3,), 7.0)) and int(model[2].num_batches_tracked) == 5


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.BatchNorm1d(3, track_running_stats=False), nn.LayerNorm(2)])
def test_nothing_to_recalibrate(model):
    with pytest.raises(ValueError, match="has no batch norm with running statistics"):
        recalibrate_bn(model, [torch.zeros(4, 2)])


@pytest.mark.parametrize("count", [0, -1])
def test_no_batches_asked_for(count):
    model = net()
    with pytest.raises(ValueError, match="batches must be at least 1"):
        recalibrate_bn(model, batches(), batches=count)
    assert torch.equal(model[2].running_mean, torch.full((3,), 7.0))
