"""Shrinking: the smaller network computes the same, whatever is dead in it and however it is connected."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shrunk_networks import NETWORKS, Dense, Depthwise, FixedView, Residual, Transposed, Twice, kill, made
from torch import nn

import softprune
from softprune.deploy.shrink import Recipe, rebuild
from softprune.nn.catalog import build

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))


def gap(small: nn.Module, net: nn.Module, x: torch.Tensor = X) -> float:
    with torch.no_grad():
        return float((small(x) - net(x)).abs().max() / net(x).abs().max().clamp(min=1e-6))


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(NETWORKS), seed=st.integers(0, 999), share=st.floats(0, 1), norms=st.booleans(),
)  # fmt: skip
def test_the_smaller_network_computes_the_same(kind: type[nn.Module], seed: int, share: float, norms: bool) -> None:
    net = made(kind, seed)
    kill(net, share, seed, norms=norms)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = softprune.shrink(net, X)
    assert gap(found.model, net) <= 1e-5
    assert count(found.model) == found.after <= found.before == count(net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_dead_filters_behind_their_norms_are_all_removed_from_the_inside_of_a_block() -> None:
    net = made(Residual, 0)
    with torch.no_grad():
        for tensor in (net.inner_norm.weight, net.inner_norm.bias):
            tensor[[1, 4, 7]] = 0.0
    small = softprune.shrink(net, X).model
    assert small.inner.weight.shape == (7, 12, 3, 3)
    assert small.inner_norm.num_features == 7
    assert small.outer.weight.shape == (12, 7, 1, 1)


def test_a_channel_that_lives_in_the_other_branch_stays_and_is_listed() -> None:
    net = made(Residual, 0)
    with torch.no_grad():
        for tensor in (net.outer_norm.weight, net.outer_norm.bias):
            tensor[:2] = 0.0
    found = softprune.shrink(net, X)
    assert found.model.outer.weight.shape[0] == 12
    assert [(left.path, left.count) for left in found.left] == [("outer", 2)]
    assert "added" in found.left[0].why


def test_a_channel_that_is_dead_in_both_branches_goes_from_both() -> None:
    net = made(Residual, 0)
    with torch.no_grad():
        for norm in (net.outer_norm, net.stem_norm):
            norm.weight[[3, 5]], norm.bias[[3, 5]] = 0.0, 0.0
    small = softprune.shrink(net, X).model
    assert (small.stem.out_channels, small.inner.in_channels, small.outer.out_channels) == (10, 10, 10)
    assert small.head.in_features == 10


def test_a_constant_moves_into_the_bias_of_the_layer_that_reads_it_without_padding() -> None:
    net = made(Residual, 0)
    with torch.no_grad():
        net.inner_norm.weight[2], net.inner_norm.bias[2] = 0.0, 0.75
    found = softprune.shrink(net, X)
    assert found.model.outer.in_channels == 9
    assert found.model.outer.bias is not None and net.outer.bias is None
    assert gap(found.model, net) <= 1e-5


def test_a_constant_next_to_padding_stays_and_is_listed() -> None:
    net = made(Residual, 0)
    with torch.no_grad():
        for norm in (net.stem_norm, net.outer_norm):
            norm.weight[2], norm.bias[2] = 0.0, 0.75
    found = softprune.shrink(net, X)
    assert found.model.stem.out_channels == 12
    assert {left.path for left in found.left} == {"stem", "outer"}


def test_a_channel_that_nothing_reads_goes() -> None:
    net = made(Dense, 0)
    with torch.no_grad():
        net.third.weight[:, 8:10] = 0.0
    small = softprune.shrink(net, X).model
    assert small.second.out_channels == 4
    assert small.third.in_channels == 12


def test_groups_stay_equally_wide() -> None:
    net = made(Depthwise, 0)
    norm = net.body[10]
    with torch.no_grad():
        norm.weight[[0, 2, 4, 6, 7]], norm.bias[[0, 2, 4, 6, 7]] = 0.0, 0.0
    found = softprune.shrink(net, X)
    assert found.model.body[9].weight.shape[0] == 4
    assert found.model.body[9].groups == 4
    assert [left.count for left in found.left] == [1]
    assert gap(found.model, net) <= 1e-5


def test_depthwise_filters_follow_the_layer_before() -> None:
    net = made(Depthwise, 0)
    with torch.no_grad():
        net.body[1].weight[:5], net.body[1].bias[:5] = 0.0, 0.0
    small = softprune.shrink(net, X).model
    assert (small.body[0].out_channels, small.body[3].groups, small.body[6].in_channels) == (11, 11, 11)


def test_a_layer_of_which_nothing_lives_keeps_one_channel() -> None:
    net = made(Transposed, 0)
    with torch.no_grad():
        net.up.weight.zero_()
        net.up.bias.zero_()
    found = softprune.shrink(net, X)
    assert found.model.up.out_channels == 1
    assert gap(found.model, net) <= 1e-5


def test_a_layer_that_is_used_twice_is_cut_once() -> None:
    net = made(Twice, 0)
    with torch.no_grad():
        for layer in (net.first, net.shared):
            layer.weight[:4], layer.bias[:4] = 0.0, 0.0
    small = softprune.shrink(net, X).model
    assert small.shared.weight.shape == (6, 6)
    assert gap(small, net) <= 1e-5


def test_what_the_code_of_a_network_does_not_stand_is_listed_and_the_rest_goes() -> None:
    net = made(FixedView, 0)
    with torch.no_grad():
        for layer in (net.first, net.second):
            layer.weight[:3], layer.bias[:3] = 0.0, 0.0
    found = softprune.shrink(net, X)
    assert found.model.first.out_channels == 5
    assert found.model.second.out_channels == 8
    assert [(left.path, left.count) for left in found.left] == [("second", 3)]
    assert gap(found.model, net) <= 1e-5


def test_shortcuts_with_padded_channels_are_followed() -> None:
    net = build("resnet20", {}).eval()
    kill(net, 0.8, 1, norms=True)
    x = X.repeat(1, 1, 2, 2)
    found = softprune.shrink(net, x)
    assert found.after < 0.3 * found.before
    assert gap(found.model, net, x) <= 1e-5


def test_a_saved_network_is_rebuilt_from_its_constructor(tmp_path) -> None:
    net = made(Depthwise, 1)
    kill(net, 0.5, 1, norms=True)
    found = softprune.shrink(net, X)
    found.save(tmp_path / "small")
    again = rebuild(Depthwise(), tmp_path / "small")
    with torch.no_grad():
        assert torch.equal(again(X), found.model(X))


def test_a_recipe_of_another_network_is_refused_and_nothing_is_changed(tmp_path) -> None:
    net = made(Depthwise, 1)
    kill(net, 0.5, 1, norms=True)
    softprune.shrink(net, X).save(tmp_path)
    other = Residual()
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(ValueError, match="another network"):
        rebuild(other, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"layers": []},
        {"layers": {"a": {"inputs": [0], "outputs": [1]}}},
        {"layers": {"a": {"inputs": [1, 0], "outputs": [1], "bias": False}}},
        {"layers": {"a": {"inputs": [], "outputs": [1], "bias": False}}},
        {"layers": {"a": {"inputs": [-1], "outputs": [1], "bias": False}}},
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, change: dict) -> None:
    path = tmp_path / "shrink.json"
    path.write_text(json.dumps({"format": "softprune-shrink", "version": 1, "layers": {}} | change))
    with pytest.raises(ValueError, match=r"shrink\.json"):
        Recipe.load(path)


def test_a_managed_model_is_refused() -> None:
    net = made(Residual, 0)
    softprune.sparsify(net, softprune.STR())
    with pytest.raises(ValueError, match="bake"):
        softprune.shrink(net, X)


def test_a_model_that_cannot_be_followed_is_named() -> None:
    class Decides(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(ValueError, match="Decides"):
        softprune.shrink(Decides(), X)
