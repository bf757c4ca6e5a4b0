"""A small convolutional network for 8x8 images."""

from torch import nn


def digits_cnn(num_classes: int = 10) -> nn.Module:
    """Three convolutions with batch norm and a linear head: 93,728 weights without bias for 1x8x8 images."""
    return nn.Sequential(
        *conv_block(1, 32),
        *conv_block(32, 64),
        nn.MaxPool2d(2),
        *conv_block(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, num_classes),
    )


def conv_block(inputs: int, outputs: int) -> list[nn.Module]:
    """A 3x3 convolution with padding, batch norm and ReLU."""
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
