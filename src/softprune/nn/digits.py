"""A small convolutional network for 8x8 images."""

from torch import nn


def digits_cnn(num_classes: int = 10) -> nn.Module:
    """Three convolutions with batch norm and a linear head: 93,728 weights without bias for 1x8x8 images."""
    return nn.Sequential(
        *_block(1, 32),
        *_block(32, 64),
        nn.MaxPool2d(2),
        *_block(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, num_classes),
    )


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
