"""Networks by chance: kinds of layers, sizes, paddings, norms and activations that nobody would choose together."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Those of most networks; in each drawn one they are more frequent than the others, so that many get to the engine.
USUAL: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.ReLU6)
ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.Hardsigmoid, nn.LeakyReLU, nn.ELU),
    *(nn.Mish, nn.Softplus, nn.PReLU, nn.Identity, nn.CELU, nn.SELU, nn.Hardtanh, lambda: nn.GELU(approximate="tanh")),
)


@dataclass(frozen=True)
class Drawn:
    """A network, and the shape of its input without the batch."""

    model: nn.Module
    shape: tuple[int, ...]


class Residual(nn.Module):
    """A body and what went into it, added; with a layer of its own where the shapes differ."""

    def __init__(self, body: nn.Module, short: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body, self.short, self.after = body, short, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.body(x) + self.short(x))


class Recurrent(nn.Module):
    """The last state of a recurrent layer, classified."""

    def __init__(self, layer: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Attention(nn.Module):
    """Attention over tokens with a residual, then their mean, classified."""

    def __init__(self, width: int, heads: int, classes: int, norm: nn.Module, *, bias: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(width, width)
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True, bias=bias)
        self.norm, self.head = norm, nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = self.norm(x + self.attend(x, x, x, need_weights=False)[0])
        return self.head(x.mean(1))


class Tied(nn.Module):
    """Layers that are different objects with one weight."""

    def __init__(self, width: int, classes: int, act: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, classes)
        self.second.weight = self.first.weight
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.second(self.act(self.first(x)))))


def activation(dice: random.Random) -> nn.Module:
    return dice.choice(USUAL if dice.random() < 0.93 else ACTIVATIONS)()


def mlp(dice: random.Random) -> Drawn:
    """Linear layers of odd sizes."""
    sizes = [dice.randint(2, 33) for _ in range(dice.randint(2, 5))]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers.append(nn.Linear(inputs, outputs, bias=dice.random() < 0.7))
        norm = dice.randrange(6)
        if norm == 0:
            layers.append(nn.BatchNorm1d(outputs, affine=dice.random() < 0.8))
        elif norm == 1:
            layers.append(nn.LayerNorm(outputs, elementwise_affine=dice.random() < 0.8))
        elif norm == 2:
            layers.append(nn.Dropout(0.2))
        layers.append(activation(dice))
    return Drawn(nn.Sequential(*layers, nn.Linear(sizes[-1], 5)), (sizes[0],))


def tied(dice: random.Random) -> Drawn:
    """One weight in two layers."""
    width = dice.randint(3, 20)
    return Drawn(Tied(width, 5, activation(dice)), (width,))


def norm2d(dice: random.Random, channels: int) -> nn.Module:
    groups = dice.choice([g for g in range(1, channels + 1) if channels % g == 0])
    return dice.choice(
        (
            nn.BatchNorm2d(channels, affine=dice.random() < 0.8),
            nn.GroupNorm(groups, channels, affine=dice.random() < 0.8),
            nn.InstanceNorm2d(channels, affine=True) if dice.random() < 0.1 else nn.BatchNorm2d(channels),
            nn.BatchNorm2d(channels, momentum=None),
            nn.Identity(),
        )
    )


def conv2d(dice: random.Random, inputs: int, outputs: int, *, same: bool = False) -> nn.Conv2d:
    """A convolution; of stride 1 and the same size if asked for."""
    kernel = (dice.choice((1, 3, 5)),) * 2 if same else (dice.choice((1, 2, 3, 5)), dice.choice((1, 3)))
    groups = dice.choice([g for g in range(1, inputs + 1) if inputs % g == 0 and outputs % g == 0])
    mode = "zeros" if dice.random() < 0.9 else dice.choice(("reflect", "replicate", "circular"))
    dilation = 1 if same else dice.choice((1, 1, 1, 2))
    # As much as keeps the size: nothing shrinks to less than a kernel.
    padding = tuple(dilation * (k - 1) - dilation * (k - 1) // 2 for k in kernel)
    stride = 1 if same else dice.choice((1, 1, 2, (2, 1)))
    bias = dice.random() < 0.6
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias, mode)  # type: ignore[arg-type]


def classified(dice: random.Random, layers: list[nn.Module], shape: tuple[int, ...]) -> Drawn:
    """Layers with a head that fits what they give."""
    body = nn.Sequential(*layers)
    pool = dice.choice((nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((2, 1)), nn.AdaptiveMaxPool2d(1), nn.Identity()))
    with torch.no_grad():
        found = nn.Flatten()(pool(body.eval()(torch.zeros(2, *shape))))
    body.train()
    return Drawn(nn.Sequential(body, pool, nn.Flatten(), nn.Linear(found.shape[1], 5)), shape)


def cnn(dice: random.Random) -> Drawn:
    """Convolutions one after the other, with pools between them."""
    shape = (dice.randint(1, 4), dice.randint(9, 17), dice.randint(9, 17))
    channels, layers = shape[0], []
    for _ in range(dice.randint(1, 4)):
        outputs = dice.choice((channels, 2 * channels, dice.randint(2, 12)))
        layers += [conv2d(dice, channels, outputs), norm2d(dice, outputs), activation(dice)]
        channels = outputs
    if dice.random() < 0.4:
        layers.append(dice.choice((nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2, padding=1), nn.MaxPool2d(3, 1, 1))))
    if dice.random() < 0.2:
        layers.append(nn.ConvTranspose2d(channels, dice.randint(2, 6), 3, stride=2, output_padding=1))
    return classified(dice, layers, shape)


def residual(dice: random.Random) -> Drawn:
    """Blocks with a way around them, some of them depthwise."""
    shape, channels = (3, dice.randint(6, 12), dice.randint(6, 12)), dice.choice((4, 6, 8))
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    for _ in range(dice.randint(1, 3)):
        wide = channels * dice.choice((1, 2))
        middle = (
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
            if dice.random() < 0.5
            else conv2d(dice, wide, wide, same=True)
        )
        outputs = dice.choice((channels, channels + 2))
        body = nn.Sequential(
            *(nn.Conv2d(channels, wide, 1), norm2d(dice, wide), activation(dice), middle, norm2d(dice, wide)),
            *(activation(dice), nn.Conv2d(wide, outputs, 1, bias=False), norm2d(dice, outputs)),
        )
        short: nn.Module = nn.Identity() if outputs == channels else nn.Conv2d(channels, outputs, 1)
        layers.append(Residual(body, short, activation(dice)))
        channels = outputs
    return classified(dice, layers, shape)


def conv1d(dice: random.Random) -> Drawn:
    """Convolutions over sequences."""
    channels, length = dice.randint(1, 6), dice.randint(8, 30)
    layers: list[nn.Module] = []
    inputs = channels
    for _ in range(dice.randint(1, 3)):
        outputs = inputs * dice.randint(1, 3)
        groups = dice.choice((1, inputs))
        layers += [nn.Conv1d(inputs, outputs, 3, padding=1, groups=groups), dice.choice(
            (nn.BatchNorm1d(outputs), nn.GroupNorm(1, outputs), nn.Identity())
        ), activation(dice)]  # fmt: skip
        inputs = outputs
    return Drawn(
        nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(inputs, 5)), (channels, length)
    )


def attention(dice: random.Random) -> Drawn:
    """Attention by itself, or a layer of a transformer."""
    heads = dice.randint(1, 4)
    width, tokens = heads * dice.randint(1, 6), dice.randint(2, 9)
    if dice.random() < 0.5:
        norm = dice.choice((nn.LayerNorm(width), nn.Identity()))
        return Drawn(Attention(width, heads, 5, norm, bias=dice.random() < 0.7), (tokens, width))
    first = dice.random() < 0.5
    layer = nn.TransformerEncoderLayer(
        width, heads, 2 * width, 0.1, dice.choice(("relu", "gelu")), batch_first=True, norm_first=first
    )
    return Drawn(nn.Sequential(layer, nn.Flatten(), nn.Linear(tokens * width, 5)), (tokens, width))


def recurrent(dice: random.Random) -> Drawn:
    """LSTM, GRU and plain recurrence, in one or both directions."""
    inputs, features, steps = dice.randint(1, 8), dice.randint(2, 12), dice.randint(2, 8)
    both = dice.random() < 0.3
    kind = dice.choice((nn.LSTM, nn.GRU, nn.RNN))
    layer = kind(inputs, features, num_layers=dice.randint(1, 2), batch_first=True, bidirectional=both)
    return Drawn(Recurrent(layer, features * (2 if both else 1), 5), (steps, inputs))


FAMILIES: dict[str, tuple[Callable[[random.Random], Drawn], float]] = {
    "mlp": (mlp, 2),
    "tied": (tied, 1),
    "cnn": (cnn, 4),
    "residual": (residual, 4),
    "conv1d": (conv1d, 2),
    "attention": (attention, 2),
    "recurrent": (recurrent, 1),
}
"""How each family is drawn, and its share of the cases."""
