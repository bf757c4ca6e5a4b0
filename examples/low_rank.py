"""Claim: a trained network gets smaller by ranks that are learnt, with little loss and nothing said about each layer.

The matrices of a trained network are split by their singular values (`LowRankLinear.from_dense`), which become
importances of directions. STR with a goal then learns which of all directions, in all layers together, are needed,
while the rest of the network trains on. At the end the directions that are zero are folded away. Two networks on
1,280 real digits of 8 x 8 pixels (517 to test), which ship with scikit-learn:

    mlp    three linear layers of 256 units
    conv   a 3 x 3 convolution, then 1 x 1 convolutions of 64 and 128 channels

Printed for each: parameters and test accuracy of the trained network, of the same ranks by singular values alone and
of the learnt ones, and the ranks. One seed, one core, some seconds:

    python examples/low_rank.py
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import softprune
from softprune import STR, Sparsity, Units
from softprune.nn import LowRankLinear
from softprune.nn.low_rank import fold
from softprune.train.data.digits import Digits, load_digits

BATCH = 64


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 64, 3), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 128, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(),
        nn.Conv2d(128, 128, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Sequential]] = {"mlp": mlp, "conv": conv}


@dataclass(frozen=True)
class Found:
    """A network after some way to make it smaller."""

    parameters: int
    accuracy: float


def split(model: nn.Sequential) -> nn.Sequential:
    """A copy whose matrices, but for that of the outputs, are products with their singular values as importances."""
    thin = copy.deepcopy(model)
    for name, layer in list(thin.named_children())[:-1]:
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1)):
            setattr(thin, name, LowRankLinear.from_dense(layer))
    return thin


def learn_ranks(model: nn.Sequential, data: Digits, *, share: float, epochs: int, seed: int) -> nn.Sequential:
    """Take the share of all directions out of a trained network while it trains on."""
    thin = split(model)
    sparsifier = softprune.sparsify(thin, STR(), goal=Sparsity(share), units=Units.rank, seed=seed)
    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=1e-4), lr=0.02, momentum=0.9)
    sparsifier.attach(optimizer, total_steps=epochs * steps(data))
    train(thin, data, optimizer, epochs=epochs, seed=seed)
    return fold(sparsifier.bake()).eval()  # type: ignore[return-value]


@torch.no_grad()
def cut_ranks(model: nn.Sequential, *, share: float) -> nn.Sequential:
    """The same number of directions, those of the largest singular values, without training."""
    thin = split(model)
    values = [module.m for module in thin.modules() if isinstance(module, LowRankLinear) and module.m is not None]
    least = torch.cat(values).sort().values[round(share * sum(map(len, values)))]
    for m in values:
        m[m < least] = 0.0
    return fold(thin).eval()  # type: ignore[return-value]


def train(model: nn.Module, data: Digits, optimizer: torch.optim.Optimizer, *, epochs: int, seed: int) -> None:
    order = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(data.train_images), generator=order).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(data.train_images[chosen]), data.train_labels[chosen]).backward()
            optimizer.step()


def steps(data: Digits) -> int:
    return -(-len(data.train_images) // BATCH)


@torch.no_grad()
def judge(model: nn.Module, data: Digits) -> Found:
    right = model.eval()(data.test_images).argmax(1).eq(data.test_labels)
    return Found(sum(p.numel() for p in model.parameters()), float(right.float().mean()))


def ranks(model: nn.Module) -> list[int]:
    return [module.rank for module in model.modules() if isinstance(module, LowRankLinear)]


def run(name: str, *, share: float, epochs: int, seed: int) -> dict[str, Found]:
    """Train a network, make it smaller in two ways, and print what came out."""
    data = load_digits()
    torch.manual_seed(seed)
    model = NETWORKS[name]()
    train(model, data, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), epochs=epochs, seed=seed)
    learnt = learn_ranks(model, data, share=share, epochs=epochs, seed=seed)
    found = {
        "trained": judge(model, data),
        "singular values": judge(cut_ranks(model, share=share), data),
        "learnt ranks": judge(learnt, data),
    }
    for way, one in found.items():
        print(f"{name:5}  {way:16}  {one.parameters:7,} parameters  {one.accuracy:.2%}")
    print(f"{name:5}  ranks that stay: {', '.join(map(str, ranks(learnt)))}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.9, help="of all directions that shall go")
    parser.add_argument("--epochs", type=int, default=15, help="of each of the two trainings")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in NETWORKS:
        run(name, share=options.share, epochs=options.epochs, seed=options.seed)


if __name__ == "__main__":
    main()
