"""A model and data of a user's own, as a configuration names them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def linear_probe(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, classes))


def loaders() -> tuple[DataLoader, DataLoader]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(320, 1, 8, 8, generator=generator)
    labels = (images.sum(dim=(1, 2, 3)) > 0).long()
    train = DataLoader(TensorDataset(images[:256], labels[:256]), batch_size=64, shuffle=True)
    return train, DataLoader(TensorDataset(images[256:], labels[256:]), batch_size=64)
