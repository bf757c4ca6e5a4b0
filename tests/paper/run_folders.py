"""Run folders for these tests, written by hand."""

from __future__ import annotations

import json
from pathlib import Path

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost

COSTS = Profile((TensorCost("a.weight", (4, 25), 1000), TensorCost("b.weight", (10, 10), 100)))


def write_run(folder: Path, *, method: str, density: float, model: str = "tiny", profile: Profile = COSTS) -> Path:
    """A finished run of two epochs in which every tensor ends with one density."""
    folder.mkdir(parents=True)
    rows, layers = [], ["epoch,step,name,s,alpha,density,l1_active,macs"]
    for epoch, kept in enumerate((1.0, density)):
        budget = Budget(dict.fromkeys(profile.names, kept), profile)
        totals = {"sparsity": budget.overall, "params": budget.params, "macs": budget.macs()}
        rows.append({"kind": "epoch", "epoch": epoch, "step": 5 * epoch + 5, "accuracy": 0.5 + kept / 10, **totals})
        layers += [f"{epoch},{5 * epoch + 5},{t.name},-3.0,{0.1 * epoch},{kept},1.0,{kept * t.macs}" for t in profile]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "layers.csv").write_text("\n".join(layers) + "\n")
    (folder / "environment.json").write_text(json.dumps({"seed": 0}))
    budget.save(folder / "budget.json")
    (folder / "result.json").write_text(json.dumps({"last": rows[-1]}))
    config = {"seed": 0, "model": {"name": model}, "data": {"name": "made-up"}, "method": {"name": method}}
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    return folder
