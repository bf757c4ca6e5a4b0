"""Small networks of ten kinds, each with an input."""

import torch
from torch import nn

from softprune.nn.resnet import resnet20


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.block = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.block(self.embedding(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.recurrence = kind(6, 12, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.recurrence(x)[0][:, -1])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 8)
        self.middle = nn.Linear(8, 8)
        self.out = nn.Linear(8, 40, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        return self.out(self.middle(self.embedding(x)).mean(1))


def mlp():
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5))


def depthwise():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 20, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 5),
    )  # fmt: skip


def one_dimensional():
    return nn.Sequential(nn.Conv1d(4, 8, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 5))


def transposed():
    return nn.Sequential(
        nn.ConvTranspose2d(3, 6, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 5)
    )


def half():
    return mlp().to(torch.bfloat16)


def wide():
    return mlp().double()


def images(n=4):
    return torch.randn(n, 3, 8, 8)


NETWORKS = {
    "mlp": (mlp, lambda: torch.randn(4, 20)),
    "depthwise": (depthwise, images),
    "conv1d": (one_dimensional, lambda: torch.randn(4, 4, 12)),
    "transposed": (transposed, images),
    "resnet": (resnet20, lambda: torch.randn(2, 3, 16, 16)),
    "transformer": (TransformerBlock, lambda: torch.randint(0, 30, (4, 7))),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(4, 5, 6)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(4, 5, 6)),
    "tied": (Tied, lambda: torch.randint(0, 40, (4, 3))),
    "bfloat16": (half, lambda: torch.randn(4, 20, dtype=torch.bfloat16)),
    "float64": (wide, lambda: torch.randn(4, 20, dtype=torch.float64)),
}
