"""Finished runs for tests of comparisons: only the files that a comparison reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost

# 1,000 and 200 weights; dense 100,200 multiply-adds.
PROFILE = Profile((TensorCost("conv.weight", (40, 25), 100_000), TensorCost("fc.weight", (10, 20), 200)))


def write_outcome(
    folder: Path,
    *,
    method: str | None = "str",
    seed: int = 0,
    accuracy: float | None = 0.9,
    level: float = 0.9,
    finished: bool = True,
    **config: Any,
) -> Path:
    """A run whose layers all have the density 1 - level, and that was asked for it unless `goal` says otherwise."""
    folder.mkdir(parents=True)
    whole = {
        "name": "made-up",
        "seed": seed,
        "epochs": 3,
        "model": {"name": "tiny", "args": {}, "weights": None},
        "data": {"name": "made-up", "root": f"/data/{seed}", "subset": None},
        "method": None if method is None else {"name": method},
        "goal": None if method is None else {"sparsity": level, "params": None, "flops": None, "budget": None},
        "optimizer": {"lr": 0.1, "weight_decay": 0.0},
        **config,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    last: dict[str, Any] = {"epoch": 2, "step": 12, "accuracy": accuracy}
    if method is not None:
        budget = Budget({t.name: 1 - level for t in PROFILE}, PROFILE)
        budget.save(folder / "budget.json")
        last |= {"sparsity": budget.overall, "params": budget.params, "macs": budget.macs()}
    if finished:
        (folder / "result.json").write_text(json.dumps({"version": 1, "last": last, "best": last, "seconds": 9.0}))
    return folder


def write_benchmark(folder: Path) -> Path:
    """Three methods at two levels with three seeds, dense runs, one run that goes on, and one of another network."""
    bases = {"str": 0.92, "gmp": 0.90, "st3": 0.91}
    for seed in range(3):
        write_outcome(folder / f"dense-{seed}", method=None, seed=seed, accuracy=0.93 + seed / 1000)
        for method, base in bases.items():
            for level, loss in ((0.9, 0.0), (0.98, 0.02)):
                found = base - loss + seed / 1000
                write_outcome(
                    folder / f"{method}-{level}-{seed}", method=method, seed=seed, level=level, accuracy=found
                )
    write_outcome(folder / "going-on", seed=9, finished=False)
    write_outcome(folder / "other", model={"name": "big"}, accuracy=0.99)
    return folder
