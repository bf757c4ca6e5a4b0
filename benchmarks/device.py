"""Claim: a FastGRNN of rank (9, 8) for HAR-2 is a C99 source of a few kilobytes that classifies as PyTorch does, in
float32 exactly and in int8 nearly.

Trains the network on all 21 training subjects, or takes a finished run, and writes it as C: float32 and int8, each with
the normalisation of every step, with one normalisation for all steps, and without. Each source is compiled for this
machine; its own check is run; then it classifies every test window, raw (the normalised windows, computed back). For
int8 the scores are compared with the simulation in NumPy, bit for bit. Sizes are those that `size` gives of the object
file (-Os) and what the exporter counted. Run:

    python benchmarks/device.py --data data --out benchmarks/results/device.json
    python benchmarks/device.py --run runs/har2 --out benchmarks/results/device.json
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from cells import markdown
from numpy.typing import NDArray

from softprune.budget.budget import to_json
from softprune.deploy.export.c import CompiledC, compile_c, export_c
from softprune.deploy.export.c.compiled import c_compiler
from softprune.deploy.export.c.float_network import plain_classifier, read_normalisation
from softprune.deploy.export.c.integer_network import quantised
from softprune.nn import fold
from softprune.records import write_text
from softprune.train.config import RunConfig
from softprune.train.load_run import PlainNetwork, plain_network
from softprune.train.run import train

WINDOWS = 256
OBJECT_FLAGS = ("-Os", "-c", "-fno-asynchronous-unwind-tables")


def recipe(root: Path, epochs: int) -> RunConfig:
    return RunConfig.parse(
        {
            "name": "device",
            "model": {"name": "fastgrnn_har2", "args": {"rank_w": 9, "rank_u": 8}},
            "data": {"name": "har2", "root": str(root)},
            "method": None,
            "optimizer": {"name": "adam", "lr": 0.01, "weight_decay": 0.0},
            "schedule": {"name": "cosine", "warmup_epochs": 0},
            "epochs": epochs,
            "batch": 100,
        }
    )


def test_windows(network: PlainNetwork) -> tuple[torch.Tensor, torch.Tensor]:
    """All test windows, normalised, and their labels."""
    batches = list(network.source.test_epoch(batch=1000))
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def sections(object_file: Path) -> dict[str, int] | None:
    """Bytes of the sections of an object file, as `size` has them."""
    if shutil.which("size") is None:
        return None
    text = subprocess.run(["size", "-A", str(object_file)], capture_output=True, text=True, check=True).stdout
    return {name: int(size) for name, size in re.findall(r"^(\.\S+)\s+(\d+)", text, re.M) if int(size)}


def percent(scores: NDArray[Any], labels: torch.Tensor) -> float:
    return round(100 * float((scores.argmax(1) == labels.numpy()).mean()), 2)


def measure(network: PlainNetwork, kind: str, *, int8: bool, folder: Path) -> dict[str, Any]:
    found = network.source.normalisation
    given = {"steps": found, "features": found.over_steps(), "none": None}[kind]
    pair = None if given is None else (given.mean, given.scale)
    files = export_c(network.module, folder, example=network.inputs(WINDOWS), int8=int8, normalisation=pair)
    checked = subprocess.run(
        [compile_c([files.source, files.main], folder / "check")], capture_output=True, text=True, check=True
    )
    normal, labels = test_windows(network)
    # What the sensors gave, up to the rounding of float32.
    raw = normal if given is None else (normal.double() * found.scale + found.mean).float()
    scores = CompiledC(files).scores(raw.numpy())
    with torch.no_grad():
        expected = network.module(normal).numpy()
    parts = sections(compile_c([files.source], folder / "object.o", *OBJECT_FLAGS))
    facts = {
        "int8": int8,
        "normalisation": kind,
        "accuracy": percent(scores, labels),
        "same class as PyTorch": round(100 * float((scores.argmax(1) == expected.argmax(1)).mean()), 2),
        "constant bytes": files.constant_bytes,
        "normalisation bytes": 0 if pair is None else 8 * given.mean.numel(),
        "state bytes": files.state_bytes,
        "sections": parts,
        "check": checked.stdout.splitlines()[-1],
    }
    if int8:
        shape = {"steps": files.shape[0], "features": files.shape[1]}
        integers = quantised(
            plain_classifier(network.module), network.inputs(WINDOWS), normaliser=read_normalisation(pair, **shape)
        )
        facts["scores that differ from the simulation"] = int((scores != integers.scores(raw.numpy())).sum())
        facts["largest difference of a score"] = float(np.abs(scores * integers.score_scale - expected).max())
    elif kind != "features":
        facts["largest difference of a score"] = float(np.abs(scores - expected).max())
    facts["largest score"] = float(np.abs(expected).max())
    return facts


def table(rows: list[dict[str, Any]]) -> str:
    """As it stands on the page about devices."""
    head = ("program", "normalisation", "constants", "code", "state", "accuracy", "same class as PyTorch")
    return markdown(
        head,
        [
            [
                "int8" if row["int8"] else "float32",
                row["normalisation"],
                f"{row['constant bytes']:,}",
                f"{row['sections']['.text']:,}" if row["sections"] else "",
                f"{row['state bytes']:,}",
                f"{row['accuracy']:.2f}",
                f"{row['same class as PyTorch']:.2f} %",
            ]
            for row in rows
        ],
    )


def weights_of(network: PlainNetwork) -> dict[str, Any]:
    folded = fold(network.module)
    return {
        "weights": sum(p.numel() for p in folded.parameters()),
        "nonzeros": sum(int(p.count_nonzero()) for p in folded.parameters()),
        "W": str(folded.rnn.cell.w),
        "U": str(folded.rnn.cell.u),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a finished run; without one a network is trained")
    parser.add_argument("--best", action="store_true", help="the checkpoint of the run's best epoch")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where the zip or the folder of HAR-2 is")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as scratch:
        run = options.run or Path(scratch) / "run"
        if options.run is None:
            train(recipe(options.data, options.epochs), run)
        network = plain_network(run, best=options.best)
        normal, labels = test_windows(network)
        with torch.no_grad():
            accuracy = percent(network.module(normal).numpy(), labels)
        rows = []
        for int8 in (False, True):
            for kind in ("steps", "features", "none"):
                rows.append(measure(network, kind, int8=int8, folder=Path(scratch) / f"{int8}-{kind}"))
                print(rows[-1], flush=True)
    print(table(rows))
    version = subprocess.run([c_compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    figures = {
        "command": "python benchmarks/device.py "
        + (f"--epochs {options.epochs}" if options.run is None else f"--run {options.run.name}")
        + (" --best" if options.best else ""),
        "torch": torch.__version__,
        "compiler": version.splitlines()[0],
        "flags of the object": " ".join(OBJECT_FLAGS),
        "machine": platform.machine(),
        "network": {"name": network.name, "args": dict(network.args), **weights_of(network)},
        "trained": f"{options.epochs} epochs" if options.run is None else f"run {options.run.name}",
        "test windows": len(labels),
        "accuracy in PyTorch": accuracy,
        "programs": rows,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.out, to_json(figures))


if __name__ == "__main__":
    main()
