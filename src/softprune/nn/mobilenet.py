"""MobileNetV1 as the paper counts it: every weight is a bias-free convolution."""

from torch import Tensor, nn

# Outputs and stride of the 13 depthwise-separable blocks.
_BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


class MobileNetV1(nn.Module):
    """A 3x3 convolution, 13 blocks of a depthwise and a pointwise convolution, a 1x1 classifier.

    ``model.0.0`` is the first convolution; block i has its depthwise convolution at ``model.i.0`` and
    its pointwise one at ``model.i.3``.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        channels = 32
        layers = [nn.Sequential(*_convolution(3, channels, kernel=3, stride=2))]
        for outputs, stride in _BLOCKS:
            depthwise = _convolution(channels, channels, kernel=3, stride=stride, groups=channels)
            layers.append(nn.Sequential(*depthwise, *_convolution(channels, outputs, kernel=1)))
            channels = outputs
        self.model = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        # The paper's code gives Kaiming normal to the classifier only; the body keeps torch's default.
        self.fc = nn.Conv2d(channels, num_classes, 1, bias=False)
        nn.init.kaiming_normal_(self.fc.weight, mode="fan_in", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, 3, H, W) to logits (N, classes)."""
        return self.fc(self.avgpool(self.model(x))).flatten(1)


def _convolution(inputs: int, outputs: int, *, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def mobilenet_v1(num_classes: int = 1000) -> MobileNetV1:
    """MobileNetV1 (width 1.0) for 224x224 images: 4,209,088 weights in 28 tensors with 1000 classes."""
    return MobileNetV1(num_classes)
