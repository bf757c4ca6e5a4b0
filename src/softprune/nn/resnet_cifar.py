"""The CIFAR-10 ResNets of He et al. (2015), section 4.2: three stages of 16, 32 and 64 channels."""

import torch.nn.functional as F
from torch import Tensor, nn


class _Block(nn.Module):
    """Two 3x3 convolutions with a shortcut that has no parameters (option A)."""

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


class CifarResNet(nn.Module):
    """6 n + 2 layers: a convolution, three stages of n blocks, a linear classifier."""

    def __init__(self, depth: int, *, num_classes: int) -> None:
        super().__init__()
        n = depth // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(n, 16, 16, stride=1)
        self.layer2 = _stage(n, 16, 32, stride=2)
        self.layer3 = _stage(n, 32, 64, stride=2)
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


def _stage(depth: int, inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    first = _Block(inputs, outputs, stride=stride)
    return nn.Sequential(first, *(_Block(outputs, outputs, stride=1) for _ in range(depth - 1)))


def resnet20(num_classes: int = 10) -> CifarResNet:
    """ResNet20 for 32x32 images: 269,722 parameters with 10 classes."""
    return CifarResNet(20, num_classes=num_classes)


def resnet56(num_classes: int = 10) -> CifarResNet:
    """ResNet56 for 32x32 images: 853,018 parameters with 10 classes."""
    return CifarResNet(56, num_classes=num_classes)
