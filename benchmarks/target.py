"""Claim: named a total, STR meets it to the weight in one run, and no method in the package is more accurate there.

Trains a CNN (261,392 weights) on 10,000 images of Fashion-MNIST, and a small ResNet on 20,000, 12 epochs each
with the same steps, order of data and optimizer for every method. A cell (network, method, level, seed) is one run
folder of `softprune train`; finished ones are skipped, stopped ones go on, so the script can be called until all are
there. The paper's mode has no target: its push is bisected on one seed, and every trial counts as a run. Prints mean
and standard deviation, differences to STR with a goal paired by seed with 95 % intervals (Student's t), MACs, layers
and the distance to the target in weights. Run:

    python benchmarks/target.py --networks cnn resnet --hours 8 --workers 2 --out benchmarks/results/target
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from cells import add_options, gap_text, make, markdown, paired, read_result, spread, spread_text, train_into, write
from fashion import DENSE, GOAL, RECIPE, RUNS, Cell

LEVELS = (0.98, 0.95, 0.90, 0.99)
BISECTED = "str paper, bisected"
MAIN = (GOAL, "gmp uniform", "gmp global", "st3")
GRAINS = ("str goal, global", "str goal, filter", "str goal, weight")
GRAIN_LEVEL, GRAIN_SEEDS = 0.95, 3
EQUAL_MACS = ("str flops goal", "gmp global, flops", "gmp erk, flops", "str flops goal, half")
EQUAL_LEVEL = 0.98
# Bisection of log push: where it begins, when the sparsity is near enough, and the trials that it may take.
PUSHES, NEAR, TRIALS = (4.0, 40.0), 0.001, 10


@dataclass(frozen=True)
class Size:
    """What is measured on a network."""

    seeds: int
    levels: tuple[float, ...]
    extras: bool  # other granularities, and totals of multiply-adds
    minutes: float  # of one cell on one core, before any was measured


SIZES = {
    "cnn": Size(5, LEVELS, extras=True, minutes=1.0),
    "resnet": Size(3, (0.98, 0.95), extras=False, minutes=4.0),
}


def cells(name: str) -> list[Cell]:
    """The runs of a network, so ordered that the first ones alone make a table: seed by seed, level by level."""
    network, found = SIZES[name], []
    for seed in range(network.seeds):
        found.append(Cell(name, DENSE, 0.0, seed))
        found += [Cell(name, method, level, seed) for level in network.levels for method in MAIN]
        if network.extras:
            found += [Cell(name, method, EQUAL_LEVEL, seed) for method in EQUAL_MACS]
        if network.extras and seed < GRAIN_SEEDS:
            found += [Cell(name, method, GRAIN_LEVEL, seed) for method in GRAINS]
    # Many runs for one seed: last.
    return found + [Cell(name, BISECTED, level, 0) for level in network.levels]


# running


def run_cell(options: argparse.Namespace, cell: Cell) -> None:
    if cell.method == BISECTED:
        bisect(options, cell)
    else:
        train_into(options.runs / cell.name, RECIPE, [*cell.overrides(options.runs), *options.change])


def bisect(options: argparse.Namespace, cell: Cell) -> None:
    """Find the push of the paper's mode that ends at the level.

    A run stays under the name of its push, so this too can be stopped, and levels share runs; each counts those that it
    would have needed alone. A push that is refused, because s would pass 0 before its time, is too large.
    """
    low, high = map(math.log, PUSHES)
    trials: list[dict[str, Any]] = []
    refused: list[float] = []
    while len(trials) + len(refused) < TRIALS:
        push = round(math.exp((low + high) / 2), 4)
        folder = options.runs / f"{cell.name.replace(f'-{100 * cell.level:g}-', '-')}-push{push:g}"
        try:
            last = train_into(folder, RECIPE, [*cell.overrides(options.runs), f"propose.push={push}", *options.change])
        except ValueError as error:
            if "push" not in str(error):
                raise
            refused.append(push)
            high = math.log(push)
            continue
        trials.append({"push": push, "run": folder.name, "sparsity": last["sparsity"]})
        if abs(last["sparsity"] - cell.level) <= NEAR:
            break
        low, high = (math.log(push), high) if last["sparsity"] < cell.level else (low, math.log(push))
    best = min(trials, key=lambda t: abs(t["sparsity"] - cell.level))
    folder = options.runs / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"trials": trials, "refused": refused, "best": best["run"]}
    (folder / "trials.json").write_text(json.dumps(facts, indent=2) + "\n")


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
    for name, network in SIZES.items():
        done = [c for c in todo if c.network == name and c not in waiting]
        seconds = [read_result(home(options, c))["seconds"] for c in done]
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
    result = read_result(folder)
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


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    head = ["network", "level", "method", "seeds", "runs per result", "accuracy, %", "difference to str goal"]
    head += ["thousand MACs", "error, weights", "sparsity by layer, %, first seed"]
    lines = []
    for row in rows:
        runs = row["runs"]
        worst = max((r["error"] for r in runs if "error" in r), key=abs, default="")
        layers = ", ".join(f"{v:.0f}" if v < 99 else f"{v:.1f}" for v in runs[0].get("layers", {}).values())
        line = [
            row["network"],
            f"{100 * row['level']:g} %" if row["level"] else "dense",
            row["method"],
            str(row["seeds"]),
            f"{mean(r['trials'] for r in runs):g}",
            spread_text(row["accuracy"]),
            gap_text(row.get("difference")),
            spread_text(row["macs"], 1000.0) if "macs" in row else "",
            str(worst),
            layers if len(runs[0].get("layers", {})) <= 8 else "",
        ]
        lines.append(line)
    return markdown(head, lines)


def report(options: argparse.Namespace, todo: list[Cell]) -> None:
    """Print the table of what is there, and write it."""
    done = [c for c in todo if finished(options, c)]
    rows = summarise(options, done)
    head = f"{len(done)} of {len(todo)} cells. Accuracy: mean ± standard deviation; differences: mean ± half of a 95 % "
    text = f"{head}interval, paired by seed.\n\n{table(rows)}"
    write(options, text, {"cells": {"done": len(done), "all": len(todo)}, "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, runs=RUNS)
    parser.add_argument("--networks", nargs="+", choices=list(SIZES), default=["cnn"])
    parser.add_argument("--seeds", type=int, help="at most this many")
    parser.add_argument("--levels", type=float, nargs="+", help="only these")
    options = parser.parse_intermixed_args()
    everything = [cell for name in SIZES for cell in cells(name)]
    if options.cell:
        run_cell(options, next(c for c in everything if c.name == options.cell))
        return
    todo = [c for c in everything if c.network in options.networks]
    todo = [c for c in todo if options.seeds is None or c.seed < options.seeds]
    todo = [c for c in todo if not options.levels or c.level in (0.0, *options.levels)]
    waiting = [c for c in todo if not finished(options, c)]
    if options.plan:
        print("\n".join(f"{'open' if c in waiting else 'done'}  {c.name}" for c in todo))
    if not options.report:
        print(estimate(options, todo, waiting), flush=True)
    if options.plan:
        return
    if not options.report:
        make(options, waiting, lambda cell: finished(options, cell))
    report(options, todo)


if __name__ == "__main__":
    main()
