"""Claim: to meet a total exactly after every step and to learn its distribution costs at most 1 % of a training step of
ResNet50 (batch 32, 224x224, SGD with momentum, CPU). A solution reads the weights at most three times, and needs at
most a tenth of the model in extra memory. On a CNN of 261,392 weights (batch 128, 28x28) both take 3 to 4 ms.

One process, in rounds. Each makes a step of the dense model, and then for every variant (a total of weights, one of
multiply-adds, one threshold per filter), in an order that rotates:

    learning   observe and learn, with the gradients of the dense step; then the weights move against them
    solving    solve, at a point of the ramp that moves on by a step of a training of 10,000 steps

Times are judged by the mean of the fastest quarter of the rounds, since other load only ever adds time. Printed: the
ratio of learning and solving together to the dense step with a 95 % bootstrap interval, the median of the ratios within
rounds with the middle half of them, and, from rounds that are not timed, the most of

    reads      weights compared in full sweeps, and keys sampled besides, as multiples of the model
    peak       bytes alive at once above the start: the peak of numpy's (tracemalloc) plus that of torch's (profiler),
               an upper bound, since the two need not fall together

Other load slows two threads that wait for each other more than one, and so the dense step more than a solution: on a
shared machine `--threads 1 --clock cpu`, the time on a core, is the fair comparison. The load is in the output. Run:

    python benchmarks/solve.py --rounds 20 --threads 2 --out benchmarks/results/solve.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import torch
from racing import WARM_UP, fastest, interval
from torch import Tensor, nn

import softprune
from softprune import STR, Flops, Sparsity
from softprune.budget.budget import to_json
from softprune.goals import scan, select
from softprune.goals.solve import learn, observe, solve
from softprune.nn.resnet import resnet50
from softprune.nn.small import small_cnn

SPARSITY, MACS_KEPT = 0.9, 0.2
RATE, TOTAL_STEPS, FIRST_STEP = 0.05, 10_000, 4_000
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
# Rounds in which reads and memory are looked at, after those that are timed.
LOOKS = 5


@dataclass
class Variant:
    """A model under a goal that follows the dense one."""

    sparsifier: softprune.Sparsifier
    step: int = FIRST_STEP
    learning: list[float] = field(default_factory=list)
    solving: list[float] = field(default_factory=list)

    def learn(self) -> None:
        (part,) = self.sparsifier.goals
        observe(part)
        learn(part, self.step / TOTAL_STEPS, TOTAL_STEPS)

    def solve(self) -> None:
        (part,) = self.sparsifier.goals
        solve(part, part.allowed(self.step / TOTAL_STEPS))

    @torch.no_grad()
    def follow(self, grads: dict[str, Tensor]) -> None:
        """The step of the optimizer, between learning and solving."""
        self.step += 1
        for target in self.sparsifier.targets:
            target.raw.sub_(grads[target.name], alpha=RATE)

    def turn(self, grads: dict[str, Tensor], clock: Clock, *, counted: bool) -> None:
        for target in self.sparsifier.targets:
            target.raw.grad = grads[target.name]
        learning = timed(self.learn, clock)
        self.follow(grads)
        solving = timed(self.solve, clock)
        if counted:
            self.learning.append(learning)
            self.solving.append(solving)

    def looked_at(self, grads: dict[str, Tensor]) -> dict[str, object]:
        size = sum(target.raw.numel() for target in self.sparsifier.targets)
        swept, sampled, peaks = [], [], []
        for _ in range(LOOKS):
            self.follow(grads)
            with counting() as reads:
                self.solve()
            swept.append(reads["swept"] / size)
            sampled.append(reads["sampled"] / size)
            self.follow(grads)
            peaks.append(peak_bytes(self.solve))
        learning = peak_bytes(self.learn)
        return {
            "reads": round(max(swept), 3),
            "sampled": round(max(sampled), 4),
            "peak_mb": round(max(peaks) / 1e6, 2),
            "peak_of_learning_mb": round(learning / 1e6, 2),
            "peak_as_share_of_model": round(max([*peaks, learning]) / (4 * size), 3),
        }


def timed(work: Callable[[], None], clock: Clock) -> float:
    start = clock()
    work()
    return clock() - start


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Count the weights that solutions read."""
    reads = {"swept": 0, "sampled": 0}
    find, sample = scan.find, select.sample

    def counted_find(w, *rest):  # type: ignore[no-untyped-def]
        reads["swept"] += len(w.flat)
        return find(w, *rest)

    def counted_sample(*arguments):  # type: ignore[no-untyped-def]
        found = sample(*arguments)
        reads["sampled"] += len(found.size)
        return found

    with patch.object(select, "find", counted_find), patch.object(select, "sample", counted_sample):
        yield reads


def peak_bytes(work: Callable[[], None]) -> int:
    tracemalloc.start()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        # The profiler's own Python objects are no part of it.
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        work()
        most = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    events = sorted((e for e in profiler.events() if e.name == "[memory]"), key=lambda e: e.time_range.start)
    alive = peak = 0
    for event in events:
        alive += event.cpu_memory_usage
        peak = max(peak, alive)
    return most + peak


class Race:
    """The dense model of one kind, and the variants that follow it."""

    def __init__(self, build: Callable[[], nn.Module], batch: int, shape: tuple[int, ...], classes: int) -> None:
        self.model = build()
        self.x, self.y = torch.randn(batch, *shape), torch.randint(0, classes, (batch,))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9, weight_decay=1e-4)
        example = self.x[:1]
        macs = round(MACS_KEPT * softprune.profile(self.model, example).total_macs())
        self.variants = {
            "sparsity": Variant(softprune.sparsify(build(), STR(), goal=Sparsity(SPARSITY))),
            "flops": Variant(softprune.sparsify(build(), STR(), goal=Flops(macs), example=example)),
            "filter": Variant(softprune.sparsify(build(), STR(granularity="filter"), goal=Sparsity(SPARSITY))),
        }
        self.dense: list[float] = []

    def step(self) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()

    def grads(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}

    def run(self, rounds: int, clock: Clock) -> None:
        names = [*self.variants]
        for number in range(-WARM_UP, rounds):
            seconds = timed(self.step, clock)
            if number >= 0:
                self.dense.append(seconds)
            first = number % len(names)
            for name in names[first:] + names[:first]:
                self.variants[name].turn(self.grads(), clock, counted=number >= 0)

    def summary(self) -> dict[str, object]:
        result: dict[str, object] = {"rounds": len(self.dense), "dense_step_ms": round(1000 * fastest(self.dense), 2)}
        for name, variant in self.variants.items():
            both = [a + b for a, b in zip(variant.learning, variant.solving, strict=True)]
            quartiles = statistics.quantiles([t / d for t, d in zip(both, self.dense, strict=True)], n=4)
            result[name] = {
                "learning_ms": round(1000 * fastest(variant.learning), 2),
                "solving_ms": round(1000 * fastest(variant.solving), 2),
                "ratio": round(fastest(both) / fastest(self.dense), 4),
                "interval": interval(both, self.dense),
                "median_of_rounds": round(quartiles[1], 4),
                "quartiles_of_rounds": [round(quartiles[0], 4), round(quartiles[2], 4)],
                **variant.looked_at(self.grads()),
            }
        timings = {"dense": self.dense}
        for name, variant in self.variants.items():
            timings |= {f"{name} learning": variant.learning, f"{name} solving": variant.solving}
        result["seconds"] = {name: [round(t, 5) for t in values] for name, values in timings.items()}
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="for ResNet50; ten times as many for the small model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="time that passes, or time on a core")
    parser.add_argument("--only", choices=["small_cnn", "resnet50"], help="run one of the two models")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    models: dict[str, Callable[[], Race]] = {
        "small_cnn": lambda: Race(small_cnn, 128, (1, 28, 28), 10),
        "resnet50": lambda: Race(resnet50, 32, (3, 224, 224), 1000),
    }
    figures: dict[str, object] = {
        "command": "python benchmarks/solve.py " + " ".join(sys.argv[1:]),
        "torch": torch.__version__,
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "threads": options.threads,
        "clock": options.clock,
        "load_before": round(os.getloadavg()[0], 2),
    }
    for name, build in models.items():
        if options.only in (None, name):
            race = build()
            race.run(options.rounds * (10 if name == "small_cnn" else 1), CLOCKS[options.clock])
            figures[name] = summary = race.summary()
            print(name, json.dumps({k: v for k, v in summary.items() if k != "seconds"}), flush=True)
    if options.out:
        figures["load_after"] = round(os.getloadavg()[0], 2)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(to_json(figures))


if __name__ == "__main__":
    main()
