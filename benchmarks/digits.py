"""Claim: on the handwritten digits the push alone decides how sparse STR makes the network, over a wide range and
at little cost in accuracy.

Trains the recipe digits/str at several strengths of push over several seeds. Prints mean and standard deviation of
the test accuracy after the last step (517 images, so one image is 0.19 points) and of the sparsity. Run:

    python benchmarks/digits.py --seeds 5 --out benchmarks/results/digits.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch

from softprune.train.config import RunConfig
from softprune.train.run import train

PUSHES = (4.0, 8.2, 12.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, object] = {
        "command": f"python benchmarks/digits.py --seeds {options.seeds}",
        "torch": torch.__version__,
        "recipe": "digits/str",
    }
    for push in PUSHES:
        runs = []
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                config = RunConfig.load("digits/str", [f"propose.push={push}", f"seed={seed}"])
                last = train(config, Path(folder) / "run").result["last"]
            runs.append({"seed": seed, **{key: last[key] for key in ("accuracy", "sparsity", "macs")}})
            print(push, runs[-1], flush=True)
        figures[f"push {push}"] = {
            "runs": runs,
            **{
                key: {
                    "mean": statistics.mean(r[key] for r in runs),
                    "deviation": statistics.stdev(r[key] for r in runs),
                }
                for key in ("accuracy", "sparsity", "macs")
            },
        }
        print(push, {k: v for k, v in figures[f"push {push}"].items() if k != "runs"}, flush=True)  # type: ignore[attr-defined]
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
