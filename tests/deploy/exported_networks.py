"""Networks that must come out of PyTorch unchanged, and the comparison that says so."""

import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from softprune.deploy.engine.inference import KernelWarning, load
from softprune.deploy.export import export
from softprune.deploy.format.reference import run
from softprune.deploy.format.spx import read_spx

TOLERANCE = 1e-4


def thin_out(module: nn.Module, density: float = 0.3) -> nn.Module:
    """Zeros in every weight, and norms that are not the identity."""
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim > 1:
                p.mul_(torch.rand_like(p) < density)
            else:
                p.add_(torch.randn_like(p) * 0.1)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.2)
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2)
    return module.eval()


def computed(graph, weights, *inputs: torch.Tensor) -> list[np.ndarray]:
    """The outputs of the reference engine."""
    return run(graph, weights, [x.numpy() for x in inputs])


def assert_equal_outputs(found: list[np.ndarray], expected, tolerance: float = TOLERANCE) -> None:
    """Every output within the tolerance, relative to its largest element."""
    wanted = [t.detach().numpy() for t in pytree.tree_leaves(expected)]
    assert [f.shape for f in found] == [w.shape for w in wanted]
    for f, w in zip(found, wanted, strict=True):
        assert np.abs(f - w).max() <= tolerance * max(np.abs(w).max(), 1e-6)


def assert_same(module: nn.Module, path: Path, *shapes: tuple[int, ...], reference: bool = True) -> dict:
    """Write the module, read the file, compare with PyTorch: the engine at batch 1, 3 and 16, the reference at 1 and 3.

    Args:
        module: in eval mode.
        path: of the file.
        shapes: of the inputs, without the batch.
        reference: whether the slow reference engine is compared too.

    Returns:
        The graph in the file.
    """
    export(module, path, example=tuple(torch.randn(1, *shape) for shape in shapes))
    model = read_spx(path)
    weights = {name: weight.dense() for name, weight in model.weights.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KernelWarning)
        engine = load(path, threads=2, tune=False)
    for batch in (1, 3, 16):
        inputs = [torch.randn(batch, *shape) for shape in shapes]
        with torch.no_grad():
            expected = module(*inputs)
        if reference and batch < 16:
            assert_equal_outputs(computed(model.graph.document, weights, *inputs), expected)
        fast = engine(*inputs)
        assert_equal_outputs(list(fast) if isinstance(fast, tuple) else [fast], expected)
    return model.graph.document


def kinds(document: dict) -> list[str]:
    """The operations of a graph in order."""
    return [op["op"] for op in document["ops"]]


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)), inplace=True)))


class Inverted(nn.Module):
    """The block of MobileNetV3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 2 * channels, 1, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU6(inplace=True),
            nn.Conv2d(2 * channels, 2 * channels, 5, padding=2, groups=2 * channels, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.Hardswish(inplace=True),
            Squeeze(2 * channels),
            nn.Conv2d(2 * channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return x + self.body(x)


def depthwise_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Hardswish(),
        Inverted(8),
        Inverted(8),
        nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        nn.Flatten(),
        nn.LazyLinear(5),
    )


class UNet(nn.Module):
    """Down and up again, with joins, a transposed convolution and both ways to resize."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 8), (8, 12), (12, 16)))
        self.norm = nn.BatchNorm2d(12)
        self.up = nn.ConvTranspose2d(16, 12, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False)
        self.up_norm = nn.BatchNorm2d(12)
        self.join, self.last = nn.Conv2d(24, 8, 3, padding=1), nn.Conv2d(16, 2, 1)

    def forward(self, x):
        a = F.silu(self.first(x))
        b = F.leaky_relu(self.norm(self.second(F.max_pool2d(a, 2, ceil_mode=True))), 0.1)
        c = torch.tanh(self.third(F.avg_pool2d(b, 2)))
        d = F.relu(self.up_norm(self.up(c)))
        d = F.interpolate(d, size=b.shape[2:], mode="nearest")
        e = F.gelu(self.join(torch.cat([b, d], 1)), approximate="tanh")
        e = F.interpolate(e, scale_factor=2, mode="bilinear", align_corners=False)
        e = F.interpolate(e, size=a.shape[2:], mode="bilinear", align_corners=True)
        return self.last(torch.cat([a, e], dim=1))


class Attention(nn.Module):
    """Attention as people write it by hand."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("bias", torch.randn(1, heads, 1, 1))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) / (c // self.heads) ** 0.5 + self.bias
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c))


class Transformer(nn.Module):
    """A vision transformer with a class token, one layer of PyTorch and one by hand."""

    def __init__(self, *, side: int, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 5, stride=5)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (side // 5) ** 2 + 1, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 32, batch_first=True, activation="gelu", norm_first=True)
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, 2)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        x = self.layer(x)
        x = x + self.attention(self.norm(x))
        return {"class": self.head(x[:, 0]), "mean": x.mean(1)}


class Joined(nn.Module):
    """Branches that are split, shuffled and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(4, 6, 3, padding=(2, 1), dilation=(2, 1)), nn.Conv2d(4, 6, (1, 3))
        self.last = nn.Conv2d(12, 8, 2, stride=2, groups=2)

    def forward(self, x, y):
        a, b = torch.cat([x, y], 1).chunk(2, dim=1)
        c = torch.cat([F.relu(self.left(a))[..., 1:-1], self.right(b)], dim=1)
        c = c.view(c.shape[0], 2, 6, *c.shape[2:]).transpose(1, 2).flatten(1, 2)
        return F.pixel_shuffle(self.last(F.pad(c, (0, 1, 0, 1))), 2), c.mean((2, 3), keepdim=True) - 1
