"""Claim: the defaults of STR under a goal are those that were best, or as good and simpler, in these experiments.

Trains the CNN of `target.py` (261,392 weights, 10,000 images of Fashion-MNIST, 12 epochs) with one setting changed at a
time, on seeds that `target.py` does not report. A cell is one run folder of `softprune train`; finished ones are
skipped. docs/decisions/0006-goal-defaults.md says what was concluded, also from variants that are not in the package.
Run:

    python benchmarks/goal_defaults.py --runs runs/goal_defaults --out benchmarks/results/goal_defaults_rerun.json
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from statistics import mean, stdev

from target import COMMON, NETWORKS, train_into

# What each variant changes; the first one is the default.
VARIANTS: dict[str, list[str]] = {
    "default": ["method=str"],
    "backward masked": ["method={name: str, backward: masked}"],
    "backward straight-through": ["method={name: str, backward: straight_through}"],
    "backward 0.3": ["method={name: str, backward: {leak: 0.3}}"],
    "pace 0": ["method={name: str, pace: 0.0}"],
    "pace 10": ["method={name: str, pace: 10.0}"],
    "gradient plain": ["method={name: str, gradient: plain}"],
    "start mean": ["method={name: str, start: mean}"],
    "rescaled": ["method={name: str, rescale: true}"],
    "ramp 0 to 0.5": ["method=str", "goal.begin=0.0", "goal.end=0.5"],
    "ramp 0.1 to 0.9": ["method=str", "goal.begin=0.1", "goal.end=0.9"],
    "ramp linear": ["method=str", "goal.ramp=linear"],
    "st3": ["method=st3"],
    "gmp global": ["method=gmp"],
}
SEEDS = (100, 101, 102)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/goal_defaults"), help="where the run folders are")
    parser.add_argument("--level", type=float, default=0.99, help="the sparsity")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), help="only these")
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    options = parser.parse_args()
    network, rows = NETWORKS["cnn"], {}
    for seed, name in product(SEEDS, options.only):
        setting = [f"model={network.model}", *network.changes, *COMMON, f"goal.sparsity={options.level}"]
        folder = options.runs / f"{name}-{options.level}-{seed}".replace(" ", "-")
        last = train_into(folder, [*setting, *VARIANTS[name], f"seed={seed}"])
        rows.setdefault(name, {})[seed] = {"accuracy": 100 * last["accuracy"], "macs": last["macs"]}
        accuracies = [run["accuracy"] for run in rows[name].values()]
        spread = f" ± {stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
        print(f"{name:28} {len(accuracies)} seeds  {mean(accuracies):.2f}{spread} %", flush=True)
        if options.out:
            options.out.write_text(json.dumps({"level": options.level, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
