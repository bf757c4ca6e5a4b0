"""Claim: a budget that STR learnt cheaply serves other methods: from a fifth of the images, or on half the network.

STR learns a budget at 98 % on all 10,000 images of Fashion-MNIST, on 2,000 of them, and with a CNN of half the width,
whose budget is scaled to the total. GMP and DNW then train the CNN (261,392 weights) on all images with each of the
three, with a uniform budget and with ERK: 12 epochs, three seeds, differences paired by seed against uniform. A cell
is one run folder of `softprune train`, as in target.py and methods.py; given the same folder they share them. Run:

    python benchmarks/transfer.py --workers 2 --out benchmarks/results/transfer
"""

from __future__ import annotations

import argparse
from typing import Any

from cells import add_options, gap_text, markdown, paired, read_result, spread, spread_text, write
from fashion import GOAL, RUNS, Cell, work

LEVEL, SEEDS = 0.98, 3
METHODS = ("gmp", "dnw")
BUDGETS = ("uniform", "erk", "like str", "like fifth", "like narrow")
TEACHERS = ("cnn", "fifth", "narrow")


def cells() -> list[Cell]:
    found = []
    for seed in range(SEEDS):
        found += [Cell(network, GOAL, LEVEL, seed) for network in TEACHERS]
        found += [Cell("cnn", f"{method} {budget}", LEVEL, seed) for method in METHODS for budget in BUDGETS]
    return found


def read(options: argparse.Namespace, cell: Cell) -> dict[str, Any]:
    from softprune.budget.budget import Budget

    folder = options.runs / cell.name
    result, budget = read_result(folder), Budget.load(folder)
    found = {"seed": cell.seed, "accuracy": 100 * result["last"]["accuracy"], "seconds": result["seconds"]}
    layers = {name: round(100 * budget.sparsity(name), 2) for name in budget}
    return found | {"params": budget.params, "macs": budget.macs(), "layers": layers}


def report(options: argparse.Namespace, todo: list[Cell], done: list[Cell]) -> None:
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in done:
        runs.setdefault((cell.network, cell.method), []).append(read(options, cell))
    rows, lines = [], []
    for (network, method), found in sorted(runs.items()):
        uniform = runs.get((network, f"{method.split()[0]} uniform"), []) if method != GOAL else []
        gap = paired(found, uniform, "accuracy") if not method.endswith("uniform") else None
        row = {"network": network, "method": method, "accuracy": spread([r["accuracy"] for r in found])}
        row |= {"macs": spread([r["macs"] for r in found]), "against uniform": gap, "runs": found}
        rows.append(row)
        layers = ", ".join(f"{v:.0f}" if v < 99 else f"{v:.1f}" for v in found[0]["layers"].values())
        numbers = [spread_text(row["accuracy"]), gap_text(gap), spread_text(row["macs"], 1000.0)]
        lines.append([network, method, str(len(found)), *numbers, f"{found[0]['params']:,}", layers])
    head = ["network", "method and budget", "seeds", "accuracy, %", "against uniform", "thousand MACs", "weights left"]
    text = f"{len(done)} of {len(todo)} cells at {100 * LEVEL:g} %. *like str*: the budget that STR learnt on the same "
    text += "data and seed; *fifth*: on 2,000 images; *narrow*: with half the width, scaled to the total.\n\n"
    text += markdown([*head, "sparsity by layer, %, first seed"], lines)
    write(options, text, {"cells": {"done": len(done), "all": len(todo)}, "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, runs=RUNS)
    work(parser.parse_intermixed_args(), cells(), report)


if __name__ == "__main__":
    main()
