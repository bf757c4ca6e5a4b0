"""Claim: the loop of `softprune train` trains at least 0.97 times as many images a second as a bare PyTorch loop over
the same dense network, batch, optimizer and images in memory (CPU). Beside it: the loop with augmentation, the loop
that learns thresholds, what a checkpoint costs, and the time from the command to the first step.

    bare         a permutation of normalised floats; forward, cross-entropy, backward, SGD; nothing is logged or checked
    ours         the loop as it is: order by seed, bytes normalised batch by batch, learning rate of each step, a check
                 that the loss is finite, progress, a log line every 50 steps; a dense network, no augmentation
    augmented    ours, with images moved and mirrored (CIFAR-10)
    thresholds   ours, with STR on all tensors and thresholds above 0

One process makes some steps of each in turn, in an order that rotates. Other load on the machine only ever adds time,
so a loop is judged by the mean of the fastest quarter of its turns. Printed: images a second, the ratio to the bare one
with a 95 % bootstrap interval, and the median of the ratios within rounds with the middle half of them. Run:

    python benchmarks/throughput.py --rounds 60 --root data --out benchmarks/results/throughput.json

Without the files of CIFAR-10 its images are random bytes of the same shape; the output says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from racing import fastest, interval, race
from torch import Tensor

import softprune
from softprune.budget.budget import to_json
from softprune.nn.catalog import build
from softprune.train.assembly import Processes, assemble
from softprune.train.config import RunConfig
from softprune.train.data.augment import CropFlip, Normalise
from softprune.train.data.cifar import NORMALISE, read_cifar10
from softprune.train.data.digits import load_digits
from softprune.train.data.source import IndexedSource, MemorySamples
from softprune.train.observer import Silent
from softprune.train.run_folder import RunFolder
from softprune.train.trainer import Trainer

GOAL = 0.97
# All images of CIFAR-10 as floats would take 600 MB.
IMAGES = 10_240
ACTIVE = ["method={name: str, s_init: -5}", "optimizer.threshold_decay=5e-4"]


@dataclass(frozen=True)
class Case:
    """A network and its images.

    Attributes:
        recipe: the settings of the run.
        images: for training, as the data set has them.
        labels: of the images.
        normalise: what makes floats of bytes.
        steps: in a turn.
        epoch: steps in an epoch of the whole data set.
        data: where the images come from.
    """

    recipe: str
    images: Tensor
    labels: Tensor
    normalise: Normalise | None
    steps: int
    epoch: int
    data: str

    def floats(self) -> Tensor:
        return self.images if self.normalise is None else self.normalise(self.images)

    def source(self, *, augment: bool) -> IndexedSource:
        change = CropFlip(pad=4, flip=True) if augment else None
        train = MemorySamples(self.images, self.labels, augment=change, normalise=self.normalise)
        test = MemorySamples(self.images[:512], self.labels[:512], normalise=self.normalise)
        return IndexedSource("images", train=train, test=test, classes=10, example_shape=(1, *self.images.shape[1:]))


def digits() -> Case:
    found = load_digits()
    return Case("digits/dense", found.train_images, found.train_labels, None, 20, 20, "the digits of scikit-learn")


def cifar10(root: Path | None) -> Case:
    try:
        train, _ = read_cifar10(root)
        images, labels, data = train.images[:IMAGES].clone(), train.labels[:IMAGES].clone(), "CIFAR-10"
    except FileNotFoundError:
        chance = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (IMAGES, 3, 32, 32), generator=chance, dtype=torch.uint8)
        labels = torch.randint(0, 10, (IMAGES,), generator=chance)
        data = "random bytes of the shape of CIFAR-10: its files are not there"
    return Case("resnet20/cifar10-dense", images, labels, NORMALISE, 2, 391, data)


def settings(case: Case, *changes: str) -> RunConfig:
    # More epochs than will be made: the schedule must not end.
    return RunConfig.load(case.recipe, ["epochs=10000", "length=1", "drop_last=true", *changes])


def bare(case: Case) -> Iterator[None]:
    """The loop as one would write it down, one step at a time."""
    config = settings(case)
    given = config.optimizer
    torch.manual_seed(config.seed)
    model = build(config.model.name, config.model.args)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=given.lr, momentum=given.momentum, weight_decay=given.weight_decay
    )
    images, labels, batch = case.floats(), case.labels, config.batch
    model.train()
    while True:
        for indices in torch.randperm(len(labels)).split(batch)[: len(labels) // batch]:
            optimizer.zero_grad()
            F.cross_entropy(model(images[indices]), labels[indices]).backward()
            optimizer.step()
            yield


def trainer(case: Case, folder: Path, *changes: str, augment: bool = False) -> Trainer:
    config = settings(case, *changes)
    source, alone = case.source(augment=augment), Processes(0, 1, torch.device("cpu"))
    parts = assemble(config, source, alone)
    run = RunFolder.create(folder, config.dump(), seed=config.seed, world=1)
    return Trainer(parts, source, run=run, observer=Silent())


def ours(made: Trainer) -> Iterator[None]:
    """The steps of `softprune train`, without what it does at the end of an epoch."""
    while True:
        for _ in made.steps():
            yield


def turn(loop: Iterator[None], steps: int) -> None:
    for _ in islice(loop, steps):
        pass


def summary(seconds: dict[str, list[float]], images: int) -> dict[str, object]:
    base = seconds["bare"]
    result: dict[str, object] = {"bare": {"images_per_second": round(images / fastest(base))}}
    for name in (n for n in seconds if n != "bare"):
        low, middle, high = statistics.quantiles([b / t for b, t in zip(base, seconds[name], strict=True)], n=4)
        result[name] = {
            "images_per_second": round(images / fastest(seconds[name])),
            "ratio": round(fastest(base) / fastest(seconds[name]), 4),
            "interval": interval(base, seconds[name]),
            "median_of_rounds": round(middle, 4),
            "quartiles_of_rounds": [round(low, 4), round(high, 4)],
        }
    return result


def throughput(case: Case, rounds: int) -> dict[str, object]:
    batch = settings(case).batch
    with tempfile.TemporaryDirectory() as folder:
        dense = trainer(case, Path(folder) / "dense")
        loops = {"bare": bare(case), "ours": ours(dense)}
        if case.normalise is not None:
            loops["augmented"] = ours(trainer(case, Path(folder) / "augmented", augment=True))
        loops["thresholds"] = ours(trainer(case, Path(folder) / "thresholds", *ACTIVE))
        seconds = race({name: partial(turn, loop, case.steps) for name, loop in loops.items()}, rounds)
        saving = []
        for _ in range(max(8, rounds // 4)):
            start = time.perf_counter()
            dense.save()
            saving.append(time.perf_counter() - start)
    epoch = fastest(seconds["ours"]) / case.steps * case.epoch
    return {
        "data": case.data,
        "batch": batch,
        "rounds": rounds,
        "steps_per_turn": case.steps,
        **summary(seconds, batch * case.steps),
        "checkpoint_ms": round(1000 * fastest(saving), 2),
        "checkpoint_share_of_epoch": round(fastest(saving) / epoch, 5),
        "seconds": {name: [round(t, 5) for t in values] for name, values in seconds.items()},
    }


# What the command runs, with a clock. torch imports its compiler when the first optimizer is made, in any program.
FIRST_STEP = """
import sys, time
times = [time.time()]
import torch, torch._dynamo
times.append(time.time())
import softprune.cli, softprune.train.run, softprune.train.load_run, sklearn.datasets
times.append(time.time())
def stop(view, progress):
    print("TIMES", *times, time.time(), flush=True)
    sys.exit(0)
softprune.cli.terminal.LiveView.on_step = stop
sys.argv = ["softprune", "train", "digits/str", "--quiet", "--out", sys.argv[1]]
softprune.cli.main()
"""
PHASES = ("python", "import_torch", "import_the_rest", "data_network_step")


def first_step(repeats: int) -> dict[str, object]:
    """Seconds from the command to the first step made, and what they are spent on."""
    found: dict[str, list[float]] = {name: [] for name in (*PHASES, "total")}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            start = time.time()
            done = subprocess.run(
                [sys.executable, "-c", FIRST_STEP, f"{folder}/run"], capture_output=True, text=True, check=True
            )
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("TIMES"))
        moments = [start, *map(float, line.split()[1:])]
        for name, before, after in zip(PHASES, moments, moments[1:], strict=False):
            found[name].append(after - before)
        found["total"].append(moments[-1] - start)
    best = {name: fastest(values) for name, values in found.items()}
    return {
        "repeats": repeats,
        **{f"{name}_seconds": round(value, 3) for name, value in best.items()},
        "import_share": round((best["import_torch"] + best["import_the_rest"]) / best["total"], 3),
        "seconds": {name: [round(t, 3) for t in values] for name, values in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="turns of each loop")
    parser.add_argument("--repeats", type=int, default=8, help="how often the command is started")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--root", type=Path, help="folder with CIFAR-10; ./data by default")
    parser.add_argument("--only", choices=["digits", "resnet20", "first_step"], help="one of the three parts")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    # Thresholds are held where they cost most; that such a run would not train well is known.
    warnings.simplefilter("ignore", softprune.ForecastWarning)
    figures: dict[str, object] = {
        "command": f"python benchmarks/throughput.py --rounds {options.rounds} --threads {options.threads}",
        "torch": torch.__version__,
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "goal": GOAL,
    }
    parts = {
        "digits": lambda: throughput(digits(), 3 * options.rounds),
        "resnet20": lambda: throughput(cifar10(options.root), options.rounds),
        "first_step": lambda: first_step(options.repeats),
    }
    for name, measure in parts.items():
        if options.only in (None, name):
            found = measure()
            figures[name] = found
            print(name, json.dumps({key: value for key, value in found.items() if key != "seconds"}), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(to_json(figures))


if __name__ == "__main__":
    main()
