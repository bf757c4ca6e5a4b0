"""Layers of low rank: the matrix they stand for, where they start from, and how small they fold."""

import pytest
import torch
from torch import nn

from softprune.nn import LowRankConv2d, LowRankLinear, fold
from softprune.nn.low_rank import stored_weights


def test_the_matrix_is_the_weighted_sum_of_its_directions():
    layer = LowRankLinear(3, 2, rank=2, learned=True, bias=False)
    with torch.no_grad():
        layer.up.copy_(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
        layer.down.copy_(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))
        layer.m.copy_(torch.tensor([2.0, 3.0]))
    assert layer.weight.tolist() == [[2.0, 6.0, 2.0], [0.0, 3.0, 0.0]]
    assert layer(torch.tensor([[1.0, 1.0, 1.0]])).tolist() == [[10.0, 3.0]]


@pytest.mark.parametrize("rank", [0, -1, 4])
def test_a_rank_out_of_range_is_refused(rank):
    with pytest.raises(ValueError, match=f"the rank of a 5 x 3 matrix is 1 to 3; got {rank}"):
        LowRankLinear(3, 5, rank=rank)


@pytest.mark.parametrize("learned", [True, False])
def test_from_dense_is_the_same_layer_at_full_rank(learned):
    dense = nn.Linear(7, 5)
    thin = LowRankLinear.from_dense(dense, learned=learned)
    x = torch.randn(4, 7)
    torch.testing.assert_close(thin(x), dense(x), rtol=1e-5, atol=1e-6)
    assert (thin.m is not None) == learned


def test_from_dense_keeps_the_largest_singular_values():
    dense = nn.Linear(7, 5, bias=False)
    thin = LowRankLinear.from_dense(dense, rank=2)
    values = torch.linalg.svdvals(dense.weight)
    torch.testing.assert_close(thin.m.detach(), values[:2].detach(), rtol=1e-5, atol=1e-6)
    # The rest of the matrix is what the other singular values say (Eckart and Young).
    torch.testing.assert_close((dense.weight - thin.weight).norm(), values[2:].norm(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_pointwise_convolution_can_be_split_and_folded(stride):
    dense = nn.Conv2d(6, 9, 1, stride=stride)
    thin = LowRankLinear.from_dense(dense)
    x = torch.randn(2, 6, 5, 4)
    torch.testing.assert_close(thin(x), dense(x), rtol=1e-4, atol=1e-5)
    assert isinstance(fold(thin), nn.Conv2d)
    torch.testing.assert_close(fold(thin)(x), dense(x), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        thin.linear.m[2:] = 0
    small = fold(thin)
    assert isinstance(small, LowRankConv2d)
    assert small.linear.rank == 2
    torch.testing.assert_close(small(x), thin(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 4, 1, padding=1)])
def test_other_convolutions_are_refused(layer):
    with pytest.raises(ValueError, match="only a 1 x 1 convolution without groups and padding is a matrix"):
        LowRankLinear.from_dense(layer)


def test_other_layers_are_refused():
    with pytest.raises(ValueError, match="a Linear or a 1 x 1 Conv2d can be split; got a ReLU"):
        LowRankLinear.from_dense(nn.ReLU())


def test_lengths_can_be_moved_into_m():
    layer = LowRankLinear(6, 5, learned=True)
    before = layer.weight.detach().clone()
    layer.normalise_()
    torch.testing.assert_close(layer.weight.detach(), before)
    torch.testing.assert_close(layer.up.detach().norm(dim=0), torch.ones(5))
    torch.testing.assert_close(layer.down.detach().norm(dim=1), torch.ones(5))
    with pytest.raises(ValueError, match="make the layer with learned=True"):
        LowRankLinear(6, 5).normalise_()


@pytest.mark.parametrize(
    ("alive", "kind", "weights"),
    [(2, LowRankLinear, 32), (3, LowRankLinear, 48), (4, nn.Linear, 64), (8, nn.Linear, 64)],
)
def test_folding_stores_whichever_is_smaller_and_changes_no_result(alive, kind, weights):
    layer = LowRankLinear(8, 8, learned=True)
    with torch.no_grad():
        layer.m.copy_(torch.randn(8))
        layer.m[torch.randperm(8)[alive:]] = 0
    folded = layer.folded()
    assert type(folded) is kind
    assert sum(p.numel() for name, p in folded.named_parameters() if name != "bias") == weights
    assert stored_weights(8, 8, rank=alive) == weights
    x = torch.randn(5, 8)
    torch.testing.assert_close(folded.weight, layer.weight, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(folded(x), layer(x), rtol=1e-5, atol=1e-6)


def test_a_dead_layer_folds_to_zeros():
    layer = LowRankLinear(8, 8, learned=True)
    torch.nn.init.zeros_(layer.m)
    folded = layer.folded()
    assert folded.rank == 1
    assert torch.equal(folded(torch.randn(3, 8)), layer.bias.expand(3, 8))


def test_folding_a_model_leaves_it_alone_and_keeps_precision_and_mode():
    model = nn.Sequential(nn.Sequential(LowRankLinear(8, 8, rank=2, learned=True)), nn.ReLU()).double().eval()
    small = fold(model)
    assert isinstance(model[0][0], LowRankLinear)
    assert model[0][0].m is not None
    assert small[0][0].m is None
    assert small[0][0].up.dtype == torch.float64
    assert not small[0][0].training
    x = torch.randn(2, 8, dtype=torch.float64)
    torch.testing.assert_close(small(x), model(x))
