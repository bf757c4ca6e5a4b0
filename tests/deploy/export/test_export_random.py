"""Random structures: whatever is stacked, the file computes what PyTorch computes."""

import torch
from exported_networks import assert_equal_outputs, computed, thin_out
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from softprune.deploy.export.exporting import to_graph

ACTIVATIONS = [nn.ReLU, nn.ReLU6, nn.Hardswish, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Identity]


class Block(nn.Module):
    """A convolution, perhaps a norm, an activation, a sum with the input or a join of both."""

    def __init__(self, draw, channels: int) -> None:
        super().__init__()
        kernel, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        self.how = draw(st.sampled_from(["plain", "sum", "join", "gate"]))
        groups = draw(st.sampled_from([1, 2, channels]))
        self.conv = nn.Conv2d(
            channels, channels, kernel, padding="same", dilation=dilation, groups=groups, bias=draw(st.booleans())
        )
        self.norm = nn.BatchNorm2d(channels) if draw(st.booleans()) else nn.Identity()
        self.act = draw(st.sampled_from(ACTIVATIONS))()
        self.norm_last = draw(st.booleans())
        self.back = nn.Conv2d(2 * channels, channels, 1)

    def forward(self, x):
        y = self.conv(x)
        y = self.norm(self.act(y)) if self.norm_last else self.act(self.norm(y))
        if self.how == "sum":
            return torch.relu(y + x)
        if self.how == "join":
            return self.back(torch.cat([x, y], 1))
        return y * x if self.how == "gate" else y


@st.composite
def networks(draw):
    torch.manual_seed(draw(st.integers(0, 1000)))
    channels = draw(st.sampled_from([2, 4, 6]))
    layers = [nn.Conv2d(3, channels, 3, stride=draw(st.integers(1, 2)), padding=draw(st.integers(0, 2)))]
    layers += [Block(draw, channels) for _ in range(draw(st.integers(1, 3)))]
    layers.append(
        draw(st.sampled_from([nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d((2, 3)), nn.Identity()]))
    )
    return thin_out(nn.Sequential(*layers, nn.Flatten())), draw(st.integers(6, 11)), draw(st.integers(6, 11))


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks())
def test_random_networks(drawn):
    module, height, width = drawn
    graph = to_graph(module, torch.randn(1, 3, height, width))
    x = torch.randn(3, 3, height, width)
    with torch.no_grad():
        assert_equal_outputs(computed(graph.document(), graph.weights, x), module(x))
