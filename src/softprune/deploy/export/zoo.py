"""Networks with a published budget and random weights: the zeros decide the time, the values do not."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor, nn

from softprune.budget.budget import Budget
from softprune.nn.catalog import build, example_shape

DENSE, UNIFORM = "dense", "uniform-"


def sparse_network(name: str, *, seed: int = 0) -> nn.Module:
    """A network in eval mode with random weights, of which as many are zero as the budget says.

    Args:
        name: of a published budget, "resnet50/str-90.23"; "resnet50/dense" and "resnet50/uniform-80" too, for every
            network of the catalog.
        seed: of weights and zeros; the same name and seed give the same network.

    Example:
        >>> network = sparse_network("digits/uniform-90")
        >>> round(float((network[3].weight == 0).float().mean()), 2)
        0.9
    """
    network, slash, budget = name.partition("/")
    if not slash or not budget:
        raise ValueError(
            f"{name!r} names no budget: write network/budget, such as resnet50/str-90.23, resnet50/uniform-80 or "
            "resnet50/dense; `softprune budget list` has the published ones"
        )
    generator = torch.Generator().manual_seed(seed)
    module = build(network).eval()
    densities = _densities(name, budget, module)
    with torch.no_grad():
        for path, weight in module.named_parameters():
            if path in densities:
                fill_(weight, densities[path], generator)
            elif path.endswith("bias"):
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return module


def zoo_example(name: str, *, size: int | None = None) -> Tensor:
    """One input of the network that a zoo name begins with, with ``size`` pixels a side if it takes images."""
    shape = example_shape(name.partition("/")[0])
    if size is None:
        return torch.zeros(shape)
    if size < 1 or len(shape) != 4:
        raise ValueError(f"the size of images is {size}, must be 1 or more for a network that takes images")
    return torch.zeros(*shape[:2], size, size)


def fill_(weight: Tensor, density: float, generator: torch.Generator) -> Tensor:
    """Make a weight random, and all but a share of it zero; at least one stays."""
    kept = torch.zeros(weight.numel())
    count = max(1, round(density * weight.numel()))
    kept[torch.randperm(weight.numel(), generator=generator)[:count]] = 1
    # As large as keeps the size of the signal with so few weights.
    scale = (2 * weight.shape[0] / count) ** 0.5
    return weight.copy_(torch.randn(weight.shape, generator=generator) * kept.view_as(weight) * scale)


def _densities(name: str, budget: str, module: nn.Module) -> dict[str, float]:
    shapes = {path: weight.shape for path, weight in module.named_parameters() if weight.ndim > 1}
    if budget == DENSE:
        return dict.fromkeys(shapes, 1.0)
    if not budget.startswith(UNIFORM):
        return dict(Budget.load(name))
    density = 1.0 - _percent(name, budget) / 100
    first = next(iter(shapes))
    # The first layer and depthwise kernels stay dense, as is usual.
    return {path: 1.0 if path == first or shape[1] == 1 else density for path, shape in shapes.items()}


def _percent(name: str, budget: str) -> float:
    text = budget.removeprefix(UNIFORM)
    value = -1.0
    with suppress(ValueError):
        value = float(text)
    if not 0 <= value < 100:
        raise ValueError(f"{name!r}: uniform-{text} must end in a percentage of zeros from 0 to below 100")
    return value
