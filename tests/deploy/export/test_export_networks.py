"""Whole networks: the file computes what PyTorch computes, within 1e-4 of the largest number of each output.

Batches are 1, 3 and 16, sizes odd; the kernels and, for small networks, the reference engine.
"""

import pytest
import torch
import torch.nn.functional as F
from exported_networks import Joined, Transformer, UNet, assert_same, depthwise_net, kinds, thin_out
from torch import nn

from softprune.nn.catalog import build


def test_a_residual_network_is_convolutions_with_everything_inside(tmp_path):
    document = assert_same(thin_out(build("resnet18")), tmp_path / "net.spx", (3, 65, 47), reference=False)
    assert kinds(document) == ["conv2d"] * 20 + ["adaptive_avg_pool2d", "conv2d", "reshape"]
    assert sum(op["residual"] is not None for op in document["ops"] if op["op"] == "conv2d") == 8
    assert sum(op["activation"] == "relu" for op in document["ops"] if op["op"] == "conv2d") == 17
    assert document["ops"][0]["path"] == "conv1"


class Hourglass(nn.Module):
    """Down by strides, up by transposed convolutions with overlap, with dilation and in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.Conv2d(6, 9, (3, 5), stride=(1, 2))])
        self.up = nn.ModuleList(
            [
                nn.ConvTranspose2d(9, 6, (3, 5), stride=(1, 2), bias=False),
                nn.ConvTranspose2d(12, 4, 4, stride=2, padding=2, dilation=(1, 2), groups=2),
                nn.ConvTranspose2d(4, 4, 2, stride=3, padding=1, groups=4),
            ]
        )

    def forward(self, x):
        a = F.relu(self.down[0](x))
        b = F.hardswish(self.down[1](a))
        c = F.relu6(self.up[0](b))
        c = F.pad(c, (0, a.shape[3] - c.shape[3], 0, a.shape[2] - c.shape[2]))
        d = self.up[1](torch.cat([a, c], dim=1))
        return torch.sigmoid(self.up[2](d)), d


@pytest.mark.slow
def test_resnet50(tmp_path):
    document = assert_same(thin_out(build("resnet50"), 0.1), tmp_path / "net.spx", (3, 65, 47), reference=False)
    assert len(document["ops"]) == 57
    assert {w["storage"] for w in document["weights"].values()} == {"dense", "gaps"}


def test_mobilenet(tmp_path):
    document = assert_same(thin_out(build("mobilenetv1")), tmp_path / "net.spx", (3, 65, 47), reference=False)
    assert kinds(document) == ["conv2d"] * 27 + ["adaptive_avg_pool2d", "conv2d", "reshape"]


def test_small_cnn(tmp_path):
    document = assert_same(thin_out(build("small_cnn")), tmp_path / "net.spx", (1, 28, 28))
    assert kinds(document).count("linear") == 2


def test_depthwise_convolutions_with_squeeze_and_excitation(tmp_path):
    module = depthwise_net()
    module(torch.zeros(1, 3, 31, 27))  # gives the lazy layer its shape
    document = assert_same(thin_out(module), tmp_path / "net.spx", (3, 31, 27))
    assert {op.get("activation") for op in document["ops"]} >= {"relu6", "hardswish", "relu"}
    assert kinds(document).count("hardsigmoid") == 2


def test_a_network_that_goes_down_and_up(tmp_path):
    document = assert_same(thin_out(UNet()), tmp_path / "net.spx", (3, 21, 17))
    assert kinds(document).count("resize") == 3 and "scale_shift" not in kinds(document)


def test_a_network_that_goes_down_and_up_at_an_odd_size(tmp_path):
    assert_same(thin_out(UNet(), 0.1), tmp_path / "net.spx", (3, 65, 47), reference=False)


def test_transposed_convolutions_with_joins(tmp_path):
    document = assert_same(thin_out(Hourglass()), tmp_path / "net.spx", (2, 19, 23))
    assert kinds(document).count("conv_transpose2d") == 3 and "concat" in kinds(document)


def test_an_mlp(tmp_path):
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(7 * 9, 64), nn.ReLU(), nn.Linear(64, 33), nn.Tanh(), nn.Linear(33, 10)
    )
    document = assert_same(thin_out(module, 0.1), tmp_path / "net.spx", (7, 9))
    assert kinds(document) == ["reshape", "linear", "linear", "linear"]


def test_a_vision_transformer(tmp_path):
    document = assert_same(thin_out(Transformer(side=20)), tmp_path / "net.spx", (3, 20, 20))
    assert kinds(document).count("attention") == 1 and kinds(document).count("matmul") == 2
    assert len(document["outputs"]) == 2


def test_two_inputs_joined_split_and_shuffled(tmp_path):
    assert_same(thin_out(Joined()), tmp_path / "net.spx", (3, 9, 11), (5, 9, 11))


def test_linear_layers_with_norms_of_every_kind(tmp_path):
    module = nn.Sequential(
        nn.Linear(7, 12), nn.BatchNorm1d(12), nn.SiLU(), nn.Dropout(0.5),
        nn.Linear(12, 12), nn.LayerNorm(12), nn.Sigmoid(), nn.Unflatten(1, (3, 4)),
        nn.Conv1d(3, 6, 2, padding="same"), nn.GroupNorm(3, 6), nn.PReLU(6),
        nn.Hardtanh(-0.5, 2.0), nn.Flatten(), nn.Softmax(1),
    )  # fmt: skip
    document = assert_same(thin_out(module), tmp_path / "net.spx", (7,))
    assert document["ops"][0]["activation"] == "silu"


class Recurrence(nn.Module):
    """A gated recurrence over time that starts from zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.stay = nn.Linear(3, 5, bias=False), nn.Linear(5, 5, bias=False)
        self.gate, self.update = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(5))

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 5)
        for t in range(x.shape[1]):
            moved = self.enter(x[:, t]) + self.stay(h)
            z = torch.sigmoid(moved + self.gate)
            h = z * h + (0.9 * (1 - z) + 0.1) * torch.tanh(moved + self.update)
        return torch.stack([h, 2 * h], dim=1)


def test_a_recurrence(tmp_path):
    assert_same(thin_out(Recurrence(), 0.6), tmp_path / "net.spx", (4, 3))
