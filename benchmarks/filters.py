"""Filters at equal multiply-adds: STR and GMP with a Flops goal, and GMP with the same share of filters in every layer.

    python benchmarks/filters.py --runs runs/filters --out benchmarks/results/filters

A CNN (261,392 weights) learns from 10,000 images of Fashion-MNIST, 8 epochs, with the same steps, order of data and
optimizer for every method. Afterwards the network is shrunk and multiply-adds are counted on the smaller module, whose
time is taken against that of the dense one, one call each in turn, with one thread and a batch of 32. Accuracy is of
the shrunken module on the 10,000 test images. A cell takes about a minute of one core; cells that are there are not
made again.
"""

from __future__ import annotations

import argparse
import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cells import Alone, add_options, markdown, paired, read_result, spread, spread_text, work, write
from racing import fastest, race
from torch import Tensor, nn

import softprune
from softprune import GMP, STR, Budget, Flops, Units, profile, shrink, sparsify
from softprune.budget.costs import equal_density
from softprune.nn.small import small_cnn
from softprune.train.data.digits import FASHION_MNIST, read_mnist
from softprune.train.data.source import MemorySamples, balanced

IMAGES, BATCH, RATE = 10_000, 128, 0.1
EXAMPLE = torch.zeros(1, 1, 28, 28)
DENSE, STR_FLOPS, GMP_FLOPS, GMP_UNIFORM = "dense", "str flops", "gmp flops", "gmp uniform"
METHODS = (STR_FLOPS, GMP_FLOPS, GMP_UNIFORM)
LEVELS = (0.3, 0.1)
SEEDS = (0, 1, 2)
ROUNDS = 100


@dataclass(frozen=True)
class Cell(Alone):
    """One training.

    Args:
        method: one of METHODS, or dense.
        level: share of the multiply-adds that may be left.
        seed: of weights and order.
    """

    method: str
    level: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method.replace(' ', '-')}-{100 * self.level:g}-seed{self.seed}"


def cells() -> list[Cell]:
    return [
        cell
        for seed in SEEDS
        for cell in (Cell(DENSE, 1.0, seed), *(Cell(method, level, seed) for level in LEVELS for method in METHODS))
    ]


def pruned(model: nn.Module, cell: Cell) -> softprune.Sparsifier:
    """The model with gates and a goal."""
    goal = Flops(round(cell.level * profile(model, EXAMPLE).total_macs()))
    method = STR() if cell.method == STR_FLOPS else GMP()
    if cell.method != GMP_UNIFORM:
        return sparsify(model, method, goal=goal, units=Units.filter, example=EXAMPLE)
    # In a chain of layers it plays no part which filters of a layer stay.
    tried = sparsify(copy.deepcopy(model), method, goal=goal, units=Units.filter, example=EXAMPLE)
    cost = tried.goals[0].joint
    assert cost is not None
    share = equal_density(cost.at_density, goal.macs)
    while cost.at_density(share) > goal.macs:
        share -= 1e-3
    sizes = {target.name: target.shape.numel() for target in tried.targets}
    budget = Budget({name: round(share * size) / size for name, size in sizes.items()}, profile=tried.profile)
    return sparsify(model, method, budget=budget, units=Units.filter, example=EXAMPLE)


def train(model: nn.Module, sparsifier: softprune.Sparsifier | None, seed: int, epochs: int) -> None:
    samples, _ = read_mnist(FASHION_MNIST, None, augment=False)
    chosen = balanced(samples.labels, IMAGES)
    groups: Any = (
        model.parameters() if sparsifier is None else sparsifier.param_groups(weight_decay=5e-4, norm_decay=5e-4)
    )
    optimizer = torch.optim.SGD(groups, lr=RATE, momentum=0.9, weight_decay=5e-4)
    steps = epochs * (IMAGES // BATCH)
    if sparsifier is not None:
        sparsifier.attach(optimizer, total_steps=steps)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for indices in chosen[torch.randperm(IMAGES, generator=generator)].split(BATCH):
            if len(indices) < BATCH:
                continue
            images, labels = samples.batch(indices, draws=None)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 3.0)
            optimizer.step()
            schedule.step()


@torch.no_grad()
def accuracy(model: nn.Module, samples: MemorySamples) -> float:
    model.eval()
    right = 0
    for indices in torch.arange(len(samples.labels)).split(500):
        images, labels = samples.batch(indices, draws=None)
        right += int((model(images).argmax(1) == labels).sum())
    return 100 * right / len(samples.labels)


def speed(small: nn.Module) -> float:
    """How many times as fast as the dense network it is."""
    images = torch.randn(32, 1, 28, 28)
    dense = small_cnn().eval()

    def turn(model: nn.Module) -> Any:
        def call() -> Tensor:
            return model(images)

        return call

    with torch.no_grad():
        seconds = race({"dense": turn(dense), "small": turn(small.eval())}, ROUNDS)
    return fastest(seconds["dense"]) / fastest(seconds["small"])


def made(cell: Cell, folder: Path, change: list[str]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(cell.seed)
    epochs = int(dict(text.split("=") for text in change).get("epochs", 8))
    model = small_cnn()
    sparsifier = None if cell.method == DENSE else pruned(model, cell)
    train(model, sparsifier, cell.seed, epochs)
    small = model.eval() if sparsifier is None else shrink(sparsifier.bake(), EXAMPLE).model
    costs = profile(small, EXAMPLE)
    widths = [m.out_channels if isinstance(m, nn.Conv2d) else m.out_features for m in layers(small)]
    result = {
        "method": cell.method, "level": cell.level, "seed": cell.seed, "macs": costs.total_macs(),
        "weights": costs.params,
        "accuracy": accuracy(small, read_mnist(FASHION_MNIST, None, augment=False)[1]), "widths": widths,
        "speed": speed(small), "epochs": epochs,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "result.part"
    part.write_text(json.dumps(result, indent=2) + "\n")
    part.rename(folder / "result.json")


def layers(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


def report(options: argparse.Namespace, todo: list[Cell], done: list[Cell]) -> None:
    there = [read_result(options.runs / cell.name) for cell in done]
    rows = []
    for level, method in [(1.0, DENSE), *((level, method) for level in LEVELS for method in METHODS)]:
        mine = [r for r in there if (r["method"], r["level"]) == (method, level)]
        if not mine:
            continue
        rival = [r for r in there if (r["method"], r["level"]) == (STR_FLOPS, level)]
        gap = paired(mine, rival, "accuracy") if method not in (DENSE, STR_FLOPS) else None
        numbers = {key: spread([r[key] for r in mine]) for key in ("accuracy", "macs", "weights", "speed")}
        rows.append([
            f"{100 * level:g} %", method, str(len(mine)), spread_text(numbers["accuracy"]),
            "" if gap is None else f"{gap['mean']:+.2f}", f"{numbers['macs']['mean']:,.0f}",
            f"{numbers['weights']['mean']:,.0f}", f"{numbers['speed']['mean']:.2f}",
            " ".join(map(str, mine[0]["widths"])),
        ])  # fmt: skip
    head = [
        "multiply-adds",
        "method",
        "seeds",
        "accuracy, %",
        "to STR",
        "left",
        "weights",
        "times as fast",
        "widths, first seed",
    ]
    write(options, markdown(head, rows), {"cells": there})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "runs/filters")
    options = parser.parse_args()
    work(
        options,
        cells(),
        train=lambda cell: made(cell, options.runs / cell.name, options.change),
        minutes=lambda cell: 1.0,
        report=report,
    )


if __name__ == "__main__":
    main()
