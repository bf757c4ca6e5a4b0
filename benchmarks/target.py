"""Claim: named a total, STR meets it to the weight in one run, and no method in the package is more accurate there.

Trains a CNN (261,392 weights) on 10,000 images of Fashion-MNIST, and a small ResNet on 20,000, 12 epochs each
with the same steps, order of data and optimizer for every method. A cell (network, method, level, seed) is one run
folder of `softprune train`; finished ones are skipped, stopped ones go on, so the script can be called until all are
there. The paper's mode has no target: its push is bisected on one seed, and every trial counts as a run. Prints mean
and standard deviation, differences to STR with a goal paired by seed with 95 % intervals (Student's t), MACs, layers
and the distance to the target in weights. Run:

    python benchmarks/target.py --runs runs/target --hours 8 --workers 2 --out benchmarks/results/target
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

LEVELS = (0.98, 0.95, 0.90, 0.99)
GOAL = "str goal"
BISECTED = "str paper, bisected"
# Level 0 is the dense network. Everything that a method adds to the common configuration.
METHODS: dict[str, list[str]] = {
    "dense": ["method=null"],
    GOAL: ["method=str", "goal={level}"],
    "gmp uniform": ["method=gmp", "goal={{sparsity: {level}, budget: uniform}}"],
    "gmp global": ["method=gmp", "goal={level}"],
    "st3": ["method=st3", "goal={level}"],
    "str goal, global": ["method={{name: str, granularity: global}}", "goal={level}"],
    "str goal, filter": ["method={{name: str, granularity: filter}}", "goal={level}"],
    "str goal, weight": ["method={{name: str, granularity: weight}}", "goal={level}"],
    BISECTED: ["method={{name: str, s_init: propose}}", "optimizer.threshold_decay=propose"],
    # The same multiply-adds as the run of STR with a goal of this level and seed, or half of them.
    "str flops goal": ["method=str", "goal={{flops: {macs}}}"],
    "str flops goal, half": ["method=str", "goal={{flops: {half}}}"],
    "gmp global, flops": ["method=gmp", "goal={{flops: {macs}}}"],
    "gmp erk, flops": ["method=gmp", "goal={{flops: {macs}, budget: erk}}"],
}
MAIN = (GOAL, "gmp uniform", "gmp global", "st3")
GRAINS = ("str goal, global", "str goal, filter", "str goal, weight")
GRAIN_LEVEL, GRAIN_SEEDS = 0.95, 3
EQUAL_MACS = ("str flops goal", "gmp global, flops", "gmp erk, flops", "str flops goal, half")
EQUAL_LEVEL = 0.98
# What every run has in common: fast on a CPU, and one evaluation, after the last step. Gradients are clipped as by the
# authors of ST-3, without which its weights on the ResNet grow without bound.
COMMON = ("channels_last=true", "evaluate_every=12", "checkpoint.keep=1", "threads=1", "clip_norm=3")
# Half the width of a 95 % interval in standard errors, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
# Bisection of log push: where it begins, when the sparsity is near enough, and the trials that it may take.
PUSHES, NEAR, TRIALS = (4.0, 40.0), 0.001, 10


@dataclass(frozen=True)
class Network:
    """A network, the images it learns from, and what is measured on it."""

    model: str
    changes: tuple[str, ...]
    seeds: int
    levels: tuple[float, ...]
    extras: bool  # other granularities, and totals of multiply-adds
    minutes: float  # of one cell on one core, before any was measured


NETWORKS = {
    "cnn": Network("small_cnn", ("data.subset=10000", "epochs=12"), 5, LEVELS, extras=True, minutes=1.0),
    "resnet": Network(
        "target:small_resnet", ("data.subset=20000", "epochs=12"), 3, (0.98, 0.95), extras=False, minutes=4.0
    ),
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    network: str
    method: str
    level: float
    seed: int

    @property
    def name(self) -> str:
        words = [self.network, self.method, f"{100 * self.level:g}", f"seed{self.seed}"]
        return "-".join(words).replace(", ", "-").replace(" ", "-")

    @property
    def rests_on(self) -> Cell | None:
        """The run whose multiply-adds this one gets."""
        return replace(self, method=GOAL) if self.method in EQUAL_MACS else None

    def overrides(self, runs: Path) -> list[str]:
        network, words = NETWORKS[self.network], {"level": self.level}
        if self.rests_on is not None:
            macs = json.loads((runs / self.rests_on.name / "result.json").read_text())["last"]["macs"]
            words |= {"macs": round(macs), "half": round(macs / 2)}
        method = [text.format(**words) for text in METHODS[self.method]]
        return [f"model={network.model}", *network.changes, *COMMON, *method, f"seed={self.seed}"]


def small_resnet() -> Any:
    """ResNet20 for 28x28 images in one channel, which its stem halves: 268,048 weights, 8,467,136 multiply-adds."""
    from torch import nn

    from softprune.nn.resnet_cifar import resnet20

    model = resnet20()
    model.conv1 = nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight)
    return model


def cells(name: str) -> list[Cell]:
    """The runs of a network, so ordered that the first ones alone make a table: seed by seed, level by level."""
    network, found = NETWORKS[name], []
    for seed in range(network.seeds):
        found.append(Cell(name, "dense", 0.0, seed))
        found += [Cell(name, method, level, seed) for level in network.levels for method in MAIN]
        if network.extras:
            found += [Cell(name, method, EQUAL_LEVEL, seed) for method in EQUAL_MACS]
        if network.extras and seed < GRAIN_SEEDS:
            found += [Cell(name, method, GRAIN_LEVEL, seed) for method in GRAINS]
    # Many runs for one seed: last.
    return found + [Cell(name, BISECTED, level, 0) for level in network.levels]


# running


def run(options: argparse.Namespace, todo: list[Cell]) -> None:
    """Work through the cells with one process per worker, until they are done or the time is up."""
    deadline = time.monotonic() + 3600 * options.hours
    waiting = [c for c in todo if not finished(options, c)]
    busy: dict[Cell, subprocess.Popen[bytes]] = {}
    print(estimate(options, todo, waiting), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; call again to go on"))
    try:
        work(options, waiting, busy, deadline)
    finally:
        for process in busy.values():  # they write a checkpoint and end
            process.terminate()
            process.wait()


def work(
    options: argparse.Namespace, waiting: list[Cell], busy: dict[Cell, subprocess.Popen[bytes]], deadline: float
) -> None:
    while waiting or busy:
        while waiting and len(busy) < options.workers and time.monotonic() < deadline:
            ready = [c for c in waiting if c.rests_on is None or finished(options, c.rests_on)]
            if not ready:
                break
            cell = ready[0]
            waiting.remove(cell)
            words = [sys.executable, __file__, "--runs", options.runs, "--cell", cell.name, *options.change]
            path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
            busy[cell] = subprocess.Popen(
                [str(word) for word in words], env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
            )
        if not busy:
            print(f"{len(waiting)} cells are left; call again to go on", flush=True)
            return
        for cell in [c for c, process in busy.items() if process.poll() is not None]:
            code = busy.pop(cell).returncode
            print(f"{cell.name}: {'done' if code == 0 else f'failed with {code}'}", flush=True)
        time.sleep(0.5)


def run_cell(options: argparse.Namespace, cell: Cell) -> None:
    if cell.method == BISECTED:
        bisect(options, cell)
    else:
        train_into(options.runs / cell.name, [*cell.overrides(options.runs), *options.change])


def train_into(folder: Path, overrides: list[str]) -> dict[str, Any]:
    """The result of a run: as it is there, continued, or begun."""
    from softprune.train.config import RunConfig
    from softprune.train.run import resume, train

    if not (folder / "result.json").is_file():
        if (folder / "config.yaml").is_file():
            outcome = resume(folder)
        else:
            outcome = train(RunConfig.load("fashion-mnist/dense", overrides), folder)
        if not outcome.finished:
            sys.exit(f"{folder} was stopped")
    return dict(json.loads((folder / "result.json").read_text())["last"])


def bisect(options: argparse.Namespace, cell: Cell) -> None:
    """Find the push of the paper's mode that ends at the level; the trials stay, so this too can be stopped."""
    low, high = map(math.log, PUSHES)
    trials: list[dict[str, Any]] = []
    while len(trials) < TRIALS:
        push = round(math.exp((low + high) / 2), 4)
        folder = options.runs / f"{cell.name}-trial{len(trials)}"
        last = train_into(folder, [*cell.overrides(options.runs), f"propose.push={push}", *options.change])
        trials.append({"push": push, "run": folder.name, "sparsity": last["sparsity"]})
        if abs(last["sparsity"] - cell.level) <= NEAR:
            break
        low, high = (math.log(push), high) if last["sparsity"] < cell.level else (low, math.log(push))
    best = min(trials, key=lambda t: abs(t["sparsity"] - cell.level))
    folder = options.runs / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trials.json").write_text(json.dumps({"trials": trials, "best": best["run"]}, indent=2) + "\n")


def home(options: argparse.Namespace, cell: Cell) -> Path:
    """The run folder that a cell's numbers come from."""
    folder: Path = options.runs / cell.name
    trials = folder / "trials.json"
    return options.runs / json.loads(trials.read_text())["best"] if trials.is_file() else folder


def finished(options: argparse.Namespace, cell: Cell) -> bool:
    return (home(options, cell) / "result.json").is_file()


def estimate(options: argparse.Namespace, todo: list[Cell], waiting: list[Cell]) -> str:
    """How long the rest takes, from the cells that are done, or from experience."""
    minutes = 0.0
    for name, network in NETWORKS.items():
        done = [c for c in todo if c.network == name and c not in waiting]
        seconds = [json.loads((home(options, c) / "result.json").read_text())["seconds"] for c in done]
        each = median(seconds) / 60 if seconds else network.minutes
        left = [c for c in waiting if c.network == name]
        minutes += each * sum(TRIALS / 2 if c.method == BISECTED else 1 for c in left)
    hours = minutes / 60 / options.workers
    return f"{len(todo) - len(waiting)} of {len(todo)} cells are done; the rest takes about {hours:.1f} hours"


# reading


def read(options: argparse.Namespace, cell: Cell) -> dict[str, Any]:
    """The numbers of a finished cell."""
    from softprune.budget.budget import Budget

    folder = home(options, cell)
    result = json.loads((folder / "result.json").read_text())
    last = result["last"]
    found = {"seed": cell.seed, "accuracy": 100 * last["accuracy"], "seconds": result["seconds"]}
    if cell.level:
        budget = Budget.load(folder)
        weights = sum(t.params for t in budget.profile or ())
        found |= {"params": budget.params, "macs": budget.macs()}
        if cell.rests_on is None:
            found["error"] = budget.params - (weights - round(cell.level * weights))
        found["layers"] = {name: round(100 * budget.sparsity(name), 2) for name in budget}
    trials = options.runs / cell.name / "trials.json"
    found["trials"] = len(json.loads(trials.read_text())["trials"]) if trials.is_file() else 1
    return found


def summarise(options: argparse.Namespace, done: list[Cell]) -> list[dict[str, Any]]:
    """One row per network, level and method, with the differences to STR with a goal."""
    runs: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for cell in done:
        runs.setdefault((cell.network, cell.level, cell.method), []).append(read(options, cell))
    rows = []
    for (network, level, method), found in sorted(runs.items(), key=lambda item: (item[0][0], item[0][1])):
        row = {"network": network, "level": level, "method": method, "seeds": len(found), "runs": found}
        row["accuracy"] = spread([r["accuracy"] for r in found])
        if level:
            row["macs"] = spread([r["macs"] for r in found])
        if level and method != GOAL:
            row["difference"] = paired(found, runs.get((network, level, GOAL), []), "accuracy")
            row["macs difference"] = paired(found, runs.get((network, level, GOAL), []), "macs")
        rows.append(row)
    return rows


def spread(values: list[float]) -> dict[str, float | None]:
    return {"mean": mean(values), "deviation": stdev(values) if len(values) > 1 else None}


def paired(found: list[dict[str, Any]], reference: list[dict[str, Any]], key: str) -> dict[str, Any] | None:
    """Mean difference to the reference over the seeds that both have, with its 95 % interval."""
    by_seed = {r["seed"]: r[key] for r in reference}
    gaps = [r[key] - by_seed[r["seed"]] for r in found if r["seed"] in by_seed]
    if not gaps:
        return None
    half = STUDENT[len(gaps) - 1] * stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else None
    return {"mean": mean(gaps), "half": half, "seeds": len(gaps)}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| network | level | method | seeds | runs per result | accuracy, % | difference to str goal | thousand MACs "
        "| error, weights | sparsity by layer, %, first seed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        runs = row["runs"]
        worst = max((r["error"] for r in runs if "error" in r), key=abs, default="")
        layers = ", ".join(f"{v:.0f}" if v < 99 else f"{v:.1f}" for v in runs[0].get("layers", {}).values())
        cells = [
            row["network"],
            f"{100 * row['level']:g} %" if row["level"] else "dense",
            row["method"],
            str(row["seeds"]),
            f"{mean(r['trials'] for r in runs):g}",
            _spread(row["accuracy"], 1.0),
            _gap(row.get("difference")),
            _spread(row["macs"], 1000.0) if "macs" in row else "",
            str(worst),
            layers if len(runs[0].get("layers", {})) <= 8 else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spread(value: dict[str, Any], unit: float) -> str:
    deviation = "" if value["deviation"] is None else f" ± {value['deviation'] / unit:.2f}"
    return f"{value['mean'] / unit:.2f}{deviation}"


def _gap(value: dict[str, Any] | None) -> str:
    if value is None:
        return ""
    half = " (one seed)" if value["half"] is None else f" ± {value['half']:.2f} ({value['seeds']} seeds)"
    return f"{value['mean']:+.2f}{half}"


def report(options: argparse.Namespace, todo: list[Cell]) -> None:
    """Print the table of what is there, and write it."""
    done = [c for c in todo if finished(options, c)]
    rows = summarise(options, done)
    head = f"{len(done)} of {len(todo)} cells. Accuracy: mean ± standard deviation; differences: mean ± half of a 95 % "
    text = f"{head}interval, paired by seed.\n\n{table(rows)}"
    print(text)
    if options.out:
        import torch

        options.out.parent.mkdir(parents=True, exist_ok=True)
        facts = {
            "command": "python " + " ".join(sys.argv),
            "torch": torch.__version__,
            "changes": options.change,
            "cells": {"done": len(done), "all": len(todo)},
            "rows": rows,
        }
        options.out.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n")
        options.out.with_suffix(".md").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("change", nargs="*", help="changes to every run, such as epochs=1 to try it out")
    parser.add_argument("--runs", type=Path, default=Path("runs/target"), help="where the run folders are")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=["cnn"])
    parser.add_argument("--seeds", type=int, help="at most this many")
    parser.add_argument("--levels", type=float, nargs="+", help="only these")
    parser.add_argument("--hours", type=float, default=math.inf, help="begin no new cell after this time")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--plan", action="store_true", help="print the cells and the estimate, train nothing")
    parser.add_argument("--report", action="store_true", help="print the table of what is there, train nothing")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    everything = [cell for name in NETWORKS for cell in cells(name)]
    if options.cell:
        run_cell(options, next(c for c in everything if c.name == options.cell))
        return
    todo = [c for c in everything if c.network in options.networks]
    todo = [c for c in todo if options.seeds is None or c.seed < options.seeds]
    todo = [c for c in todo if not options.levels or c.level in (0.0, *options.levels)]
    if options.plan:
        print("\n".join(f"{'done' if finished(options, c) else 'open'}  {c.name}" for c in todo))
        print(estimate(options, todo, [c for c in todo if not finished(options, c)]))
        return
    if not options.report:
        run(options, todo)
    report(options, todo)


if __name__ == "__main__":
    main()
