"""Claim: int8 by calibration alone is within 0.2 points of float32 on real sparse networks, with 99 % equal answers.

Takes the ResNet20 and the ResNet56 that akamaster/pytorch_resnet_cifar10 published for CIFAR-10, dense and pruned to
80, 90 and 95 % by the recipes NETWORK/cifar10-finetune (ResNet56 on 12,800 images, 100 steps), as
benchmarks/one_shot.py does. Each is quantised by `softprune.quantize` with 512 training images without labels, and both
forms answer the 10,000 test images. One seed, one draw of calibration images, one thread. A cell is a JSON file, and a
run folder where it is trained; finished ones are skipped, stopped ones go on, so the script can be called until all are
there. Run:

    python benchmarks/int8_accuracy.py --data data --runs runs/int8_accuracy --out benchmarks/results/int8_accuracy
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from one_shot import NETWORKS, TUNED, Bench, Cell

import softprune
from softprune.nn.catalog import build
from softprune.train.assembly import load_weights_
from softprune.train.data import Epoch, open_data
from softprune.train.load_run import bake_run, read_weights

LEVELS = (0.0, 0.8, 0.9, 0.95)
IMAGES, CALIBRATION = 10_000, 512
EXAMPLE = torch.zeros(1, 3, 32, 32)


def cells(networks: list[str]) -> list[Cell]:
    """So ordered that the first ones alone make a table."""
    return [Cell(network, TUNED if level else "dense", level) for network in networks for level in LEVELS]


def network(bench: Bench, cell: Cell) -> torch.nn.Module:
    """The trained network of a cell with its zeros, tuned first where that is not done yet."""
    if not cell.level:
        path = bench.checkpoint(cell.network)
    else:
        bench.tune(cell)
        path = Path(bench.options.runs) / f"{cell.name}.safetensors"
        bake_run(Path(bench.options.runs) / cell.name, path)
    return load_weights_(build(cell.network), read_weights(path), origin=str(path)).eval()


def measure(bench: Bench, cell: Cell) -> dict[str, Any]:
    model = network(bench, cell)
    source = open_data("cifar10", root=bench.options.data, normalise="imagenet", augment=False)
    epoch = source.train_epoch(Epoch(number=0, seed=0, batch=128))
    began = time.perf_counter()
    quantised = softprune.quantize(model, islice(epoch, CALIBRATION // 128))
    seconds = time.perf_counter() - began
    files = [Path(bench.options.runs) / f"{cell.name}-{kind}.spx" for kind in ("float32", "int8")]
    softprune.export(model, files[0], example=EXAMPLE)
    quantised.save(files[1])
    report = quantised.report
    return {
        "images": IMAGES,
        **compare(model, quantised, source),
        "calibration": dict(report.errors),
        "ranges": report.ranges,
        "weights": sum(p.numel() for p in model.parameters() if p.ndim > 1),
        "nonzeros": sum(layer.nonzeros for layer in report.layers),
        "vanished": sum(layer.vanished for layer in report.layers),
        "bytes": [file.stat().st_size for file in files],
        "seconds": round(seconds, 1),
    }


@torch.no_grad()
def compare(model: torch.nn.Module, quantised: Any, source: Any) -> dict[str, Any]:
    """Both on all test images."""
    right, differences, equal, off, size = [0, 0], [], 0, 0.0, 0.0
    for inputs, labels in source.test_epoch(batch=500):
        wanted, found = model(inputs), quantised(inputs)
        answers = [logits.argmax(1) for logits in (wanted, found)]
        hits = [a.eq(labels) for a in answers]
        right = [r + int(h.sum()) for r, h in zip(right, hits, strict=True)]
        differences.append(hits[1].double() - hits[0].double())
        equal += int(answers[0].eq(answers[1]).sum())
        off += float((found - wanted).double().square().sum())
        size += float(wanted.double().square().sum())
    each = torch.cat(differences)
    assert len(each) == IMAGES
    return {
        "float32": 100 * right[0] / IMAGES,
        "int8": 100 * right[1] / IMAGES,
        "standard error": 100 * float(each.std()) / math.sqrt(IMAGES),
        "equal": 100 * equal / IMAGES,
        "error": off / size,
    }


# telling


def table(found: dict[str, dict[str, Any]], todo: list[Cell]) -> list[str]:
    lines = [
        "| network | zeros | float32 | int8 | difference | equal answers | error of the logits | ranges "
        "| nonzeros rounded to zero | .spx float32 | int8 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell in todo:
        one = found.get(cell.name)
        if one is None:
            continue
        gap = f"{one['int8'] - one['float32']:+.2f} ± {one['standard error']:.2f}"
        vanished = f"{one['vanished']:,} of {one['nonzeros']:,} ({one['vanished'] / one['nonzeros']:.2%})"
        row = [cell.network, f"{100 * cell.level:g} %" if cell.level else "dense", f"{one['float32']:.2f} %"]
        row += [f"{one['int8']:.2f} %", gap, f"{one['equal']:.2f} %", f"{one['error']:.1e}", one["ranges"], vanished]
        row += [f"{size / 1000:.0f} kB" for size in one["bytes"]]
        lines.append(f"| {' | '.join(row)} |")
    return [*lines, ""]


def ways(found: dict[str, dict[str, Any]], todo: list[Cell]) -> list[str]:
    """How near each way of choosing ranges comes on the calibration images."""
    there = [cell for cell in todo if cell.name in found]
    names = list(dict.fromkeys(way for cell in there for way in found[cell.name]["calibration"]))
    lines = ["Error of the logits on the 512 calibration images, by which the ranges are chosen:", ""]
    lines += [f"| network | zeros | {' | '.join(names)} |", f"| --- | --- | {' | '.join('---' for _ in names)} |"]
    for cell in there:
        errors = [f"{found[cell.name]['calibration'][way]:.2e}" for way in names]
        lines.append(f"| {cell.network} | {100 * cell.level:g} % | {' | '.join(errors)} |")
    return [*lines, ""]


def report(options: argparse.Namespace, todo: list[Cell]) -> None:
    found = {cell.name: json.loads(file(options, cell).read_text()) for cell in todo if file(options, cell).is_file()}
    lines = [" ".join(filter(None, [f"{len(found)} of {len(todo)} cells.", options.note])), ""]
    lines += [*table(found, todo), *ways(found, todo)] if found else []
    print("\n".join(lines))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        facts = {"command": "python " + " ".join(sys.argv), "torch": torch.__version__, "note": options.note}
        options.out.with_suffix(".json").write_text(json.dumps({**facts, "cells": found}, indent=2) + "\n")
        options.out.with_suffix(".md").write_text("\n".join(lines))


def file(options: argparse.Namespace, cell: Cell) -> Path:
    return Path(options.runs) / f"{cell.name}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("change", nargs="*", help="changes to the recipes, such as optimizer.lr=0.1")
    parser.add_argument("--checkpoints", type=Path, default=Path("../shared/data/checkpoints"))
    parser.add_argument("--data", type=Path, default=Path("data"), help="the root of CIFAR-10")
    parser.add_argument("--runs", type=Path, default=Path("runs/int8_accuracy"), help="where the cells are")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--train", action="store_true", help="only train what is not trained yet")
    parser.add_argument("--report", action="store_true", help="print the table of what is there, measure nothing")
    parser.add_argument("--note", default="", help="what a reader has to know")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    options = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    options.runs.mkdir(parents=True, exist_ok=True)
    todo, bench = cells(options.networks), Bench(options)
    for cell in todo:
        if options.report or file(options, cell).is_file():
            continue
        if options.train:
            network(bench, cell)
            continue
        found = measure(bench, cell)
        file(options, cell).write_text(json.dumps(found) + "\n")
        print(cell.name, found, flush=True)
    report(options, todo)


if __name__ == "__main__":
    main()
