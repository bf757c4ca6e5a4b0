"""Run everything that runs on several processes again and again on a busy machine, and count what fails.

    python tests/trials/flicker.py --out /tmp/flicker.json [--runs 100] [--only ddp fsdp] [--load 2] [--seconds 600]

A test that fails once in a hundred runs is a bug that waits. What the distributed tests start (a worker, or
`softprune train`, under torchrun on two processes) is started here directly, without pytest, each as one unit: a run
is one unit once, and succeeds if torchrun ends with 0 and the files that its tests read are there. The units take
turns, so that a trial that is stopped early has tried all of them alike.

Beside them, busy loops keep the cores from being idle: threads then meet in orders that an idle machine never shows.
They end with this program, however it ends. --out is written after every run and says whether all runs were made;
started again with the same --out, the trial goes on where it was, and with a larger --runs it goes on from there.
"""

# ruff: noqa: T201 - a program that prints

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from softprune import __version__
from softprune.budget.files import write_text
from softprune.deploy.runtime.cache import processor

WORKERS = Path(__file__).parents[1] / "integration" / "workers"
SHORT = ["digits/str", "epochs=2", "data.subset=320", "threads=1", "propose.push=2", "--quiet"]

# Lines of a failed run that are kept, from the end of what it printed.
MOST_LINES = 40


def _worker(name: str) -> Callable[[Path], list[str]]:
    return lambda folder: [str(WORKERS / f"{name}.py"), str(folder)]


def _training(strategy: str) -> Callable[[Path], list[str]]:
    changes = [*SHORT, f"distributed.strategy={strategy}"]
    return lambda folder: ["-m", "softprune", "train", *changes, "--out", str(folder / "run")]


# name -> (words for torchrun, files that are there after success)
UNITS: dict[str, tuple[Callable[[Path], list[str]], tuple[str, ...]]] = {
    "ddp": (_worker("ddp"), ("0.safetensors", "1.safetensors")),
    "fsdp": (_worker("fsdp"), ("0.safetensors", "1.safetensors", "0.json", "1.json")),
    "masks": (_worker("masks"), ("0.safetensors", "1.safetensors")),
    "accumulation": (_worker("accumulation"), ("0.json", "1.json")),
    "frameworks": (_worker("frameworks"), ("0.safetensors", "1.safetensors")),
    "train ddp": (_training("ddp"), ("run/result.json",)),
    "train fsdp": (_training("fsdp"), ("run/result.json",)),
}


def run_unit(name: str, *, patience: float) -> dict[str, Any]:
    """One run: how it ended, and what it printed last if not well."""
    words, files = UNITS[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        process = subprocess.Popen(
            [*command, *words(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            printed, _ = process.communicate(timeout=patience)
            ending = "ended" if process.returncode == 0 else f"code {process.returncode}"
        except subprocess.TimeoutExpired:
            printed = _end(process)
            ending = "hung"
        if ending == "ended" and (missing := [f for f in files if not (folder / f).is_file()]):
            ending = f"without {', '.join(missing)}"
    found: dict[str, Any] = {"ending": ending, "seconds": round(time.monotonic() - began, 2)}
    return found if ending == "ended" else {**found, "last lines": printed.splitlines()[-MOST_LINES:]}


def _end(process: subprocess.Popen[str]) -> str:
    """End torchrun, which then ends its workers: they are in sessions of their own. What they printed."""
    process.terminate()
    try:
        return process.communicate(timeout=120)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return "torchrun did not end either"


def _spin(parent: int, seconds: float) -> None:
    """Keep a core busy, for a while, and no longer than the program that asked for it lives."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        sum(range(200_000))


class Load:
    """Busy loops, replaced as they end."""

    def __init__(self, number: int) -> None:
        self._loops: list[Any] = [None] * number

    def keep_up(self, seconds: float) -> None:
        for n, loop in enumerate(self._loops):
            if loop is None or not loop.is_alive():
                process = multiprocessing.get_context("spawn").Process(
                    target=_spin, args=(os.getpid(), seconds), daemon=True
                )
                process.start()
                self._loops[n] = process


class Record:
    """What is known so far, always on the disk."""

    def __init__(self, path: Path, *, runs: int, load: int, units: list[str]) -> None:
        self.path, self.runs = path, runs
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        self.units: dict[str, dict[str, Any]] = known.get("units", {})
        self.chosen = units
        for name in units:
            self.units.setdefault(name, {"runs": 0, "failed": 0, "seconds": 0.0, "failures": []})
        self.facts = {
            "what": "each unit is one torchrun of two processes, as the distributed tests start it",
            "load": f"{load} busy loops beside each run",
            "softprune": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "processor": processor(),
            "cores": os.cpu_count(),
            "began": known.get("began") or datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }

    def next(self) -> str | None:
        """The unit with the fewest runs, of those that have not had all."""
        left = [name for name in self.chosen if self.units[name]["runs"] < self.runs]
        return min(left, key=lambda name: self.units[name]["runs"], default=None)

    def add(self, name: str, found: dict[str, Any]) -> None:
        unit = self.units[name]
        unit["runs"] += 1
        unit["seconds"] = round(unit["seconds"] + found["seconds"], 2)
        if found["ending"] != "ended":
            unit["failed"] += 1
            load = [round(x, 2) for x in os.getloadavg()]
            unit["failures"].append({"run": unit["runs"], **found, "load average": load})

    def write(self) -> None:
        least = min((unit["runs"] for unit in self.units.values()), default=0)
        complete = len(self.units) == len(UNITS) and least >= self.runs
        totals = {key: sum(unit[key] for unit in self.units.values()) for key in ("runs", "failed")}
        facts = {
            **self.facts,
            "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "asked": f"{self.runs} runs of each unit",
            "complete": complete,
            "fewest runs of a unit": least,
            **totals,
            "units": self.units,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(facts, indent=1) + "\n")


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write, and to go on from if it is there")
    parser.add_argument("--runs", type=int, default=100, help="of each unit, those already in --out counted (100)")
    parser.add_argument("--only", nargs="+", choices=list(UNITS), default=list(UNITS), metavar="UNIT",
                        help=f"units to run; all by default: {', '.join(UNITS)}")  # fmt: skip
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1, help="busy loops (one for each core)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after this long (no limit)")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds after which a run has hung (900)")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    asked = parsed(words)
    record = Record(asked.out, runs=asked.runs, load=asked.load, units=asked.only)
    load, end = Load(asked.load), time.monotonic() + asked.seconds
    while time.monotonic() < end and (name := record.next()) is not None:
        load.keep_up(2 * asked.patience)
        found = run_unit(name, patience=asked.patience)
        record.add(name, found)
        record.write()
        unit = record.units[name]
        print(f"{name}: run {unit['runs']} {found['ending']}, {unit['failed']} failed so far", flush=True)
    record.write()
    for name, unit in record.units.items():
        print(f"{name}: {unit['runs']} runs, {unit['failed']} failed")
    return 1 if any(unit["failed"] for unit in record.units.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
