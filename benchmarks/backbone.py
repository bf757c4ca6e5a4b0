"""Claim: a sparse backbone can be handed on: with its zeros kept and a new head it learns another data set.

Takes the CNN that STR trained to 98 % on Fashion-MNIST (a cell of target.py), gives it a new last layer, keeps its
zeros with `softprune.freeze_support`, and trains it on the handwritten digits of scikit-learn (1,280 images, enlarged
to 28x28) and on 5,000 images of CIFAR-10 (grey, the middle 28x28 pixels). Beside it: the dense CNN of the same seed;
the backbone with only its head trained; the same zeros with new weights; a dense network with new weights. 12 epochs
of batch 64, SGD with momentum 0.9 and a cosine from 0.02, three seeds. A cell is a JSON file; finished ones are
skipped. Run after target.py:

    python benchmarks/backbone.py --data data --out benchmarks/results/backbone
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cells import add_options, gap_text, markdown, paired, spread, spread_text, write
from fashion import DENSE, GOAL, RUNS
from fashion import Cell as Origin
from torch import Tensor, nn

import softprune
from softprune.nn.small import small_cnn
from softprune.train.data import Epoch, Source, open_data
from softprune.train.load_run import plain_weights

LEVEL, SEEDS = 0.98, 3
EPOCHS, BATCH, RATE = 12, 64, 0.02
HEAD = "17"
SPARSE = "sparse backbone"
STARTS = (SPARSE, "sparse backbone, head only", "dense backbone", "same zeros, new weights", "dense, new weights")
DATA = {"digits": None, "cifar10": 5000}


@dataclass(frozen=True)
class Cell:
    """One training."""

    data: str
    start: str
    seed: int

    @property
    def name(self) -> str:
        return f"backbone-{self.data}-{self.start}-seed{self.seed}".replace(", ", "-").replace(" ", "-")


def cells(data: list[str]) -> list[Cell]:
    return [Cell(name, start, seed) for seed in range(SEEDS) for name in data for start in STARTS]


def open_source(options: argparse.Namespace, name: str) -> Source:
    return open_data(name, root=options.data if name == "cifar10" else None, subset=DATA[name])


def adapted(images: Tensor) -> Tensor:
    """As the CNN takes them: one channel of 28x28 pixels."""
    grey = images.mean(1, keepdim=True)
    if grey.shape[-1] >= 28:
        edge = (grey.shape[-1] - 28) // 2
        return grey[..., edge : edge + 28, edge : edge + 28]
    return nn.functional.interpolate(grey, size=(28, 28), mode="bilinear", align_corners=False)


def network(options: argparse.Namespace, cell: Cell) -> nn.Module:
    """The CNN as its training begins."""
    torch.manual_seed(1000 + cell.seed)
    model = small_cnn()
    if cell.start == "dense, new weights":
        return model
    dense = cell.start == "dense backbone"
    origin = Origin("cnn", DENSE if dense else GOAL, 0.0 if dense else LEVEL, cell.seed)
    weights = plain_weights(options.runs / origin.name)
    fresh = model.state_dict()
    for name in weights:
        if name.startswith(f"{HEAD}."):
            weights[name] = fresh[name]
        elif cell.start == "same zeros, new weights":
            weights[name] = fresh[name] * (weights[name] != 0) if weights[name].ndim > 1 else fresh[name]
    model.load_state_dict(weights)
    if not dense:
        softprune.freeze_support(model)
    if cell.start.endswith("head only"):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(f"{HEAD}."))
    return model


def learn(model: nn.Module, source: Source, *, seed: int, frozen: bool) -> None:
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(learnt, lr=RATE, momentum=0.9, weight_decay=5e-4)
    steps = EPOCHS * sum(1 for _ in batches(source, 0, seed))
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train(not frozen)  # a backbone that does not learn keeps its batch norm
    for number in range(EPOCHS):
        for images, labels in batches(source, number, seed):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            rate.step()


def batches(source: Source, number: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    for images, labels in source.train_epoch(Epoch(number=number, seed=seed, batch=BATCH)):
        yield adapted(images), labels


@torch.no_grad()
def accuracy(model: nn.Module, source: Source) -> float:
    model.eval()
    right = seen = 0
    for images, labels in source.test_epoch(batch=500):
        right += int(model(adapted(images)).argmax(1).eq(labels).sum())
        seen += len(labels)
    return 100 * right / seen


def zeros(model: nn.Module) -> Tensor:
    """Where the weights of the backbone are zero, as one long mask."""
    layers = [m for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear) and name != HEAD]
    return torch.cat([layer.weight.detach().flatten() for layer in layers]) == 0


def measure(options: argparse.Namespace, cell: Cell) -> dict[str, Any]:
    torch.set_num_threads(1)
    model, source = network(options, cell), open_source(options, cell.data)
    before = zeros(model)
    learn(model, source, seed=cell.seed, frozen=cell.start.endswith("head only"))
    kept = bool((zeros(model) & before).sum() == before.sum())
    sparsity = float(before.double().mean())
    return {"seed": cell.seed, "accuracy": accuracy(model, source), "sparsity": sparsity, "every zero kept": kept}


def report(options: argparse.Namespace, todo: list[Cell]) -> None:
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in todo:
        if file(options, cell).is_file():
            runs.setdefault((cell.data, cell.start), []).append(json.loads(file(options, cell).read_text()))
    rows, lines = [], []
    for (data, start), found in runs.items():
        gap = paired(found, runs.get((data, SPARSE), []), "accuracy") if start != SPARSE else None
        row = {"data": data, "start": start, "accuracy": spread([r["accuracy"] for r in found]), "runs": found}
        rows.append(row | {"difference": gap})
        zero = (
            f"{100 * found[0]['sparsity']:.1f} %, {'kept' if all(r['every zero kept'] for r in found) else 'not kept'}"
        )
        lines.append([data, start, str(len(found)), spread_text(row["accuracy"]), gap_text(gap), zero])
    head = ["data", "start", "seeds", "accuracy, %", "difference to the sparse backbone", "zeros in the backbone"]
    done = sum(map(len, runs.values()))
    text = f"{done} of {len(todo)} cells; {EPOCHS} epochs; mean ± standard deviation, differences paired by seed.\n\n"
    write(options, text + markdown(head, lines), {"cells": {"done": done, "all": len(todo)}, "rows": rows})


def file(options: argparse.Namespace, cell: Cell) -> Path:
    return Path(options.runs) / f"{cell.name}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, runs=RUNS)
    parser.add_argument("--data", type=Path, help="the root of CIFAR-10; without it only the digits are learnt")
    options = parser.parse_intermixed_args()
    todo = cells(list(DATA) if options.data else ["digits"])
    for cell in todo:
        if options.plan or options.report or file(options, cell).is_file():
            continue
        file(options, cell).write_text(json.dumps(measure(options, cell)) + "\n")
        print(cell.name, "done", flush=True)
    report(options, todo)


if __name__ == "__main__":
    main()
