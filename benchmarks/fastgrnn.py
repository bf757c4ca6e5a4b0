"""Goal: a training step of FastGRNN through the fused operator takes at most an eighth of the time of the eager loop
and at most a quarter of that of torch.nn.GRU of the same size (batch 100, 2 threads, CPU).

One process makes a few steps (forward on the last state, loss, backward) of each variant in turn, in an order that
rotates; a few, because in training a step follows one of its kind and finds its arrays in the cache:

    fused     softprune.nn.FastGRNN, one compiled operator for all steps
    low rank  the same with matrices of the paper's largest ranks, which are multiplied out once per step
    loop      the same model as fused as a loop of torch operations
    compiled  torch.compile of that loop (compiling some hundred steps takes minutes: only with --compile)
    gru       torch.nn.GRU

Other load on the machine only ever adds time, so a variant is judged by the mean of the fastest quarter of its turns.
Printed: milliseconds, and how many times faster fused is, with a 95 % bootstrap interval. Everything is compiled before
the first race. Figures of other sizes and other numbers of threads stay in the file. Run:

    python benchmarks/fastgrnn.py --threads 2 --rounds 40 --compile --out benchmarks/results/fastgrnn.json
    python benchmarks/fastgrnn.py --threads 1 --rounds 40 --out benchmarks/results/fastgrnn.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from racing import fastest, interval, race
from torch import Tensor, nn

from softprune.budget.budget import to_json
from softprune.nn import FastGRNN
from softprune.ops.recurrence import fastgrnn_loop
from softprune.ops.recurrence.fused import library

BATCH = 100
STEPS = 4  # of a turn
# Features, hidden units and steps of HAR-2 and Google-12, and the largest ranks of W and U in the paper's table.
SIZES = {"har2": (9, 80, 128), "google12": (32, 100, 99)}
RANKS = {"har2": (9, 8), "google12": (12, 40)}
GOALS = {"loop": 8, "gru": 4}


def turn_of(parameters: list[Tensor], last: Callable[[], Tensor]) -> Callable[[], None]:
    def turn() -> None:
        for _ in range(STEPS):
            for parameter in parameters:
                parameter.grad = None
            last().square().mean().backward()

    return turn


def variants(name: str, *, compiled: bool) -> dict[str, Callable[[], None]]:
    features, hidden, steps = SIZES[name]
    model, gru = FastGRNN(features, hidden), nn.GRU(features, hidden, batch_first=True)
    thin = FastGRNN(features, hidden, rank_w=RANKS[name][0], rank_u=RANKS[name][1])
    x = torch.randn(BATCH, steps, features)
    cell = model.cell

    def through(loop: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
        return loop(
            x, w=cell.w.weight, u=cell.u.weight, gate_bias=cell.gate_bias, update_bias=cell.update_bias,
            zeta=cell.zeta.sigmoid(), nu=cell.nu.sigmoid(),
        )[1]  # fmt: skip

    weights = list(model.parameters())
    turns = {
        "fused": turn_of(weights, lambda: model(x)[1]),
        "low rank": turn_of(list(thin.parameters()), lambda: thin(x)[1]),
        "loop": turn_of(weights, partial(through, fastgrnn_loop)),
        "gru": turn_of(list(gru.parameters()), lambda: gru(x)[1]),
    }
    if compiled:
        turns["compiled"] = turn_of(weights, partial(through, torch.compile(fastgrnn_loop)))
        start = time.perf_counter()
        turns["compiled"]()
        print(f"{name}: the loop is compiled after {time.perf_counter() - start:.0f} s", flush=True)
    return turns


def summary(seconds: dict[str, list[float]]) -> dict[str, Any]:
    fused = seconds["fused"]
    return {
        "ms": {name: round(1000 * fastest(values) / STEPS, 2) for name, values in seconds.items()},
        "times_faster": {
            name: {"ratio": round(fastest(values) / fastest(fused), 2), "interval": interval(values, fused)}
            for name, values in seconds.items()
            if name != "fused"
        },
    }


def page(figures: dict[str, Any]) -> str:
    lines = [
        f"A training step (forward on the last state, backward), batch {BATCH}, float32, {figures['cpu']}, torch "
        f"{figures['torch']}:",
        f"the fastest quarter of the rounds, all variants in turn in one process, {STEPS} steps each. In brackets: how",
        "many times faster the fused operator is, and the 95 % interval over rounds.",
        "",
        "| size | threads | fused | fused, low rank | eager loop | compiled loop | `nn.GRU` |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for threads, found in figures["threads"].items():
        for name, (features, hidden, steps) in SIZES.items():
            if name not in found:
                continue
            ms, faster = found[name]["ms"], found[name]["times_faster"]
            cells = [f"D {features}, H {hidden}, T {steps}", threads, f"{ms['fused']} ms", f"{ms['low rank']} ms"]
            for other in ("loop", "compiled", "gru"):
                if other in ms:
                    low, high = faster[other]["interval"]
                    cells.append(f"{ms[other]} ms ({faster[other]['ratio']} x; {low:.2f} to {high:.2f})")
                else:
                    cells.append("not measured")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="also torch.compile of the loop")
    parser.add_argument("--only", choices=SIZES, help="one of the two sizes")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file, and a table beside it")
    options = parser.parse_args()
    found = library()
    if found is None:
        raise SystemExit("the operator is not compiled: python -m softprune._native.compilation")
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    racers = {name: variants(name, compiled=options.compile) for name in SIZES if options.only in (None, name)}
    command = f"python benchmarks/fastgrnn.py --threads {options.threads} --rounds {options.rounds}"
    command += (" --compile" if options.compile else "") + (f" --only {options.only}" if options.only else "")
    results: dict[str, Any] = {}
    for name, turns in racers.items():
        print(f"{name}: the race begins", flush=True)
        results[name] = {"command": command, **summary(race(turns, options.rounds))}
        reached = {other: results[name]["times_faster"][other]["ratio"] >= goal for other, goal in GOALS.items()}
        print(json.dumps(results[name]), "goal reached:", reached, flush=True)
    if options.out:
        before = json.loads(options.out.read_text())["threads"] if options.out.exists() else {}
        own = {**before.get(str(options.threads), {}), **results}
        figures = {
            "torch": torch.__version__,
            "cpu": f"{platform.machine()}, {os.cpu_count()} cores, {found.level}",
            "batch": BATCH,
            "threads": dict(sorted({**before, str(options.threads): own}.items())),
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(to_json(figures))
        options.out.with_suffix(".md").write_text(page(figures))


if __name__ == "__main__":
    main()
