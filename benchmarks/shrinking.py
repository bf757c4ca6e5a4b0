"""Claim: without its dead filters a network is smaller, faster in plain PyTorch, and computes the same.

ResNet50 and MobileNetV1 at 224 x 224 and ResNet18 with the stem for 32 x 32, random weights, batch norms measured on
random images. In every
batch norm 30, 50 or 70 % of the channels, drawn at random, are made zero, as `bake` does after training with
`units=Units.filter`. In residual networks a channel goes only if every layer that adds to it has it zero, so they are
tried twice: "alone", each layer's channels drawn by themselves, where mostly the inside of the blocks gets smaller, and
"joint", where layers of one width have the same channels zero.

The network with zeros and what `softprune.shrink` makes of it take turns in bursts of calls in one process, one thread;
a burst in which the process did not get its processor is dropped. The ratio is that of the fastest calls, with the
quartiles of bursts side by side. The difference is the largest of the outputs, relative to the largest output. Run:

    python benchmarks/shrinking.py --out benchmarks/results/shrinking
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import softprune
from softprune.budget.budget import to_json
from softprune.deploy.bench.race import race
from softprune.deploy.engine.tune import processor
from softprune.nn.catalog import NETWORKS, build

# How channels die: see above. MobileNetV1 adds nothing to anything.
WAYS = {"resnet18": ("alone", "joint"), "resnet50": ("alone", "joint"), "mobilenetv1": ("alone",)}
LEVELS = (0.3, 0.5, 0.7)
BATCHES = (1, 8)
TOLERANCE = 1e-5


def images(name: str, batch: int) -> Tensor:
    return torch.randn(batch, *NETWORKS[name].example_shape[1:])


@torch.no_grad()
def measured_norms(model: nn.Module, draw: Callable[[], Tensor]) -> list[nn.BatchNorm2d]:
    """The batch norms of a network, with scales and shifts at random and the statistics of these images."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-0.5, 0.5)
    model.train()(draw())
    return norms


@torch.no_grad()
def network(name: str, way: str, level: float) -> nn.Module:
    """A network with dead channels."""
    torch.manual_seed(0)
    model = build(name)
    norms = measured_norms(model, lambda: images(name, 4))
    dead: dict[int, Tensor] = {}
    for norm in norms:
        width = norm.num_features
        if way == "alone" or width not in dead:
            dead[width] = torch.randperm(width)[: round(level * width)]
        norm.weight[dead[width]], norm.bias[dead[width]] = 0.0, 0.0
    return model.eval()


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in options.networks:
        for way, level in itertools.product(WAYS[name], LEVELS):
            model = network(name, way, level)
            shrunk = softprune.shrink(model, images(name, 1))
            small = shrunk.model
            sizes = {"before": shrunk.before, "after": shrunk.after}
            both = {"before": model, "after": small}
            work = {when: softprune.profile(one, images(name, 1)).total_macs() for when, one in both.items()}
            for batch in BATCHES:
                x = images(name, batch)
                wanted, made = model(x), small(x)
                difference = float((made - wanted).abs().max() / wanted.abs().max())
                if not difference <= TOLERANCE:
                    raise SystemExit(f"{name}, {way}, {level}: the outputs differ by {difference:.1e}")
                run = race(
                    {when: partial(one, x) for when, one in both.items()},
                    bursts=options.bursts,
                    seconds=options.seconds,
                )
                ratio = run.ratio("after", "before")
                yield {
                    "network": name, "dead": level, "way": way, "batch": batch, "parameters": sizes, "macs": work,
                    "dead and kept": sum(left.count for left in shrunk.left), "difference": difference,
                    "milliseconds": {one: 1e3 * run.standing(one).seconds for one in ("before", "after")},
                    "times faster": {"best": ratio.best, "median": ratio.median, "low": ratio.low, "high": ratio.high},
                }  # fmt: skip


def table(cells: list[dict[str, Any]]) -> str:
    head = (
        "network", "dead", "way", "parameters", "multiply-adds", "dead, but kept", "batch", "ms before", "ms after",
        "times faster", "difference",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for cell in cells:
        parameters, work, ratio = (cell[key] for key in ("parameters", "macs", "times faster"))
        row = [
            cell["network"], f"{100 * cell['dead']:g} %", cell["way"],
            f"{parameters['before'] / 1e6:.2f} M to {parameters['after'] / 1e6:.2f} M",
            f"{work['before'] / 1e6:,.0f} M to {work['after'] / 1e6:,.0f} M", f"{cell['dead and kept']:,}",
            str(cell["batch"]), *(f"{cell['milliseconds'][one]:.1f}" for one in ("before", "after")),
            f"**{ratio['best']:.2f}** ({ratio['low']:.2f} to {ratio['high']:.2f})", f"{cell['difference']:.0e}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--bursts", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a burst; at least three calls")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells = []
    with torch.no_grad():
        for cell in measure(options):
            cells.append(cell)
            print(table([cell]).splitlines()[-1], flush=True)
    if options.out:
        facts = {
            "command": "python " + " ".join(sys.argv), "torch": torch.__version__, "processor": processor(),
            "cores": os.cpu_count(), "threads": 1,
        }  # fmt: skip
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.with_suffix(".json").write_text(to_json({**facts, "cells": cells}))
        options.out.with_suffix(".md").write_text(table(cells))


if __name__ == "__main__":
    main()
