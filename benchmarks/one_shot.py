"""Claim: a trained dense network meets a named total to the weight at once; one epoch wins most of the loss back.

Takes the ResNet20 (268,336 weights) and the ResNet56 (848,944) that akamaster/pytorch_resnet_cifar10 published for
CIFAR-10, and prunes them to 80, 90, 95 and 98 %: all at once without training, as they are and with batch norm measured
again on 20 batches of 128 training images, by several methods; and with the recipes NETWORK/cifar10-finetune. Global
magnitude (`GMP()` with a goal) is scored on all 10,000 test images, the other ways on the first 1,000, whose standard
error is up to 1.6 points. ResNet20 is tuned for one epoch (391 steps of 128), ResNet56 on 12,800 images (100 steps).
One seed, one thread. A cell is a JSON file, and a run folder where it is trained; finished ones are skipped,
stopped ones go on, so the script can be called until all are there. Run:

    python benchmarks/one_shot.py --data data --runs runs/one_shot --out benchmarks/results/one_shot
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import softprune
from softprune import GMP, STR, Sparsity, constant, erk, uniform
from softprune.methods.base import Method
from softprune.nn.catalog import build
from softprune.train.assembly import load_weights_
from softprune.train.config import RunConfig
from softprune.train.data import Epoch, Source, open_data
from softprune.train.load_run import read_weights
from softprune.train.run import resume, train

LEVELS = (0.8, 0.9, 0.95, 0.98)
BATCH, CALIBRATION, FEW = 128, 20, 1000
BEST = "gmp, global"
TUNED = "fine-tuned"
# What is changed in the recipe, beside the goal. The second tells whether the method matters; ResNet20 at 95 % only.
TUNES: dict[str, tuple[str, ...]] = {TUNED: (), "fine-tuned by gmp": ("method=gmp",)}
# How to prune all at once: the method, and who shares the total out ("" leaves it to the method).
WAYS: dict[str, tuple[Method, str]] = {
    BEST: (GMP(), ""),
    "gmp, erk": (GMP(), "erk"),
    "gmp, uniform": (GMP(), "uniform"),
    "str, equal": (STR(start="equal"), ""),
    "str, equal, rescaled": (STR(start="equal", rescale=True), ""),
    "str, mean": (STR(start="mean"), ""),
    "str, mean, rescaled": (STR(start="mean", rescale=True), ""),
}


@dataclass(frozen=True)
class Network:
    """A trained network, and what is changed in its recipe to keep this short."""

    file: str
    changes: tuple[str, ...] = ()


NETWORKS = {
    "resnet20": Network("resnet20-12fca82f.th"),
    "resnet56": Network("resnet56-4bfd9763.th", ("data.subset=12800",)),
}


@dataclass(frozen=True)
class Cell:
    """One result."""

    network: str
    way: str
    level: float

    @property
    def name(self) -> str:
        return f"{self.network}-{self.way}-{100 * self.level:g}".replace(", ", "-")


def cells(network: str) -> list[Cell]:
    """So ordered that the first ones alone make a table."""
    main = [Cell(network, way, level) for way in (BEST, TUNED) for level in LEVELS]
    others = [Cell(network, way, level) for level in LEVELS for way in WAYS if way != BEST]
    tunes = [Cell(network, tune, 0.95) for tune in TUNES if tune != TUNED and network == "resnet20"]
    return [Cell(network, "dense", 0.0), *main, *others, *tunes]


# measuring


class Bench:
    """The checkpoints and the images, read when they are first needed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._source: Source | None = None

    @property
    def source(self) -> Source:
        if self._source is None:
            self._source = open_data("cifar10", root=self.options.data, normalise="imagenet")
        return self._source

    def checkpoint(self, network: str) -> Path:
        return Path(self.options.checkpoints) / NETWORKS[network].file

    def trained(self, network: str) -> torch.nn.Module:
        path = self.checkpoint(network)
        model = load_weights_(build(network), read_weights(path), origin=str(path))
        return model.to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]

    @torch.no_grad()
    def accuracy(self, model: torch.nn.Module, images: int) -> float:
        """In percent, on the first images of the test batch."""
        model.eval()
        right = seen = 0
        for inputs, labels in self.source.test_epoch(batch=500):
            if seen == images:
                break
            logits = model(inputs.to(memory_format=torch.channels_last))
            right += int(logits.argmax(1).eq(labels).sum())
            seen += len(labels)
        return 100 * right / seen

    def calibration(self) -> Iterator[torch.Tensor]:
        epoch = Epoch(number=0, seed=0, batch=BATCH)
        for _, (inputs, _) in zip(range(CALIBRATION), self.source.train_epoch(epoch), strict=False):
            yield inputs.to(memory_format=torch.channels_last)

    def measure(self, cell: Cell) -> dict[str, Any]:
        if cell.way in TUNES:
            return self.tune(cell)
        model, images = self.trained(cell.network), 10_000 if cell.way in ("dense", BEST) else FEW
        if cell.way == "dense":
            return {"accuracy": self.accuracy(model, images), "images": images}
        method, shared_by = WAYS[cell.way]
        if shared_by:
            costs = softprune.profile(model, torch.zeros(1, 3, 32, 32))
            budget = (erk if shared_by == "erk" else uniform)(costs, Sparsity(cell.level))
            sparsifier = softprune.sparsify(model, method, budget=budget, schedule=constant())
        else:
            sparsifier = softprune.sparsify(model, method, goal=Sparsity(cell.level), schedule=constant())
        found = {"images": images, "as it is": self.accuracy(model, images)}
        softprune.recalibrate_bn(model, self.calibration())
        found["accuracy"] = self.accuracy(model, images)
        weights = sum(t.params for t in sparsifier.profile)
        kept = sum(int(torch.count_nonzero(model.get_parameter(name))) for name in baked_names(sparsifier))
        return found | distance(kept, weights, cell.level)

    def tune(self, cell: Cell) -> dict[str, Any]:
        folder = Path(self.options.runs) / cell.name
        if (folder / "config.yaml").is_file():
            outcome = resume(folder)
        else:
            changes = [f"model.weights={self.checkpoint(cell.network)}", f"data.root={self.options.data}"]
            changes += [*NETWORKS[cell.network].changes, f"goal.sparsity={cell.level}", "channels_last=true"]
            changes += ["threads=1", "checkpoint.every_steps=50", *TUNES[cell.way], *self.options.change]
            outcome = train(RunConfig.load(f"{cell.network}/cifar10-finetune", changes), folder)
        if not outcome.finished:
            sys.exit(f"{folder} was stopped; call again to go on")
        last, budget = outcome.result["last"], outcome.budget
        assert budget is not None
        found = {"images": 10_000, "accuracy": 100 * last["accuracy"], "steps": last["step"]}
        return found | distance(budget.params, sum(t.params for t in budget.profile or ()), cell.level)


def baked_names(sparsifier: softprune.Sparsifier) -> list[str]:
    """Bake, and name the tensors with zeros in the plain network."""
    names = list(sparsifier.measure())
    sparsifier.bake()
    return names


def distance(kept: int, weights: int, level: float) -> dict[str, Any]:
    return {"kept": kept, "error": kept - (weights - round(level * weights))}


# telling


def table(found: dict[str, dict[str, Any]], network: str) -> list[str]:
    """The main table of a network: one row per level."""
    dense = found.get(Cell(network, "dense", 0.0).name)
    if dense is None:
        return []
    lines = [
        f"{network}, dense {dense['accuracy']:.2f} %",
        "",
        "| sparsity | weights left | at once | with batch norm measured again | fine-tuned | steps | error, weights |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for level in LEVELS:
        once, tuned = (found.get(Cell(network, way, level).name, {}) for way in (BEST, TUNED))
        errors = sorted({cell["error"] for cell in (once, tuned) if cell})
        row = [
            f"{100 * level:g} %",
            f"{once['kept']:,}" if once else "",
            percent(once.get("as it is")),
            percent(once.get("accuracy")),
            percent(tuned.get("accuracy")),
            str(tuned.get("steps", "")),
            ", ".join(map(str, errors)),
        ]
        lines.append(f"| {' | '.join(row)} |")
    for tune in TUNES:
        other = found.get(Cell(network, tune, 0.95).name)
        if tune != TUNED and other:
            lines += ["", f"At 95 %, {tune}: {other['accuracy']:.2f} %, error {other['error']} weights."]
    return [*lines, ""]


def comparison(found: dict[str, dict[str, Any]], network: str) -> list[str]:
    """All ways to prune at once, before and after batch norm was measured again."""
    lines = [
        f"{network}, all at once: as it is / with batch norm measured again, %",
        "",
        f"| method | {' | '.join(f'{100 * level:g} %' for level in LEVELS)} | largest error, weights |",
        f"| --- | {' | '.join('---' for _ in LEVELS)} | --- |",
    ]
    for way in WAYS:
        row = [found.get(Cell(network, way, level).name) for level in LEVELS]
        if not any(row):
            continue
        scores = [f"{cell['as it is']:.1f} / {cell['accuracy']:.1f}" if cell else "" for cell in row]
        worst = max((cell["error"] for cell in row if cell), key=abs)
        lines.append(f"| {way} | {' | '.join(scores)} | {worst} |")
    return [*lines, ""]


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} %"


def report(options: argparse.Namespace, todo: list[Cell]) -> None:
    found = {cell.name: json.loads(file(options, cell).read_text()) for cell in todo if file(options, cell).is_file()}
    lines = [" ".join(filter(None, [f"{len(found)} of {len(todo)} cells.", options.note])), ""]
    for network in options.networks:
        lines += table(found, network)
    for network in options.networks:
        lines += comparison(found, network)
    text = "\n".join(lines)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        facts = {"command": "python " + " ".join(sys.argv), "torch": torch.__version__, "changes": options.change}
        facts["note"] = options.note
        options.out.with_suffix(".json").write_text(json.dumps({**facts, "cells": found}, indent=2) + "\n")
        options.out.with_suffix(".md").write_text(text)


def file(options: argparse.Namespace, cell: Cell) -> Path:
    return Path(options.runs) / f"{cell.name}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("change", nargs="*", help="changes to the recipes, such as optimizer.lr=0.1")
    parser.add_argument("--checkpoints", type=Path, default=Path("../shared/data/checkpoints"))
    parser.add_argument("--data", type=Path, default=Path("data"), help="the root of CIFAR-10")
    parser.add_argument("--runs", type=Path, default=Path("runs/one_shot"), help="where the cells are")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--only", nargs="+", choices=["dense", *WAYS, *TUNES], help="measure only these; tell of all")
    parser.add_argument("--report", action="store_true", help="print the table of what is there, measure nothing")
    parser.add_argument("--note", default="", help="what a reader has to know, such as the code that was measured")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    options = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    todo = [cell for network in options.networks for cell in cells(network)]
    bench = Bench(options)
    for cell in todo:
        if options.report or file(options, cell).is_file() or (options.only and cell.way not in options.only):
            continue
        began = time.perf_counter()
        found = bench.measure(cell)
        found["seconds"] = round(time.perf_counter() - began, 1)
        options.runs.mkdir(parents=True, exist_ok=True)
        file(options, cell).write_text(json.dumps(found) + "\n")
        print(cell.name, found, flush=True)
    report(options, todo)


if __name__ == "__main__":
    main()
