"""The formats that are text: budgets, tables of times, configurations, sweeps, run folders, what tuning kept."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import trial_parts
from folders import write_run
from fuzz_seeds import write_seeds

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost
from softprune.budget.latency import LatencyTable, LayerTime
from softprune.deploy.engine import tune
from softprune.deploy.engine.inference import load
from softprune.deploy.engine.library import library
from softprune.deploy.engine.planner import build
from softprune.deploy.engine.tune import recall, remember
from softprune.records import LATENCY
from softprune.reporting.live_run import WatchedRun
from softprune.reporting.report import report_page
from softprune.reporting.run import read_run, read_times
from softprune.train.config import RunConfig
from softprune.train.config.keys import parse_yaml, write_yaml
from softprune.train.run_folder import RunFolder
from softprune.train.sweep.sweep import Sweep
from softprune.train.sweep.sweep_config import SweepConfig

Read = Callable[[bytes, int, Path, random.Random], str]
"""Reads a spoiled copy of a seed, given its number, in a folder of its own: "read", "noted" or "refused"."""


class DifferenceError(Exception):
    """What was read does not survive being written and read again."""


@dataclass(frozen=True)
class Format:
    """A format that the package reads.

    Args:
        name: in the results.
        kind: which mutations spoil it, a key of `mutations.BY_KIND`.
        seeds: valid files, as our own writers write them.
        read: our reader, on a folder that is the format's own.
        share: of all cases, relative to the others.
        allowed: exceptions that refuse a file in one clear line.
    """

    name: str
    kind: str
    seeds: tuple[bytes, ...]
    read: Read
    share: float
    allowed: tuple[type[Exception], ...] = (ValueError, OSError)


PROFILE = Profile(
    (TensorCost("conv.weight", (8, 3, 3, 3), 1000), TensorCost("fc.weight", (10, 8), 80)), 5, 7, other_params=30
)
BUDGETS = (
    Budget({"conv.weight": 0.25, "fc.weight": 0.5}, PROFILE, "trial"),
    Budget({"conv.weight": 1.0, "fc.weight": 0.0}, None, "trial"),
)
BENCH = {
    "format": "softprune-bench",
    "version": 1,
    "network": "model.spx",
    "bytes": 1234,
    "processor": "a processor",
    "level": "avx2",
    "batch": 1,
    "threads": 1,
    "engines": {
        "softprune": {"seconds": 1e-3, "median": 2e-3, "bursts": 9, "dropped": 1},
        "onnxruntime": {"seconds": 2e-3, "median": 3e-3, "bursts": 10, "dropped": 0},
    },
    "ratios": {"onnxruntime": {"best": 2.0, "low": 1.5, "high": 2.5}},
    "share of the roofline": 0.5,
    "layers": [{"path": "conv", "microseconds": 3.5, "kernel": "sparse"}, {"path": "fc", "microseconds": 1.0}],
}
SWEEP = {
    "name": "trial",
    "base": "digits/str",
    "changes": {"epochs": 2},
    "search": {"optimizer.lr": [0.05, 0.1], "propose.push": {"low": 1.5, "high": 5, "log": True}},
    "sampler": "tpe",
    "trials": 3,
    "objectives": ["accuracy"],
    "pruner": {"name": "median", "warmup_epochs": 1},
}


def text_formats(folder: Path) -> Iterator[Format]:
    """All of them; their seeds and scratch files are below ``folder``."""
    yield from _budgets()
    yield Format("bench JSON", "json", (json.dumps(BENCH).encode(), b'{"a_ms": 1.5}'), _read_bench, 100)
    yield _tuning(folder)
    configs = (write_yaml(trial_parts.SHORT).encode(), _recipe("digits/str-goal"))
    yield Format("config YAML", "yaml", configs, _read_config, 20)
    yield Format("sweep YAML", "yaml", (write_yaml(SWEEP).encode(),), _read_sweep, 15)
    yield from _run_files(folder / "run seed")


def _budgets() -> Iterator[Format]:
    from softprune.budget.budget import to_csv

    yield Format("budget JSON", "json", tuple(b.to_json().encode() for b in BUDGETS), _read_budget_json, 140)
    csvs = tuple(to_csv(b.densities, b.profile).encode() for b in BUDGETS)
    yield Format("budget CSV", "csv", csvs, _read_budget_csv, 120)
    layers = (
        LayerTime("conv.weight", (8, 3, 3, 3), (0.05, 0.1, 1.0), (1e-6, 2e-6, 9e-6)),
        LayerTime("fc.weight", (10, 8), (0.1, 1.0), (1e-7, 3e-7)),
    )
    table = LatencyTable(layers, fixed=1e-6, processor="a processor", level="avx2", threads=1, batch=1)
    yield Format("table of times", "json", (json.dumps(table.to_dict()).encode(),), _read_table, 120)


def _recipe(name: str) -> bytes:
    return RunConfig.load(name).dump().encode()


def _read_budget_json(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
    return _read_budget(_placed(folder / "budget.json", content), dice)


def _read_budget_csv(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
    return _read_budget(_placed(folder / "budget.csv", content), dice)


def _read_budget(path: Path, dice: random.Random) -> str:
    budget = Budget.load(path)
    if Budget.from_json(budget.to_json()) != budget:
        raise DifferenceError("a budget that was read is another one when it is written and read")
    if dice.random() < 0.2:
        budget._repr_html_()
    return "read"


def _read_table(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
    table = LatencyTable.load(_placed(folder / "table.json", content))
    table.total({})
    table.of(BUDGETS[0])
    return "read"


def _read_bench(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
    problems: list[str] = []
    read_times(_placed(folder / LATENCY, content), problems)
    return "noted" if problems else "read"


def _tuning(folder: Path) -> Format:
    """What tuning kept, taken over by a program of the engine."""
    place = folder / "tuning seed"
    place.mkdir(parents=True)
    os.environ["SOFTPRUNE_CACHE"] = str(place)
    kernels = library()
    if kernels is None:
        return Format("tuning cache", "json", (b'{"choices": {}, "bands": {}}',), _read_cache, 40)
    engine = load(write_seeds(place, exported=False)[0], threads=1, tune=False)
    builder = build(engine.model, kernels, batch=1, threads=1)
    for step in builder.program.steps:
        if step.kernel is not None:
            step.settle(step.kernel.choices()[0])
    remember(builder.program, "seed")

    def read(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        _cached(content, folder)
        return "read" if recall(builder.program, "trial") else "refused"

    return Format("tuning cache", "json", ((place / "tuning" / "seed.json").read_bytes(),), read, 40)


def _read_cache(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
    _cached(content, folder)
    return "refused" if tune.read_results("trial") is None else "read"


def _cached(content: bytes, folder: Path) -> None:
    os.environ["SOFTPRUNE_CACHE"] = str(folder)
    (folder / "tuning").mkdir(exist_ok=True)
    _placed(folder / "tuning" / "trial.json", content)


def _read_config(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
    config = RunConfig.load(_placed(folder / "config.yaml", content), trust=True)
    if dice.random() < 0.2 and RunConfig.parse(parse_yaml(config.dump(), "again")) != config:
        raise DifferenceError("a configuration that was read is another one when it is written and read")
    return "read"


def _read_sweep(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
    path = _placed(folder / "sweep.yaml", content)
    SweepConfig.load(path)
    if dice.random() < 0.1:
        Sweep.load(path)
    return "read"


def _run_files(folder: Path) -> Iterator[Format]:
    """Each file of a run folder, spoiled while the others are whole, read as reports, watchers and runs read it."""
    write_run(folder)
    (folder / LATENCY).write_text(json.dumps(BENCH))
    shares = {"metrics.jsonl": 20, "layers.csv": 20, "result.json": 12, "environment.json": 10}
    shares |= {"config.yaml": 10, "budget.json": 6, LATENCY: 6}
    for name, share in shares.items():
        kind = Path(name).suffix[1:]
        yield Format(f"run {name}", kind, ((folder / name).read_bytes(),), _run_reader(folder, name), share)


def _run_reader(whole: Path, name: str) -> Read:
    def read(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        if not (folder / "config.yaml").exists():
            shutil.copytree(whole, folder, dirs_exist_ok=True)
        _placed(folder / name, content)
        run = read_run(folder)
        for fact in ("label", "model", "data", "seed", "goal", "units", "accuracy", "sparsity", "params", "macs"):
            getattr(run, fact)
        watched = WatchedRun(folder)
        watched.look()
        for fact in ("title", "words", "goal", "goal_sparsity", "total_steps", "seconds_left"):
            getattr(watched, fact)
        if name in ("metrics.jsonl", "layers.csv"):
            _continue(folder, content)
        if dice.random() < 0.02:
            report_page([run])
        return "noted" if run.problems else "read"

    def _continue(folder: Path, content: bytes) -> None:
        """What a run that goes on reads and cuts back; it may refuse the files with what the command line prints."""
        try:
            RunFolder(folder).metrics()
            RunFolder(folder).cut_back(4)
            RunFolder(folder).thresholds()
        except (ValueError, OSError):
            return

    return read


def _placed(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
