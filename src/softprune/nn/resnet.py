"""ResNets: ResNet50 (v1.5) and ResNet18 as the paper counts them, every weight a bias-free convolution; and those of
He et al. (2015), section 4.2, for CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

_Stem = Literal["imagenet", "cifar"]


def _conv(inputs: int, outputs: int, *, kernel: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=(kernel - 1) // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_in", nonlinearity="relu")
    return conv


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(_conv(inputs, outputs, kernel=1, stride=stride), nn.BatchNorm2d(outputs))


class _Basic(nn.Module):
    """Two 3x3 convolutions; the shortcut is projected where its shape changes."""

    widening = 1

    def __init__(self, inputs: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, kernel=3, stride=stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, kernel=3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(inputs, width, stride) if stride != 1 or inputs != width else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class _Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions; v1.5 puts the stride on the 3x3."""

    widening = 4

    def __init__(self, inputs: int, width: int, *, stride: int) -> None:
        super().__init__()
        outputs = width * self.widening
        self.conv1 = _conv(inputs, width, kernel=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, kernel=3, stride=stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, kernel=1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(inputs, outputs, stride) if stride != 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class _Block(nn.Module):
    """Two 3x3 convolutions with a shortcut that has no parameters (option A)."""

    widening = 1

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.added = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        # Option A: every second pixel; the new channels are zeros, half of them on either side.
        half = self.added // 2
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.added - half))
        return F.relu(out + shortcut)


def _stage(
    block: type[_Basic | _Bottleneck | _Block], inputs: int, *, width: int, depth: int, stride: int
) -> nn.Sequential:
    first = block(inputs, width, stride=stride)
    return nn.Sequential(first, *(block(width * block.widening, width, stride=1) for _ in range(depth - 1)))


class ResNet(nn.Module):
    """Four stages of blocks between a stem and a classifier that is a bias-free 1x1 convolution.

    Parameter names are torchvision's; ``fc.weight`` has two trailing dimensions of size one more.
    """

    def __init__(
        self, block: type[_Basic | _Bottleneck], depths: Sequence[int], *, num_classes: int, stem: _Stem
    ) -> None:
        super().__init__()
        if stem not in ("imagenet", "cifar"):
            raise ValueError(f"stem must be 'imagenet' or 'cifar', got {stem!r}")
        large = stem == "imagenet"
        self.conv1 = _conv(3, 64, kernel=7 if large else 3, stride=2 if large else 1)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        wide = block.widening
        self.layer1 = _stage(block, 64, width=64, depth=depths[0], stride=1)
        self.layer2 = _stage(block, 64 * wide, width=128, depth=depths[1], stride=2)
        self.layer3 = _stage(block, 128 * wide, width=256, depth=depths[2], stride=2)
        self.layer4 = _stage(block, 256 * wide, width=512, depth=depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = _conv(512 * wide, num_classes, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, 3, H, W) to logits (N, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x)).flatten(1)


def resnet50(num_classes: int = 1000) -> ResNet:
    """ResNet50 v1.5 for 224x224 images: 25,502,912 weights in 54 tensors with 1000 classes.

    Every convolution starts from Kaiming normal (fan in, relu), as in the paper's code.
    """
    return ResNet(_Bottleneck, (3, 4, 6, 3), num_classes=num_classes, stem="imagenet")


def resnet18(num_classes: int = 10, *, stem: _Stem = "cifar") -> ResNet:
    """ResNet18; with the CIFAR stem (3x3, stride 1, no max pool) 11,164,352 weights in 21 tensors."""
    return ResNet(_Basic, (2, 2, 2, 2), num_classes=num_classes, stem=stem)


class CifarResNet(nn.Module):
    """6 n + 2 layers: a convolution, stages of n blocks with 16, 32 and 64 channels, a linear classifier."""

    def __init__(self, depth: int, *, num_classes: int) -> None:
        super().__init__()
        n = depth // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(_Block, 16, width=16, depth=n, stride=1)
        self.layer2 = _stage(_Block, 16, width=32, depth=n, stride=2)
        self.layer3 = _stage(_Block, 32, width=64, depth=n, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, 3, H, W) to logits (N, classes)."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(self.avgpool(x).flatten(1))


def resnet20(num_classes: int = 10) -> CifarResNet:
    """ResNet20 for 32x32 images: 269,722 parameters with 10 classes."""
    return CifarResNet(20, num_classes=num_classes)


def resnet56(num_classes: int = 10) -> CifarResNet:
    """ResNet56 for 32x32 images: 853,018 parameters with 10 classes."""
    return CifarResNet(56, num_classes=num_classes)
