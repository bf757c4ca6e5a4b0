"""Claim: 200 runs of ResNet50, 100 epochs each, are compared on one page in less than 30 s.

Makes run folders as `softprune train` writes them (config, result, budget of 54 tensors, and a history of 5,400 rows
that a comparison has no need to read): 4 methods at 10 levels with 5 seeds. Prints the seconds that `softprune compare`
takes from the folders to the page, once, by the clock and of the processor, and the bytes of the page. Run:

    python benchmarks/comparing.py --out benchmarks/results/comparing.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from softprune import __version__
from softprune.budget.budget import Budget
from softprune.reporting.compare import write_comparison
from softprune.train.config import RunConfig

METHODS = {"str": {}, "gmp": {}, "gmp uniform": {"budget": "uniform"}, "st3": {}}
LEVELS = tuple(1 - 0.1 * 0.72**place for place in range(10))
SEEDS = 5
LIMIT_SECONDS = 30


def make_runs(folder: Path) -> int:
    """Write all run folders; how many there are."""
    profile = Budget.load("resnet50/str-90.23").profile
    assert profile is not None
    config: dict[str, Any] = yaml.safe_load(RunConfig.load("resnet50/str-90.23").dump())
    layers = "epoch,step,name,s,alpha,density,P,l1_active,balance,macs\n" + "".join(
        f"{epoch},{epoch * 5000},{cost.name},-5.0,0.01,0.5,-0.5,100.0,1.0,{cost.macs}\n"
        for epoch in range(100)
        for cost in profile
    )
    made = 0
    for place, (name, goal) in enumerate(METHODS.items()):
        for level in LEVELS:
            for seed in range(SEEDS):
                run = folder / f"{name.replace(' ', '-')}-{100 * level:.3f}-seed{seed}"
                run.mkdir(parents=True)
                own = {"seed": seed, "method": {"name": name.split()[0]}, "goal": {"sparsity": level, **goal}}
                (run / "config.yaml").write_text(yaml.safe_dump({**config, **own}, sort_keys=False))
                budget = Budget({cost.name: 1 - level for cost in profile}, profile)
                budget.save(run / "budget.json")
                accuracy = 0.77 - 0.03 * level**20 - 0.005 * place + 0.0005 * seed
                last = {"accuracy": accuracy, "sparsity": level, "params": budget.params, "macs": budget.macs()}
                (run / "result.json").write_text(json.dumps({"version": 1, "last": last, "best": last}))
                (run / "layers.csv").write_text(layers)
                made += 1
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--note", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = make_runs(folder / "runs")
        start, busy = time.perf_counter(), time.process_time()
        (page,) = write_comparison([folder / "runs"], folder / "compare.html")
        found = {
            "claim": f"{runs} runs in less than {LIMIT_SECONDS} s",
            "runs": runs,
            "seconds": round(time.perf_counter() - start, 2),
            "processor_seconds": round(time.process_time() - busy, 2),
            "bytes": page.stat().st_size,
            "python": sys.version.split()[0],
            "softprune": __version__,
            "cores": os.cpu_count(),
            "platform": platform.platform(),
            "note": options.note,
        }
    text = json.dumps(found, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
