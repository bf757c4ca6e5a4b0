"""Claim: learning thresholds costs at most 2 % of a training step on ResNet-18 (32x32 images, batch 64, CPU), and less
than half of what the paper's composition of operations costs. On a network of half a million weights it costs about as
much as the composition: a few Python calls per tensor weigh as much there as the composition's passes over memory.

One process makes a step of each variant in turn, in an order that rotates, and compares the steps of one round:

    dense    the plain model
    naive    sign(w) * relu(|w| - sigmoid(s)) through torch.nn.utils.parametrize
    ours     softprune.sparsify with attached hooks
    waiting  ours while the threshold is still exactly 0 (s below -88.7)

Other load on the machine only ever adds time, so a variant is judged by the mean of the fastest quarter of its steps.
Printed: its ratio to that of the dense step with a 95 % bootstrap interval, the median of the ratios within rounds
with the middle half of them (the spread of single steps), and the overhead of ours as a share of the naive one. Run:

    python benchmarks/training_overhead.py --rounds 60 --out benchmarks/results/training_overhead.json
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from racing import fastest, interval, race
from torch import Tensor, nn
from torch.nn.utils import parametrize

import softprune
from softprune.budget.budget import to_json
from softprune.budget.profiler import prunable_tensors
from softprune.nn.resnet import resnet18

BATCH = 64
ACTIVE_S, WAITING_S = -5.0, -3200.0


def small_cnn() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(3, 32), *block(32, 64), nn.MaxPool2d(2), *block(64, 128), nn.MaxPool2d(2), *block(128, 128),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128 * 16, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


class Naive(nn.Module):
    """Algorithm 1 of the paper."""

    def __init__(self) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.full((1,), ACTIVE_S))

    def forward(self, w: Tensor) -> Tensor:
        return torch.sign(w) * torch.relu(torch.abs(w) - torch.sigmoid(self.s))


def stepper(model: nn.Module, groups: object, attach: Callable[[torch.optim.Optimizer], object]) -> Callable[[], None]:
    optimizer = torch.optim.SGD(groups, lr=1e-3, momentum=0.9, weight_decay=5e-4)
    attach(optimizer)
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def variants(build: Callable[[], nn.Module]) -> dict[str, Callable[[], None]]:
    dense = build()
    naive = copy.deepcopy(dense)
    for t in prunable_tensors(naive):
        parametrize.register_parametrization(t.module, t.tensor, Naive())
    steps = {
        "dense": stepper(dense, dense.parameters(), lambda o: None),
        "naive": stepper(naive, naive.parameters(), lambda o: None),
    }
    for name, s_init in (("ours", ACTIVE_S), ("waiting", WAITING_S)):
        model = copy.deepcopy(dense)
        sparsifier = softprune.sparsify(model, softprune.STR(s_init=s_init))
        steps[name] = stepper(
            model,
            sparsifier.param_groups(weight_decay=5e-4, norm_decay=5e-4),
            lambda o, sparsifier=sparsifier: sparsifier.attach(o, total_steps=10_000),
        )
    return steps


def summary(seconds: dict[str, list[float]]) -> dict[str, object]:
    dense = seconds["dense"]
    result: dict[str, object] = {"dense_step_ms": round(1000 * fastest(dense), 2)}
    ratios = {}
    for name in (n for n in seconds if n != "dense"):
        ratios[name] = fastest(seconds[name]) / fastest(dense)
        low, middle, high = statistics.quantiles([t / d for t, d in zip(seconds[name], dense, strict=True)], n=4)
        result[name] = {
            "ratio": round(ratios[name], 4),
            "interval": interval(seconds[name], dense),
            "median_of_rounds": round(middle, 4),
            "quartiles_of_rounds": [round(low, 4), round(high, 4)],
        }
    result["ours_as_share_of_naive_overhead"] = round((ratios["ours"] - 1) / (ratios["naive"] - 1), 3)
    result["seconds"] = {name: [round(t, 5) for t in values] for name, values in seconds.items()}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["small_cnn", "resnet18"], help="run one of the two models")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    # The thresholds are held where they cost most (or nothing); that this run would not train well is known.
    warnings.simplefilter("ignore", softprune.ForecastWarning)
    models: dict[str, Callable[[], nn.Module]] = {
        "small_cnn": small_cnn,
        "resnet18": lambda: resnet18(stem="cifar"),
    }
    figures: dict[str, object] = {
        "command": f"python benchmarks/training_overhead.py --rounds {options.rounds} --threads {options.threads}",
        "torch": torch.__version__,
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "batch": BATCH,
    }
    for name, build in models.items():
        if options.only in (None, name):
            rounds = options.rounds * (5 if name == "small_cnn" else 1)
            figures[name] = {"rounds": rounds, **summary(race(variants(build), rounds))}
            print(name, json.dumps({k: v for k, v in figures[name].items() if k != "seconds"}), flush=True)  # type: ignore[attr-defined]
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(to_json(figures))


if __name__ == "__main__":
    main()
