"""Random structures: whatever is stacked, the file computes what PyTorch computes, by reference and by kernels."""

import warnings

import torch
import torch.nn.functional as F
from exported_networks import assert_equal_outputs, computed, thin_out
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from softprune.deploy.engine.inference import KernelWarning, load
from softprune.deploy.export.exporting import to_graph, write_spx

ACTIVATIONS = [nn.ReLU, nn.ReLU6, nn.Hardswish, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Identity]
ACTIVATIONS += [nn.Mish, nn.ELU, nn.Softplus]
FRAMES = ["zeros", "reflect", "circular", "replicate"]
WAYS = ["plain", "sum", "join", "gate", "up", "down", "tokens"]


class Block(nn.Module):
    """A convolution, perhaps a norm, an activation; then a sum, a join, a way up or down, or a layer over tokens."""

    def __init__(self, draw, channels: int) -> None:
        super().__init__()
        kernel, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        self.how = draw(st.sampled_from(WAYS))
        groups = draw(st.sampled_from([1, 2, channels]))
        self.conv = nn.Conv2d(
            *(channels, channels, kernel),
            padding="same",
            dilation=dilation,
            groups=groups,
            bias=draw(st.booleans()),
            padding_mode=draw(st.sampled_from(FRAMES)),
        )
        self.norm = nn.BatchNorm2d(channels) if draw(st.booleans()) else nn.Identity()
        self.act = draw(st.sampled_from(ACTIVATIONS))()
        self.norm_last = draw(st.booleans())
        self.back = nn.Conv2d(2 * channels, channels, 1)
        self.up = nn.ConvTranspose2d(channels, channels, kernel, stride=draw(st.integers(1, 2)), groups=groups)
        self.mode = draw(st.sampled_from(["nearest", "bilinear"]))
        self.token_norm, self.mix = nn.LayerNorm(channels), nn.Linear(channels, channels)

    def forward(self, x):
        y = self.conv(x)
        y = self.norm(self.act(y)) if self.norm_last else self.act(self.norm(y))
        if self.how == "sum":
            return torch.relu(y + x)
        if self.how == "join":
            return self.back(torch.cat([x, y], 1))
        if self.how == "gate":
            return y * x
        if self.how == "up":
            return self.up(y)
        if self.how == "down":
            return F.interpolate(F.max_pool2d(y, 3, 2, 1), size=x.shape[2:], mode=self.mode) + x
        if self.how == "tokens":
            tokens = y.flatten(2).transpose(1, 2)
            return (tokens + self.mix(self.token_norm(tokens))).transpose(1, 2).reshape(x.shape)
        return y


@st.composite
def networks(draw):
    torch.manual_seed(draw(st.integers(0, 1000)))
    channels = draw(st.sampled_from([2, 4, 6]))
    layers = [nn.Conv2d(3, channels, 3, stride=draw(st.integers(1, 2)), padding=draw(st.integers(0, 2)))]
    layers += [Block(draw, channels) for _ in range(draw(st.integers(1, 3)))]
    layers.append(
        draw(st.sampled_from([nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d((2, 3)), nn.Identity()]))
    )
    module = thin_out(nn.Sequential(*layers, nn.Flatten()), draw(st.sampled_from([0.05, 0.3, 1.0])))
    return module, draw(st.integers(6, 19)), draw(st.integers(6, 19))


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks(), st.integers(1, 5), st.integers(1, 2))
def test_random_networks(tmp_path_factory, drawn, batch, threads):
    module, height, width = drawn
    graph = to_graph(module, torch.randn(1, 3, height, width))
    path = tmp_path_factory.mktemp("random") / "net.spx"
    write_spx(graph, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KernelWarning)
        engine = load(path, threads=threads, tune=False)
    x = torch.randn(batch, 3, height, width)
    with torch.no_grad():
        expected = module(x)
    assert_equal_outputs(computed(graph.document, graph.weights, x), expected)
    assert_equal_outputs([engine(x)], expected)
