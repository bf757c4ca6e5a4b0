"""A model, data and loggers of a user's own, as a configuration names them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from softprune.train.observer import Silent


def linear_probe(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, classes))


def tiny_cnn() -> nn.Module:
    """All that a compiler may trip over in training and evaluation: a convolution, batch norm, a pool."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 10)
    )


class Amplifier(nn.Module):
    def forward(self, x):
        return 1000 * x


def loud_probe() -> nn.Module:
    """Its gradients, scaled by 2^16, do not fit into 16 bits."""
    return nn.Sequential(linear_probe(64, 10), Amplifier())


class Stumbling(nn.Module):
    """A probe whose gradients are infinite in some passes. It counts them in its state, so that it can go on."""

    def __init__(self, stumbles: list[int]) -> None:
        super().__init__()
        self.probe = linear_probe(64, 10)
        self.stumbles = stumbles
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        logits = self.probe(x)
        if self.training:
            self.passes += 1
            if int(self.passes) in self.stumbles:
                logits.register_hook(lambda gradient: gradient * float("inf"))
        return logits


def loaders() -> tuple[DataLoader, DataLoader]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(320, 1, 8, 8, generator=generator)
    labels = (images.sum(dim=(1, 2, 3)) > 0).long()
    train = DataLoader(TensorDataset(images[:256], labels[:256]), batch_size=64, shuffle=True)
    return train, DataLoader(TensorDataset(images[256:], labels[256:]), batch_size=64)


class Recorder(Silent):
    """A logger that remembers what it was told, and can be told to fail."""

    fails_at: int | None = None  # step

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        made.append(self)

    def on_begin(self, beginning):
        self.told.append(("begin", beginning))

    def on_step(self, progress):
        self.told.append(("step", progress.step))

    def on_layers(self, rows):
        self.told.append(("layers", rows))

    def on_metrics(self, metrics):
        if metrics["step"] == self.fails_at:
            raise ConnectionError("the line is dead")
        self.told.append(("metrics", metrics))

    def on_note(self, text):
        self.told.append(("note", text))

    def on_end(self, ending):
        self.told.append(("end", ending))


class Failing(Recorder):
    fails_at = 6


class Unwilling(Silent):
    def on_begin(self, beginning):
        raise PermissionError("no key")


made: list[Recorder] = []
