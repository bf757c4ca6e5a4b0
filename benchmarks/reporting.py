"""Claim: a page of 100 epochs and 54 tensors takes less than 5 s and 2 MB; one of 10,000 tensors still works.

Makes run folders as `softprune train` writes them, with thresholds and densities of a smooth formula in place of
training: ResNet50's 54 tensors over 100 epochs, and 10,000 small tensors over 10 epochs. Prints the seconds that
`softprune report` takes to read a folder and write its page, once each, and the bytes of the page. Run:

    python benchmarks/reporting.py --out benchmarks/results/reporting.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from softprune import __version__
from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost
from softprune.reporting.report import write_report

COLUMNS = "epoch,step,name,s,alpha,density,P,l1_active,balance,macs"


def make_run(folder: Path, profile: Profile, *, epochs: int, goal: float = 0.9, steps: int = 50) -> Path:
    """Write a run folder for this network; `steps` steps are logged in every epoch."""
    folder.mkdir(parents=True)
    rows, layers = [], [COLUMNS]
    densities: dict[str, float] = {}
    for epoch in range(epochs):
        through = (epoch + 1) / epochs
        for step in range(steps):
            at = epoch + step / steps
            loss = 6.9 * math.exp(-at / epochs * 3) + 0.1 * math.sin(at * 40)
            rows.append(
                {"kind": "step", "epoch": epoch, "step": round(at * 5000), "loss": loss, "lr": 0.1, "seconds": at}
            )
        for depth, cost in enumerate(profile):
            alpha = (0.01 + 0.02 / (1 + depth)) * through**2
            densities[cost.name] = 1 - goal * through ** (1 + depth % 3) * (0.6 + 0.4 * math.sin(depth) ** 2)
            kept = densities[cost.name]
            macs, name = round(cost.macs * kept), cost.name
            layers.append(f"{epoch},{(epoch + 1) * 5000},{name},-5.0,{alpha!r},{kept!r},-0.5,{kept * 100!r},1.0,{macs}")
        budget = Budget(densities, profile, "made up")
        rows.append(
            {
                "kind": "epoch",
                "epoch": epoch,
                "step": (epoch + 1) * 5000,
                "accuracy": 0.75 * (1 - math.exp(-6 * through)),
                "sparsity": 1 - math.fsum(densities[t.name] * t.params for t in profile) / profile.params,
                "params": budget.params,
                "macs": budget.macs(),
            }
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "layers.csv").write_text("\n".join(layers) + "\n")
    budget.save(folder / "budget.json")
    (folder / "environment.json").write_text(json.dumps({"seed": 0, "command": ["softprune", "train", "made-up"]}))
    (folder / "result.json").write_text(json.dumps({"last": rows[-1], "seconds": 100.0}))
    config = f"name: made-up\nseed: 0\nepochs: {epochs}\nmodel: {{name: resnet50}}\ndata: {{name: imagenet}}\n"
    (folder / "config.yaml").write_text(config + f"method: {{name: str}}\ngoal: {{sparsity: {goal}}}\n")
    return folder


def large_profile(tensors: int) -> Profile:
    """A network of so many small tensors."""
    return Profile(tuple(TensorCost(f"blocks.{i}.linear.weight", (64, 64), 4096 * (1 + i % 7)) for i in range(tensors)))


def measure(run: Path, folder: Path) -> dict[str, float | int]:
    """Seconds to read a run and to write its page, by the clock and of the processor, and the bytes of the page."""
    start, busy = time.perf_counter(), time.process_time()
    (page,) = write_report([run], folder / "report.html")
    seconds, processor = time.perf_counter() - start, time.process_time() - busy
    return {"seconds": round(seconds, 2), "processor_seconds": round(processor, 2), "bytes": page.stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    parser.add_argument("--keep", type=Path, help="leave run folders and pages in this new folder")
    parser.add_argument("--note", default="", help="what else the machine did, for the file")
    given = parser.parse_args()
    resnet50 = Budget.load("resnet50/str-90.23").profile
    assert resnet50 is not None
    found: dict[str, object] = {
        "softprune": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "note": given.note,
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        for name, profile, epochs in (("54 tensors", resnet50, 100), ("10000 tensors", large_profile(10_000), 10)):
            place = folder / name.replace(" ", "-")
            run = make_run(place / "run", profile, epochs=epochs)
            found[f"{name}, {epochs} epochs"] = measure(run, place)
    text = json.dumps(found, indent=2)
    sys.stdout.write(text + "\n")
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
