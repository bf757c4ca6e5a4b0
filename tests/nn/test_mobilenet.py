import math

import pytest
import torch
from torch import nn

from softprune.nn import mobilenet_v1


def test_names_and_kinds():
    with torch.device("meta"):
        model = mobilenet_v1()
    names = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    assert names == ["model.0.0", *(f"model.{i}.{j}" for i in range(1, 14) for j in (0, 3)), "fc"]
    for i in range(1, 14):
        depthwise, pointwise = model.model[i][0], model.model[i][3]
        assert (depthwise.groups, depthwise.kernel_size) == (depthwise.in_channels, (3, 3))
        assert (pointwise.groups, pointwise.kernel_size, pointwise.stride) == (1, (1, 1), (1, 1))
    assert not any(isinstance(m, nn.Conv2d) and m.bias is not None for m in model.modules())


def test_body_keeps_torchs_default_and_the_classifier_is_kaiming_normal():
    torch.manual_seed(0)
    model = mobilenet_v1()
    pointwise = model.model[13][3].weight
    # Kaiming uniform with a = sqrt(5) is uniform within 1 / sqrt(fan_in).
    bound = 1 / math.sqrt(1024)
    assert pointwise.abs().max().item() <= bound
    assert pointwise.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert model.fc.weight.std().item() == pytest.approx(math.sqrt(2 / 1024), rel=0.01)


def test_forward_gives_one_row_per_image():
    with torch.device("meta"):
        assert mobilenet_v1(9)(torch.zeros(2, 3, 160, 128)).shape == (2, 9)
