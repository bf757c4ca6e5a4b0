"""Claim: a training step of FastGRNN through the fused operator takes at most an eighth of the time of the eager loop
and at most a quarter of that of torch.nn.GRU of the same size (batch 100, 2 threads, CPU).

One process makes a step (forward on the last state, loss, backward) of each variant in turn, in an order that rotates:

    fused     softprune.nn.FastGRNN, one compiled operator for all steps
    loop      the same model as a loop of torch operations
    compiled  torch.compile of that loop (compiling 128 steps takes minutes: only with --compile)
    gru       torch.nn.GRU

Other load on the machine only ever adds time, so a variant is judged by the mean of the fastest quarter of its steps.
Printed: milliseconds, and how many times faster fused is, with a 95 % bootstrap interval. Run:

    python benchmarks/fastgrnn.py --rounds 40 --compile --out benchmarks/results/fastgrnn.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from racing import fastest, interval, race
from torch import Tensor, nn

from softprune.budget.table import to_json
from softprune.nn import FastGRNN
from softprune.ops.recurrence import fastgrnn_loop
from softprune.ops.recurrence.library import library

BATCH = 100
# Features, hidden units and steps of HAR-2 and Google-12.
SIZES = {"har2": (9, 80, 128), "google12": (32, 100, 99)}


def step_of(parameters: list[Tensor], last: Callable[[], Tensor]) -> Callable[[], None]:
    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        last().square().mean().backward()

    return step


def variants(size: tuple[int, int, int], *, compiled: bool) -> dict[str, Callable[[], None]]:
    features, hidden, steps = size
    model, gru = FastGRNN(features, hidden), nn.GRU(features, hidden, batch_first=True)
    x = torch.randn(BATCH, steps, features)
    cell = model.cell

    def through(loop: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
        return loop(
            x, w=cell.w.weight, u=cell.u.weight, gate_bias=cell.gate_bias, update_bias=cell.update_bias,
            zeta=cell.zeta.sigmoid(), nu=cell.nu.sigmoid(),
        )[1]  # fmt: skip

    weights = list(model.parameters())
    steps_of = {
        "fused": step_of(weights, lambda: model(x)[1]),
        "loop": step_of(weights, partial(through, fastgrnn_loop)),
        "gru": step_of(list(gru.parameters()), lambda: gru(x)[1]),
    }
    if compiled:
        steps_of["compiled"] = step_of(weights, partial(through, torch.compile(fastgrnn_loop)))
    return steps_of


def summary(seconds: dict[str, list[float]]) -> dict[str, object]:
    fused = seconds["fused"]
    return {
        "ms": {name: round(1000 * fastest(values), 2) for name, values in seconds.items()},
        "times_faster": {
            name: {"ratio": round(fastest(values) / fastest(fused), 2), "interval": interval(values, fused)}
            for name, values in seconds.items()
            if name != "fused"
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="also torch.compile of the loop")
    parser.add_argument("--only", choices=SIZES, help="one of the two sizes")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    found = library()
    if found is None:
        raise SystemExit("the operator is not compiled: python -m softprune._native.compilation")
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    figures: dict[str, object] = {
        "command": f"python benchmarks/fastgrnn.py --rounds {options.rounds} --threads {options.threads}"
        + (" --compile" if options.compile else ""),
        "torch": torch.__version__,
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores, {found.level}",
        "batch": BATCH,
        "rounds": options.rounds,
    }
    for name, size in SIZES.items():
        if options.only in (None, name):
            figures[name] = summary(race(variants(size, compiled=options.compile), options.rounds))
            print(name, json.dumps(figures[name]), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(to_json(figures))


if __name__ == "__main__":
    main()
