"""Run folders of units: 89 directions of two matrices, of which 17 are left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost

HEADER = "epoch,step,name,s,alpha,density,P,l1_active,balance,macs"
KEPT = {"rnn.cell.w.m": (9, 9), "rnn.cell.u.m": (8, 80)}


def write_unit_run(folder: Path, *, units: str = "rank", stored: int | None = 2374, **config: Any) -> Path:
    """A finished run as `softprune train` writes it, whose budget says what is counted."""
    folder.mkdir(parents=True)
    profile = Profile(tuple(TensorCost(name, (size,), 0) for name, (_, size) in KEPT.items()), counted=False)
    densities = {name: kept / size for name, (kept, size) in KEPT.items()}
    budget = Budget(densities, profile, "measured at step 40", units=units, stored=stored)
    budget.save(folder / "budget.json")
    row = {"kind": "epoch", "epoch": 1, "step": 40, "accuracy": 0.96, "sparsity": budget.overall, "units": 17}
    (folder / "metrics.jsonl").write_text(json.dumps(row | {"epoch": 0, "step": 20}) + "\n" + json.dumps(row) + "\n")
    rows = [f"1,40,{name},-1.0,0.5,{density!r},nan,3.5,nan,0" for name, density in densities.items()]
    (folder / "layers.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    (folder / "environment.json").write_text("{}")
    (folder / "result.json").write_text(json.dumps({"last": row, "best": row, "seconds": 3.0}))
    whole = {
        "seed": 0, "epochs": 2, "model": {"name": "fastgrnn_har2"}, "data": {"name": "har2"},
        "method": {"name": "str"}, "units": {"kind": units, "block": None}, "goal": {"rank": {"w": 9, "u": 8}},
        **config,
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    return folder
