"""Claim: a linear layer with zeros in whole blocks runs faster than the dense one, by the ratios in the table.

Layers of 1024 x 1024 and of 768 outputs and 3072 inputs, normal weights. `softprune.sparsify` with
`units=Units.block(rows, cols)` keeps the blocks with the largest norms (as importances) and `bake` writes the zeros.
In one process take turns:

    dense   torch.nn.functional.linear with the zeros
    csr     torch.sparse_csr: the weight times the transposed input, which is its faster way
    bsr     torch.sparse_bsr of the same blocks, likewise; square ones only, MKL takes no others
    engine  softprune.accelerate, tuned

All results are compared with the dense one first. Turns are bursts of calls; a burst in which the process did not get
its processor is dropped. The table has how many times faster than dense, from the fastest calls; the JSON has also
times, and medians and quartiles of bursts side by side. Blocks of 1 x 1 are single weights. What OUT.json has of other
threads or rows stays in it, so that parts can be measured one after the other. Two threads of the other ways wait for
each other, so with them nothing else may run on the machine. Run:

    python benchmarks/blocks.py --threads 1 --out benchmarks/results/blocks
    python benchmarks/blocks.py --threads 2 --out benchmarks/results/blocks
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softprune
from softprune import GMP, Sparsity, Units, constant
from softprune.budget.budget import to_json
from softprune.deploy.bench.race import race
from softprune.deploy.engine.library import library
from softprune.deploy.engine.tune import processor

LAYERS = ((1024, 1024), (768, 3072))  # outputs, inputs
BLOCKS = ((1, 1), (4, 4), (16, 1), (16, 16), (32, 32))
LEVELS = (0.7, 0.8, 0.9, 0.95)
ROWS = (1, 16, 64, 256)


def layer(size: tuple[int, int], block: tuple[int, int], level: float) -> nn.Linear:
    """A layer with zeros in blocks."""
    torch.manual_seed(0)
    linear = nn.Linear(size[1], size[0], bias=False)
    with torch.no_grad():
        linear.weight.normal_()
        norms = linear.weight.view(size[0] // block[0], block[0], size[1] // block[1], block[1]).square().sum((1, 3))
    sparsifier = softprune.sparsify(linear, GMP(), goal=Sparsity(level), units=Units.block(*block), schedule=constant())
    with torch.no_grad():
        sparsifier.targets[0].raw.copy_(norms.sqrt())
    sparsifier.solve()
    sparsifier.bake()
    with torch.no_grad():
        linear.weight /= linear.weight.abs().max().clamp(min=1e-9)
    return linear.eval().requires_grad_(False)


def runners(linear: nn.Linear, block: tuple[int, int], engine: nn.Module, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The same product in four ways."""
    weight, turned = linear.weight, x.t()
    csr = weight.to_sparse_csr()
    ways: dict[str, Callable[[], Tensor]] = {
        "dense": lambda: F.linear(x, weight),
        "csr": lambda: (csr @ turned).t(),
        "engine": lambda: engine(x),
    }
    if block != (1, 1) and block[0] == block[1]:  # others the library behind torch does not take
        bsr = weight.to_sparse_bsr(block)
        ways["bsr"] = lambda: (bsr @ turned).t()
    return ways


def difference(ways: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    """Largest differences from the dense result, relative to its largest number."""
    wanted = ways["dense"]()
    return {
        name: float((way() - wanted).abs().max() / wanted.abs().max()) for name, way in ways.items() if name != "dense"
    }


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for size, block, level in itertools.product(LAYERS, BLOCKS, LEVELS):
        linear = layer(size, block, level)
        for threads in options.threads:
            torch.set_num_threads(threads)
            engine = softprune.accelerate(linear, torch.zeros(1, size[1]), threads=threads)
            for rows in options.rows:
                ways = runners(linear, block, engine, torch.randn(rows, size[1]))
                apart = difference(ways)  # also tunes the engine
                if max(apart.values()) > 1e-5:
                    raise SystemExit(f"{size}, {block}, {level}: results differ by {apart}")
                run = race(ways, bursts=options.bursts, seconds=options.seconds)
                yield {
                    "outputs": size[0], "inputs": size[1], "block": list(block), "sparsity": level,
                    "zeros": float((linear.weight == 0).float().mean()), "rows": rows, "threads": threads,
                    "difference": apart,
                    "microseconds": {name: 1e6 * run.standing(name).seconds for name in ways},
                    "times faster": {name: asdict(run.ratio(name, "dense")) for name in ways if name != "dense"},
                }  # fmt: skip


# telling


def tables(cells: list[dict[str, Any]]) -> str:
    """One table per layer and number of threads: blocks and rows downwards, sparsity to the right."""
    lines = []
    for (outputs, inputs), threads in itertools.product(LAYERS, sorted({cell["threads"] for cell in cells})):
        mine = [c for c in cells if (c["outputs"], c["inputs"], c["threads"]) == (outputs, inputs, threads)]
        if not mine:
            continue
        words = f"{threads} thread{'s' if threads > 1 else ''}"
        lines += [f"{outputs} outputs, {inputs} inputs, {words}: times faster than dense, engine / BSR / CSR", ""]
        lines.append(f"| block | rows | dense, us | {' | '.join(f'{100 * level:g} %' for level in LEVELS)} |")
        lines.append(f"| {' | '.join('---' for _ in range(3 + len(LEVELS)))} |")
        for block, rows in itertools.product(BLOCKS, sorted({cell["rows"] for cell in mine})):
            found = {c["sparsity"]: c for c in mine if c["block"] == list(block) and c["rows"] == rows}
            dense = min((c["microseconds"]["dense"] for c in found.values()), default=0.0)
            row = [entry(found[level]) if level in found else "" for level in LEVELS]
            lines.append(f"| {block[0]} x {block[1]} | {rows} | {dense:.0f} | {' | '.join(row)} |")
        lines.append("")
    return "\n".join(lines)


def entry(cell: dict[str, Any]) -> str:
    ratios = cell["times faster"]
    shown = [f"{ratios[name]['best']:.2f}" if name in ratios else "-" for name in ("engine", "bsr", "csr")]
    return " / ".join([f"**{shown[0]}**", *shown[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bursts", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.02, help="length of a burst")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Sparse (BSR|CSR) tensor support is in beta")
    found = library()
    if found is None:
        raise SystemExit("the kernels are not compiled: python -m softprune.deploy.engine.build")
    began, cells, commands = time.perf_counter(), [], ["python " + " ".join(sys.argv)]
    with torch.inference_mode(mode=False), torch.no_grad():
        for cell in measure(options):
            cells.append(cell)
            fastest = {name: round(ratio["best"], 2) for name, ratio in cell["times faster"].items()}
            print(*(cell[key] for key in ("outputs", "block", "sparsity", "rows", "threads")), fastest, flush=True)
    seconds = round(time.perf_counter() - began)
    file = options.out.with_suffix(".json") if options.out else None
    if file and file.is_file():
        known = json.loads(file.read_text())
        cells += [c for c in known["cells"] if c["threads"] not in options.threads or c["rows"] not in options.rows]
        commands = [*(command for command in known["commands"] if command not in commands), *commands]
    text = tables(cells)
    print(f"{text}\n{seconds} s")
    if file:
        facts = {
            "commands": commands, "torch": torch.__version__, "processor": processor(), "cores": os.cpu_count(),
            "level": found.facts.level,
        }  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(to_json({**facts, "cells": cells}))
        file.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
