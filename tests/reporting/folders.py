"""Run folders for tests, written as `softprune train` writes them, with values that are easy to check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost

HEADER = "epoch,step,name,s,alpha,density,P,l1_active,balance,macs"
# Densities after each of the three epochs; 1,000 and 200 weights, so 120 are left in the end.
TENSORS = ("conv.weight", "fc.weight")
DENSITIES = ((1.0, 1.0), (0.5, 0.8), (0.02, 0.5))
PROFILE = Profile(
    (TensorCost("conv.weight", (40, 25), 100_000), TensorCost("fc.weight", (10, 20), 200)), other_params=30
)


def write_run(
    folder: Path,
    *,
    name: str = "str",
    tensors: tuple[str, ...] = TENSORS,
    finished: bool = True,
    epochs: int = 3,
    **config: Any,
) -> Path:
    """A run of the method `name` with two tensors and up to three epochs, four steps each."""
    folder.mkdir(parents=True)
    profile = Profile(
        tuple(TensorCost(new, old.shape, old.macs) for new, old in zip(tensors, PROFILE, strict=True)), other_params=30
    )
    rows: list[dict[str, Any]] = []
    layers = [HEADER]
    for epoch in range(epochs):
        step = 4 * (epoch + 1)
        rows.append({"kind": "step", "epoch": epoch, "step": step - 2, "loss": 2.0 - 0.5 * epoch, "lr": 0.1})
        budget = Budget(dict(zip(tensors, DENSITIES[epoch], strict=True)), profile, f"measured at step {step}")
        rows.append(
            {
                "kind": "epoch",
                "epoch": epoch,
                "step": step,
                "accuracy": 0.5 + 0.2 * epoch,
                "sparsity": budget.overall,
                "params": budget.params,
                "macs": budget.macs(),
            }
        )
        for tensor, density in budget.items():
            cost = profile[tensor]
            cells = (epoch, step, tensor, -5.0, 0.01 * epoch, density, "nan", 3.5, "inf", round(cost.macs * density))
            layers.append(",".join(map(_cell, cells)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "layers.csv").write_text("\n".join(layers) + "\n")
    budget.save(folder / "budget.json")
    (folder / "environment.json").write_text(json.dumps({"seed": 7, "command": ["/bin/softprune", "train", "a b"]}))
    if finished:
        (folder / "result.json").write_text(json.dumps({"last": rows[-1], "best": rows[-1], "seconds": 12.0}))
    whole = {
        "seed": 7,
        "epochs": epochs if finished else 9,
        "model": {"name": "tiny"},
        "data": {"name": "made-up"},
        "method": {"name": name} if name != "dense" else None,
        "goal": {"sparsity": 0.9},
        **config,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    return folder


def _cell(value: object) -> str:
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"') else text
