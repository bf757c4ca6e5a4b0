"""Three small networks, of dense, convolutional and recurrent layers, with data to train them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BATCH, CLASSES = 8, 4


@dataclass(frozen=True)
class Network:
    """How to build a network, and the shape of one of its inputs."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def made(self) -> nn.Module:
        """The same weights every time; the random state of the caller is left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build()

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and classes that can be learnt: the class is the largest of the first few numbers."""
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(BATCH, *self.shape, generator=generator)
        return x, x.flatten(1)[:, :CLASSES].argmax(1)


class Cell(nn.Module):
    """A recurrent cell that walks over a short sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(5, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 8)
        for moment in x.unbind(1):
            state = self.cell(moment, state)
        out: Tensor = self.head(state)
        return out


def _dense() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, CLASSES),
    )  # fmt: skip


NETWORKS = (
    Network("mlp", _dense, (12,)),
    Network("cnn", _convolutional, (3, 6, 6)),
    Network("cell", Cell, (3, 5)),
)
