"""Networks whose channels are connected in every way that shrinking has to follow."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """Two branches that are added, and a shortcut with a convolution of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.inner, self.inner_norm = nn.Conv2d(12, 10, 3, padding=1, bias=False), nn.BatchNorm2d(10)
        self.outer, self.outer_norm = nn.Conv2d(10, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(x)))
        y = F.relu(self.inner_norm(self.inner(x)))
        x = F.relu(x + self.outer_norm(self.outer(y)))
        return self.head(x.mean((2, 3)))


class Dense(nn.Module):
    """Concatenations, a pool, and a resized branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 6, 3, padding=1, stride=2)
        self.third = nn.Conv2d(14, 7, 3, padding=1)
        self.head = nn.Conv2d(7, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.first(x))
        b = F.interpolate(F.silu(self.second(a)), scale_factor=2.0)
        return self.head(F.gelu(self.third(torch.cat([a, b], 1))))


class Depthwise(nn.Module):
    """Pointwise and depthwise pairs, then a grouped convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardswish(),
            nn.Conv2d(16, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 8, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Transposed(nn.Module):
    """A convolution down and a transposed one up, with a multiplied gate."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 9, 3, stride=2, padding=1)
        self.squeeze = nn.Linear(9, 9)
        self.up = nn.ConvTranspose2d(9, 6, 2, stride=2)
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.down(x))
        gate = torch.sigmoid(self.squeeze(x.mean((2, 3))))
        return self.head(F.relu(self.up(x * gate[:, :, None, None])))


class Attention(nn.Module):
    """A transformer block: only the hidden units of its feed-forward part can go."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.down = nn.Linear(8, 20), nn.Linear(20, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(2).transpose(1, 2)[..., :1].expand(-1, -1, 8)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.head(x.mean(1))


class Twice(nn.Module):
    """One layer that is used at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.head = nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x[:, 0, :1, :6].flatten(1)))
        return self.head(torch.relu(self.shared(torch.relu(self.shared(x)))))


class FixedView(nn.Module):
    """Its code counts on a number of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.head(x.mean((2, 3)).view(-1, 8))


NETWORKS = (Residual, Dense, Depthwise, Transposed, Attention, Twice)


def made(kind: type[nn.Module], seed: int) -> nn.Module:
    """A network in eval mode with statistics that are not those of a new one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = kind().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in ((module.running_mean, -1, 1), (module.running_var, 0.5, 2.0)):
                tensor.uniform_(low, high, generator=generator)  # type: ignore[union-attr]
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-1, 1, generator=generator)
    return net


@torch.no_grad()
def kill(net: nn.Module, share: float, seed: int, *, norms: bool) -> int:
    """Make filters of all layers zero, their biases too; behind a norm the norm's channels. Returns how many."""
    generator = torch.Generator().manual_seed(seed)
    killed = 0
    kinds = (nn.BatchNorm2d,) if norms else (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
    for module in net.modules():
        if isinstance(module, kinds):
            outputs = module.bias if module.bias is not None else module.weight[:, 0].flatten(1).sum(1)
            dead = torch.rand(len(outputs), generator=generator) < share
            killed += int(dead.sum())
            if isinstance(module, nn.ConvTranspose2d):
                module.weight[:, dead] = 0.0
            else:
                module.weight[dead] = 0.0
            if module.bias is not None:
                module.bias[dead] = 0.0
    return killed
