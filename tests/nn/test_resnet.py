import pytest
import torch
from torch import nn

from softprune.nn import resnet18, resnet50


def test_names_are_torchvisions():
    with torch.device("meta"):
        names = list(resnet50().state_dict())
    # torchvision's resnet50 has 320 entries, one of them fc.bias, which the paper's head does not have.
    assert len(names) == 319
    assert names[0] == "conv1.weight"
    assert names[-1] == "fc.weight"
    for name in (
        "bn1.running_var",
        "layer1.0.conv3.weight",
        "layer4.2.bn3.bias",
        "layer3.0.downsample.1.weight",
    ):
        assert name in names


def test_every_stage_begins_with_a_projection():
    with torch.device("meta"):
        model = resnet50()
    projected = [n for n, m in model.named_modules() if n.endswith("downsample") and isinstance(m, nn.Sequential)]
    assert projected == [f"layer{i}.0.downsample" for i in (1, 2, 3, 4)]


def test_the_stride_is_on_the_3x3():
    with torch.device("meta"):
        block = resnet50().layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.downsample[0].stride) == ((1, 1), (2, 2), (2, 2))


def test_every_convolution_is_kaiming_normal_and_without_bias():
    torch.manual_seed(0)
    model = resnet18()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            assert module.bias is None
            fan_in = module.weight[0].numel()
            # Kaiming normal, fan in, relu: deviation sqrt(2 / fan_in); 5 standard errors of its estimate.
            tolerance = 5 / (2 * module.weight.numel()) ** 0.5
            assert module.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=tolerance)


@pytest.mark.parametrize(("stem", "size"), [("cifar", 32), ("cifar", 40), ("imagenet", 64)])
def test_forward_gives_one_row_per_image(stem, size):
    model = resnet18(7, stem=stem).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, 3, size, size)).shape == (2, 7)


def test_resnet50_accepts_other_sizes():
    with torch.device("meta"):
        assert resnet50(11)(torch.zeros(2, 3, 96, 128)).shape == (2, 11)


def test_unknown_stem_is_refused():
    with pytest.raises(ValueError, match="'imagenet' or 'cifar', got 'tiny'"):
        resnet18(stem="tiny")
