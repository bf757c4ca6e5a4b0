"""Small networks whose weights are the same on every machine, and how the files of before were made with them.

Weights are dyadic numbers from integers of numpy: no rounding, no random generator of torch.
"""

import numpy as np
import torch
from torch import Tensor, nn

from softprune import GMP, STR, Sparsifier, Sparsity, sparsify
from softprune.nn import LowRankLinear


def dyadic(shape: tuple[int, ...], rng: np.random.Generator, *, steps: int = 64) -> Tensor:
    """Numbers in [-1, 1] that are whole multiples of 1 / steps."""
    return torch.from_numpy(rng.integers(-steps, steps + 1, size=shape).astype(np.float32) / steps)


@torch.no_grad()
def filled(model: nn.Module, *, seed: int = 0, steps: int = 64) -> nn.Module:
    """The model with dyadic numbers in all matrices and kernels; norms and biases stay."""
    rng = np.random.default_rng(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.copy_(dyadic(tuple(parameter.shape), rng, steps=steps))
        else:
            parameter.copy_(torch.ones_like(parameter))
    return model


def cnn() -> nn.Sequential:
    """Two convolutions, a norm and a linear layer for 1x8x8 images."""
    return filled(nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 10),
    ))  # fmt: skip


def perceptron() -> nn.Sequential:
    """Four tensors, of which two are matrices."""
    return filled(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4)))


def low_rank() -> nn.Sequential:
    """A layer that learns its rank."""
    return filled(nn.Sequential(LowRankLinear(16, 12, learned=True), nn.ReLU(), nn.Linear(12, 4)))


def images(count: int = 16, *, seed: int = 1) -> Tensor:
    return dyadic((count, 1, 8, 8), np.random.default_rng(seed))


def rows(count: int = 16, *, seed: int = 1) -> Tensor:
    return dyadic((count, 16), np.random.default_rng(seed))


def labels(count: int = 16, *, classes: int = 4, seed: int = 2) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, classes, size=count))


# The sparsifiers whose checkpoints are kept: how each was made, and for how many steps it was to train.
TOTAL_STEPS = 12
KEPT = ("str_goal", "gmp_goal", "str_paper")


def kept_sparsifier(name: str) -> tuple[Sparsifier, torch.optim.Optimizer]:
    """The sparsifier of a kept checkpoint on a fresh network before its first step, and the optimizer it follows."""
    model = cnn()
    if name == "str_goal":
        sparsifier = sparsify(model, STR(), goal=Sparsity(0.75), example=images(1), seed=3)
    elif name == "gmp_goal":
        sparsifier = sparsify(model, GMP(every=2), goal=Sparsity(0.75), example=images(1), seed=3)
    else:
        sparsifier = sparsify(model, STR(s_init=-3.0), example=images(1), seed=3)
    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=0.01), lr=0.02, momentum=0.9)
    sparsifier.attach(optimizer, total_steps=TOTAL_STEPS)
    return sparsifier, optimizer


def train(sparsifier: Sparsifier, optimizer: torch.optim.Optimizer, *, steps: int) -> None:
    """So many steps on the same batch."""
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(sparsifier.model(images()), labels(classes=10)).backward()
        optimizer.step()


def exact_network() -> nn.Module:
    """All that it computes is exact in 32 bits for dyadic inputs, so that every processor and kernel gives the same.

    The norm has eps + variance = 1, the pools take the mean over powers of two, and numbers are multiples of 1 / 4.
    """
    rng = np.random.default_rng(5)
    norm = nn.BatchNorm2d(8, eps=0.25)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), norm, nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    filled(model, seed=4, steps=4)
    with torch.no_grad():
        norm.running_mean.copy_(dyadic((8,), rng, steps=4))
        norm.running_var.fill_(0.75)
        norm.weight.fill_(0.5)
        norm.bias.copy_(dyadic((8,), rng, steps=4))
        for module in (model[0], model[4], model[8]):
            keep = torch.from_numpy(rng.random(tuple(module.weight.shape)) < 0.4)
            module.weight.mul_(keep)
    return model.eval()


def exact_inputs() -> Tensor:
    return dyadic((3, 1, 8, 8), np.random.default_rng(6), steps=4)


def little_cnn() -> nn.Module:
    """The network of the run folder that is kept, small so that its checkpoints are."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 10)
    )
