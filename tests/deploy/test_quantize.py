"""quantize(): the network computes nearly the same in integers, keeps every zero, and tells of each layer."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from exported_networks import Joined, Transformer, UNet, depthwise_net, thin_out
from torch import nn

import softprune
from softprune.deploy.format.reference import run
from softprune.deploy.format.spx import read_spx
from softprune.deploy.quantize import CORRECTED

NETWORKS = {
    "depthwise": (depthwise_net, [(3, 32, 32)]),
    "unet": (UNet, [(3, 16, 16)]),
    "transformer": (lambda: Transformer(side=15), [(3, 15, 15)]),
    "joined": (Joined, [(4, 9, 9), (4, 9, 9)]),
}


def small_net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))
    return thin_out(net)


def batches(count: int = 2, size: int = 8, *shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, *(shape or (3, 8, 8)), generator=generator) for _ in range(count)]


def error(found, wanted) -> float:
    found, wanted = ([*tensors.values()] if isinstance(tensors, dict) else tensors for tensors in (found, wanted))
    pairs = [(found, wanted)] if isinstance(found, torch.Tensor) else list(zip(found, wanted, strict=True))
    assert all(f.shape == w.shape for f, w in pairs)
    return max(float((f - w).square().sum() / w.square().sum()) for f, w in pairs)


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_networks_compute_nearly_the_same_in_integers(name, tmp_path):
    make, shapes = NETWORKS[name]
    torch.manual_seed(0)
    net = make().eval()
    seen = [tuple(torch.randn(16, *shape) for shape in shapes) for _ in range(2)]
    net(*seen[0])
    thin_out(net)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    quantised = softprune.quantize(net, seen, example=seen[0])
    new = tuple(torch.randn(5, *shape) for shape in shapes)
    assert error(quantised(*new), net(*new)) < 0.02
    assert quantised.report.error < 0.01
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    model = read_spx(quantised.save(tmp_path / "int8.spx"))
    weights = {key: weight.dense() for key, weight in model.weights.items()}
    again = [torch.from_numpy(array) for array in run(model.graph.document, weights, [x.numpy() for x in new])]
    found = quantised(*new)
    leaves = list(found.values()) if isinstance(found, dict) else [found] if isinstance(found, torch.Tensor) else found
    # Integers are equal; means and norms of floats may round otherwise, and now and then a byte with them.
    assert error(leaves, again) < 1e-4


def test_every_zero_of_a_weight_is_a_zero_of_the_quantised_one():
    net = small_net()
    report = softprune.quantize(net, batches())
    layers = [op for op in report.graph.ops if op.kind.endswith("_int8")]
    modules = [net[0], net[2], net[5]]
    assert len(layers) == len(modules)
    for op, module, line in zip(layers, modules, report.report.layers, strict=True):
        made, weight = report.graph.weights[op.fields["weight"]], module.weight.detach().numpy()
        assert not made[weight == 0].any()
        assert line.nonzeros == np.count_nonzero(weight)
        assert line.vanished == np.count_nonzero((weight != 0) & (made == 0))


def test_batches_may_carry_labels_be_a_generator_and_differ_in_size():
    net, plain = small_net(), [*batches(), batches()[0][:3]]
    labelled = ((x, torch.zeros(len(x), dtype=torch.int64)) for x in plain)
    assert softprune.quantize(net, labelled).report == softprune.quantize(net, plain).report


def test_ranges_are_chosen_by_the_error_of_the_outputs():
    # One pixel in a thousand is far outside: the whole range would leave few steps for the others.
    net, seen = small_net(), batches(4, 16)
    for x in seen:
        x.view(-1)[::1000] = 60.0
    report = softprune.quantize(net, seen).report
    assert set(report.errors) == {way + more for way in ("minmax", "mse") for more in ("", CORRECTED)}
    assert report.errors[report.ranges] == report.error == min(report.errors.values())
    for way in ("minmax", "mse"):
        assert softprune.quantize(net, seen, ranges=way).report.ranges.startswith(way)


def test_corrected_biases_take_away_what_rounded_weights_move():
    # All weights of a row but one round up by the same third of a step, and all inputs are positive.
    net = nn.Linear(65, 4, bias=False)
    with torch.no_grad():
        net.weight.fill_(1 + 1 / 3)
        net.weight[:, 0] = 127.0
    errors = softprune.quantize(net, [torch.rand(64, 65) + 1], ranges="minmax").report.errors
    assert errors["minmax" + CORRECTED] < 0.2 * errors["minmax"]


def test_a_value_without_negative_numbers_has_zero_at_byte_0():
    zeros = [line.zero for line in softprune.quantize(small_net(), batches()).report.layers]
    assert zeros[0] > 0 and zeros[1:] == [0, 0]
    positive = softprune.quantize(small_net(), [x.abs() for x in batches()]).report
    assert positive.layers[0].zero == 0


def test_layers_are_kept_by_name_by_the_name_of_what_holds_them_and_by_pattern():
    net = nn.Sequential(small_net(), nn.Linear(5, 5), nn.Linear(5, 5))
    for keep, kept in ((["0.2"], ["0.2"]), (["0"], ["0.0", "0.2", "0.5"]), (["?"], ["1", "2"]), (["0.*", "2"], 4)):
        report = softprune.quantize(net, batches(), keep=keep).report
        assert list(report.kept) == kept if isinstance(kept, list) else len(report.kept) == kept
        assert len(report.layers) + len(report.kept) == 5
        assert not {line.path for line in report.layers} & set(report.kept)


def test_what_is_kept_loses_nothing():
    net, x = small_net(), batches()[0]
    alone = softprune.quantize(net, batches(), keep=["0", "2"])
    assert alone.report.error < softprune.quantize(net, batches()).report.error
    assert error(alone(x), net(x).detach()) < 1e-3


def test_the_report_names_the_layers_with_the_largest_errors():
    report = softprune.quantize(small_net(), batches()).report
    worst = max(report.layers, key=lambda line: line.error)
    text = str(report)
    assert f"the largest errors are those of {worst.path!r}" in text
    assert f"{report.ranges}; " in text and "3 layers in integers" in text
    assert [line.split()[0] for line in text.splitlines()[4:8]] == ["layer", "0", "2", "5"]
    assert str(softprune.quantize(small_net(), batches(), keep=["2"])).startswith(
        "2 layers in integers, 1 in float32 (2)"
    )


def test_a_network_with_dead_and_nearly_dead_channels_is_quantised():
    net = small_net()
    with torch.no_grad():
        net[0].weight[2], net[0].bias[2] = 0.0, 0.7
        net[0].weight[3], net[0].bias[3] = 1e-12, -0.3
        net[2].weight[:4], net[2].bias[:4] = 0.0, -1.0
    x = batches()[0]
    assert error(softprune.quantize(net, batches())(x), net(x).detach()) < 0.01


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "no samples in batches"),
        ([torch.zeros(0, 3, 8, 8)], "no samples in batches"),
        ([torch.full((2, 3, 8, 8), torch.inf)], "batch 0 has 384 NaN or infinite"),
        ([torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 9, 8)], r"batch 1: .* must have shape \(batch, 3, 8, 8\)"),
        ([torch.zeros(2, 3, 8, 8, dtype=torch.uint8)], "must be float32"),
    ],
)
def test_batches_that_do_not_fit_are_refused_by_number(given, said):
    with pytest.raises(ValueError, match=said):
        softprune.quantize(small_net(), given)


@pytest.mark.parametrize("given", [torch.zeros(2, 3, 8, 8), 5, [{"x": torch.zeros(2, 3, 8, 8)}], [()]])
def test_what_is_no_iterable_of_batches_is_refused(given):
    with pytest.raises(TypeError, match=r"batch(es| 0) must be"):
        softprune.quantize(small_net(), given)


def test_an_unknown_name_of_a_layer_to_keep_is_an_error_that_lists_near_ones():
    net = nn.Sequential(OrderedDict(first=nn.Linear(4, 4), second=nn.Linear(4, 4)))
    with pytest.raises(ValueError, match=r"no layer is called 'frist' .* near are 'first'"):
        softprune.quantize(net, batches(1, 4, 4), keep=["frist"])
    with pytest.raises(TypeError, match=r"write \['first'\]"):
        softprune.quantize(net, batches(1, 4, 4), keep="first")


def test_what_cannot_be_quantised_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="no convolution or linear layer"):
        softprune.quantize(nn.ReLU(), batches())
    with pytest.raises(ValueError, match="beside those of keep"):
        softprune.quantize(small_net(), batches(), keep=["*"])
    with pytest.raises(ValueError, match="'minmax', 'mse' or 'best'"):
        softprune.quantize(small_net(), batches(), ranges="percentile")
    net = small_net()
    softprune.sparsify(net, softprune.STR(s_init=-3.0))
    with pytest.raises(ValueError, match=r"call softprune\.bake"):
        softprune.quantize(net, batches())


def test_a_call_takes_what_the_engine_takes_and_refuses_to_lose_a_gradient():
    quantised, x = softprune.quantize(small_net(), batches()), batches()[0]
    assert quantised(x).shape == (8, 5)
    with pytest.raises(ValueError, match="no gradients"):
        quantised(x.clone().requires_grad_())
    with pytest.raises(ValueError, match="must have shape"):
        quantised(x[:, :2])


def test_values_that_are_not_finite_are_refused_by_the_layer_that_makes_them():
    net = small_net()
    with torch.no_grad():
        net[0].weight.fill_(3e38)
    with pytest.raises(ValueError, match=r"conv2d at '0' makes is not finite"):
        softprune.quantize(net, batches())
