"""Claim: a goal in milliseconds is met within 10 %, and gives a faster network at equal accuracy than one in MACs.

A CNN for Fashion-MNIST with three convolutions and a large head. A weight of a convolution serves many pixels that
share its vector registers, a weight of the head a single number: one multiply-add of the head takes many times as
long. `softprune bench --table` measures that once; then the same network is trained by STR to goals in milliseconds
and to goals in multiply-adds (10,000 images, 12 epochs, the same steps, order of data and optimizer). Every network
is exported, and all of them are timed in interleaved bursts by our engine, 1 thread, batch 1. The last table says how
long the networks of goals in multiply-adds take at the accuracy of each goal in milliseconds, read from the line
through their means.

A cell is one run folder of `softprune train`. The table of times is made once per folder of runs and belongs to the
machine: remove the folder to begin anew elsewhere. A cell takes one to two minutes of one core. Run, on a quiet
machine:

    python benchmarks/latency.py --seeds 3 --workers 2 --out benchmarks/results/latency
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from cells import Alone, add_options, markdown, read_result, spread, spread_text, write
from fashion import COMMON, work
from torch import nn

RUNS, TABLE = "runs/latency", "table.json"
NETWORK = ("model=latency:headed", "data.subset=10000", "epochs=12")
# Of the time between a network without weights and the dense one, and of the multiply-adds of the dense one.
LEVELS = {"latency": (0.05, 0.1, 0.2), "flops": (0.02, 0.04, 0.08, 0.16)}
BURSTS, SECONDS = 10, 0.1
NUMBERS = ("accuracy", "macs", "params", "predicted", "measured")


def headed() -> nn.Module:
    """828,560 weights, 96.9 % of them in the first layer of the head, and 2,724,608 multiply-adds, 29.5 % there."""

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]

    head = [nn.Flatten(), nn.Linear(64 * 7 * 7, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*block(1, 16, 1), *block(16, 32, 2), *block(32, 64, 2), *head)


@dataclass(frozen=True)
class Cell(Alone):
    """One run."""

    goal: str
    level: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.goal}-{100 * self.level:g}-seed{self.seed}"

    def overrides(self, runs: Path) -> list[str]:
        return [*NETWORK, *COMMON, "method=str", f"goal={{{self.goal}: {self.wanted(runs)}}}", f"seed={self.seed}"]

    def wanted(self, runs: Path) -> str:
        """The value of the goal in a configuration."""
        if self.goal == "flops":
            return str(round(self.level * dense_macs()))
        return f"{{ms: {milliseconds(runs, self.level)}, table: {runs / TABLE}}}"


def dense_macs() -> int:
    import torch

    from softprune import profile

    return profile(headed(), torch.zeros(1, 1, 28, 28)).total_macs()


def milliseconds(runs: Path, level: float) -> float:
    from softprune import LatencyTable

    table = LatencyTable.load(runs / TABLE)
    least = table.total({layer.name: 0.0 for layer in table.layers})
    return round(1e3 * (least + level * (table.total({}) - least)), 6)


def measure(runs: Path) -> None:
    """The table of times, once."""
    import torch

    from softprune.deploy.bench.latency import measure_latency

    if not (runs / TABLE).is_file():
        runs.mkdir(parents=True, exist_ok=True)
        measure_latency(headed(), torch.zeros(1, 1, 28, 28), progress=print).save(runs / TABLE)


# the report


def time_all(runs: Path, done: list[Cell]) -> dict[str, float]:
    """Seconds of a call of every network; all take turns."""
    import torch

    from softprune import export, load
    from softprune.deploy.bench.race import race
    from softprune.train.load_run import plain_weights

    calls, image = {}, torch.zeros(1, 1, 28, 28)
    pixels = image.numpy()
    for cell in done:
        model = headed().eval()
        model.load_state_dict(plain_weights(runs / cell.name))
        engine = load(export(model, runs / cell.name / "model.spx", example=image), threads=1)
        calls[cell.name] = lambda engine=engine: engine(pixels)
    found = race(calls, bursts=BURSTS, seconds=SECONDS)
    return {name: found.standing(name).seconds for name in calls}


def read(runs: Path, cell: Cell, seconds: float) -> dict[str, Any]:
    from softprune import Budget, LatencyTable

    budget, table = Budget.load(runs / cell.name), LatencyTable.load(runs / TABLE)
    goal = 1e3 * milliseconds(runs, cell.level) if cell.goal == "latency" else None
    return {
        "seed": cell.seed,
        "accuracy": 100 * read_result(runs / cell.name)["last"]["accuracy"],
        "macs": budget.macs(),
        "params": budget.params,
        "goal": goal,
        "predicted": 1e6 * table.total(dict(budget)),
        "measured": 1e6 * seconds,
        "layers": {name: round(100 * budget.sparsity(name), 2) for name in budget},
    }


def equal_accuracy(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How long networks of goals in multiply-adds take at the accuracy of each goal in milliseconds."""
    from softprune.budget.latency import isotonic

    other = sorted((r["measured"]["mean"], r["accuracy"]["mean"]) for r in rows if r["kind"] == "flops")
    times, accuracies = [t for t, _ in other], isotonic([a for _, a in other])
    found = []
    for row in (r for r in rows if r["kind"] == "latency"):
        wanted, time = row["accuracy"]["mean"], None
        for (t0, a0), (t1, a1) in pairwise(zip(times, accuracies, strict=True)):
            if a0 <= wanted <= a1 and a0 < a1:
                time = t0 + (wanted - a0) / (a1 - a0) * (t1 - t0)
                break
        ratio = None if time is None else time / row["measured"]["mean"]
        found.append({"level": row["level"], "accuracy": wanted, "measured": row["measured"]["mean"]})
        found[-1] |= {"flops": time, "ratio": ratio, "beyond": bool(accuracies) and wanted > accuracies[-1]}
    return found


def report(options: argparse.Namespace, todo: list[Cell], done: list[Cell]) -> None:
    if not done:
        print("no cell is done yet")
        return
    seconds = time_all(options.runs, done)
    runs: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for cell in done:
        runs.setdefault((cell.goal, cell.level), []).append(read(options.runs, cell, seconds[cell.name]))
    rows = []
    for (kind, level), found in sorted(runs.items()):
        numbers = {
            key: spread([r[key] for r in found]) for key in ("accuracy", "macs", "params", "predicted", "measured")
        }
        off = None if kind == "flops" else mean(r["measured"] / r["goal"] for r in found)
        rows.append({"kind": kind, "level": level, **numbers, "of the goal": off, "runs": found})
    text = f"{len(done)} of {len(todo)} cells.\n\n{goal_table(rows)}\n"
    equal = equal_accuracy(rows)
    text += equal_table(equal)
    write(options, text, {"cells": {"done": len(done), "all": len(todo)}, "rows": rows, "equal accuracy": equal})


def goal_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        of = {"latency": "of the range of times", "flops": "of the MACs"}[row["kind"]]
        off = "" if row["of the goal"] is None else f"{row['of the goal']:.3f}"
        numbers = [spread_text(row["accuracy"]), spread_text(row["macs"], 1000.0), spread_text(row["params"], 1000.0)]
        times = [spread_text(row["predicted"]), spread_text(row["measured"]), off]
        layers = ", ".join(f"{v:.1f}" for v in row["runs"][0]["layers"].values())
        lines.append([f"{100 * row['level']:g} % {of}", str(len(row["runs"])), *numbers, *times, layers])
    head = ["goal", "seeds", "accuracy, %", "thousand MACs", "thousand weights", "predicted us", "measured us"]
    return markdown([*head, "measured / goal", "sparsity by layer, %, first seed"], lines)


def equal_table(equal: list[dict[str, Any]]) -> str:
    lines = []
    for row in equal:
        if row["flops"] is None:
            other = "never so accurate" if row["beyond"] else "more accurate at every level"
        else:
            other = f"{row['flops']:.1f}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append([f"{row['accuracy']:.2f}", f"{row['measured']:.1f}", other, ratio])
    return markdown(["accuracy, %", "us, goal in ms", "us, goal in MACs", "times faster"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, runs=RUNS)
    parser.add_argument("--seeds", type=int, default=3, help="runs of every goal")
    options = parser.parse_intermixed_args()
    todo = [Cell(goal, level, s) for s in range(options.seeds) for goal, levels in LEVELS.items() for level in levels]
    if not (options.cell or options.plan):
        measure(options.runs)
    work(options, todo, report)


if __name__ == "__main__":
    main()
