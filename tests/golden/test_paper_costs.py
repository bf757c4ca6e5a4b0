"""Weights and multiply-adds of the paper's networks, to the unit.

Totals: Tables res50big and mbv1 of the paper.
"""

import csv

import pytest
import torch
from shared_folder import shared

from softprune import Budget, profile
from softprune.nn.catalog import NETWORKS, build


def counted(network):
    with torch.device("meta"):
        return profile(build(network), torch.zeros(NETWORKS[network].example_shape))


def test_resnet50_totals():
    costs = counted("resnet50")
    assert (costs.params, costs.macs, costs.pool_macs) == (25_502_912, 4_089_184_256, 100_352)
    assert costs.total_macs() == 4_089_284_608
    assert costs.total_macs(pool=False) == 4_089_184_256
    assert (len(costs), costs.other_macs, costs.head) == (54, 0, "fc.weight")
    # Batch norm: a weight and a bias for each of 26,560 channels.
    assert costs.other_params == 53_120


def test_resnet50_backbone():
    costs = counted("resnet50")
    backbone = [t for t in costs if t.name != costs.head]
    assert (sum(t.params for t in backbone), sum(t.macs for t in backbone)) == (23_454_912, 4_087_136_256)


def test_mobilenetv1_totals():
    costs = counted("mobilenetv1")
    assert (costs.params, costs.macs, costs.pool_macs) == (4_209_088, 568_740_352, 50_176)
    assert (len(costs), costs.other_macs, costs.head) == (28, 0, "fc.weight")
    backbone = [t for t in costs if t.name != costs.head]
    assert (sum(t.params for t in backbone), sum(t.macs for t in backbone)) == (3_185_088, 567_716_352)


@pytest.mark.parametrize(
    ("name", "params", "macs"),
    [
        ("conv1.weight", 64 * 3 * 49, 64 * 3 * 49 * 112**2),
        ("layer1.0.downsample.0.weight", 64 * 256, 64 * 256 * 56**2),
        # v1.5: the 1x1 before the strided 3x3 still sees the larger image
        ("layer2.0.conv1.weight", 256 * 128, 256 * 128 * 56**2),
        ("layer2.0.conv2.weight", 128 * 128 * 9, 128 * 128 * 9 * 28**2),
        ("layer4.2.conv3.weight", 512 * 2048, 512 * 2048 * 7**2),
        ("fc.weight", 2048 * 1000, 2048 * 1000),
    ],
)
def test_rows_by_hand(name, params, macs):
    row = counted("resnet50")[name]
    assert (row.params, row.macs) == (params, macs)


@pytest.mark.parametrize(
    ("network", "budget"), [("resnet50", "resnet50/str-90.23"), ("mobilenetv1", "mobilenetv1/str-89.01")]
)
def test_every_row_is_the_shipped_one(network, budget):
    assert counted(network) == Budget.load(budget).profile


@pytest.mark.parametrize(
    ("network", "table"),
    [
        ("resnet50", "resnet50_str_budgets.csv"),
        ("resnet50", "resnet50_90_budgets_by_method.csv"),
        ("mobilenetv1", "mobilenetv1_90_budgets_by_method.csv"),
    ],
)
def test_every_row_is_the_printed_one(network, table):
    with shared("paper", table).open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    printed = [(int(r["dense_params"]), int(r["dense_flops"])) for r in rows]
    overall, backbone, *layers, pool = printed
    costs = counted(network)
    assert layers == [(t.params, t.macs) for t in costs]
    assert pool == (0, costs.pool_macs)
    assert backbone == (costs.params - costs["fc.weight"].params, costs.macs - costs["fc.weight"].macs)
    # The printed total includes the average pool for ResNet50 and leaves it out for MobileNetV1.
    assert overall == (costs.params, costs.total_macs(pool=network == "resnet50"))
    if network == "resnet50":
        assert [r["layer"] for r in rows[2:-1]] == [name.removesuffix(".weight") for name in costs.names]


def test_resnet18_of_the_per_weight_experiment():
    # 21 layers; with the CIFAR stem 555.4M MACs and 8192 for the pool of 512 x 4 x 4.
    costs = counted("resnet18")
    assert (len(costs), costs.params, costs.pool_macs) == (21, 11_164_352, 8_192)
    assert round(costs.macs / 1e6, 1) == 555.4


@pytest.mark.parametrize(("classes", "params", "million_macs"), [(1000, 11_678_912, 1814.1), (10, 11_172_032, 1813.6)])
def test_resnet18_with_the_imagenet_stem(classes, params, million_macs):
    from softprune.nn import resnet18

    with torch.device("meta"):
        costs = profile(resnet18(classes, stem="imagenet"), torch.zeros(1, 3, 224, 224))
    assert (costs.params, round(costs.macs / 1e6, 1)) == (params, million_macs)
