"""Write a network with a published budget and random weights: the zeros decide the time, the values do not.

python tests/deploy/make_spx.py resnet50/str-90.23 resnet50.spx [--size 224]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

from softprune.budget.budget import Budget
from softprune.deploy.export import export
from softprune.nn.catalog import build


def sparse_network(name: str, *, seed: int = 0, **arguments: object) -> nn.Module:
    """A network with random weights, of which as many are zero as the budget says.

    Args:
        name: of a published budget, "resnet50/str-90.23"; "resnet50/dense" and "resnet50/uniform-80" too.
        seed: of weights and zeros.
        arguments: of the network.
    """
    network, _, budget = name.partition("/")
    generator = torch.Generator().manual_seed(seed)
    module = build(network, arguments).eval()
    densities = _densities(name, budget, module)
    with torch.no_grad():
        for path, weight in module.named_parameters():
            if path in densities:
                kept = torch.zeros(weight.numel())
                count = max(1, round(densities[path] * weight.numel()))
                kept[torch.randperm(weight.numel(), generator=generator)[:count]] = 1
                # As large as keeps the size of the signal with so few weights.
                scale = (2 * weight.shape[0] / count) ** 0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * kept.view_as(weight) * scale)
            elif path.endswith("bias"):
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return module


def _densities(name: str, budget: str, module: nn.Module) -> dict[str, float]:
    weights = {path: 1.0 for path, weight in module.named_parameters() if weight.ndim > 1}
    if budget == "dense":
        return weights
    if budget.startswith("uniform-"):
        density = 1.0 - float(budget.removeprefix("uniform-")) / 100
        first = next(iter(weights))
        # The first layer and depthwise kernels stay dense, as is usual.
        shapes = {path: p.shape for path, p in module.named_parameters()}
        return {path: 1.0 if path == first or shapes[path][1] == 1 else density for path in weights}
    return dict(Budget.load(name))


def make_spx(name: str, path: Path, *, size: int = 224) -> Path:
    """Write ``path`` with the network of :func:`sparse_network` for images of ``size`` pixels a side."""
    return export(sparse_network(name), path, example=torch.zeros(1, 3, size, size))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", type=int, default=224)
    given = parser.parse_args()
    make_spx(given.name, given.path, size=given.size)
