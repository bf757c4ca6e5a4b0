"""Run everything that runs on several processes again and again on a busy machine, and count what fails.

    python tests/trials/flicker.py --out /tmp/flicker.json [--runs 100] [--only ddp fsdp] [--load 2] [--seconds 600]

A test that fails once in a hundred runs is a bug that waits. What the distributed tests start (a worker, or
`softprune train`, under torchrun on two processes) is started here directly, without pytest, each as one unit: a run
is one unit once, and succeeds if torchrun ends with 0 and the files that its tests read are there. The units take
turns, so that a trial that is stopped early has tried all of them alike.

Most of such a run is spent on importing. With --fork the two processes are forked instead from this one, which has
imported everything and keeps the store as torchrun does; what they do from there to their end is the same. The record
says how many runs were made in which way.

Beside them, busy loops keep the cores from being idle: threads then meet in orders that an idle machine never shows.
They end with this program, however it ends. --out is written after every run and says whether all runs were made;
started again with the same --out, the trial goes on where it was, and with a larger --runs it goes on from there.
"""

# ruff: noqa: T201 - a program that prints

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import platform
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from softprune import __version__
from softprune.deploy.engine.tune import processor
from softprune.records import write_text

WORKERS = Path(__file__).parents[1] / "integration" / "workers"
SHORT = ["digits/str", "epochs=2", "data.subset=320", "threads=1", "propose.push=2", "--quiet"]

# What workers import, and takes seconds.
FRAMEWORKS = ("lightning", "accelerate", "transformers", "torch.distributed.fsdp", "torch.distributed.tensor")

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


def run_unit(name: str, *, patience: float, fork: bool = False) -> dict[str, Any]:
    """One run: how it ended, and what it printed last if not well."""
    words, files = UNITS[name]
    began = time.monotonic()
    # No TemporaryDirectory: a forked worker, too, would clean it up when it leaves.
    folder = Path(tempfile.mkdtemp())
    try:
        ending, printed = (_forked if fork else _by_torchrun)(words(folder), folder, patience)
        if ending == "ended" and (missing := [f for f in files if not (folder / f).is_file()]):
            ending = f"without {', '.join(missing)}"
    finally:
        shutil.rmtree(folder)
    found: dict[str, Any] = {"ending": ending, "seconds": round(time.monotonic() - began, 2)}
    return found if ending == "ended" else {**found, "last lines": printed.splitlines()[-MOST_LINES:]}


def _by_torchrun(words: list[str], folder: Path, patience: float) -> tuple[str, str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        printed, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return "hung", _end(process)
    return "ended" if process.returncode == 0 else f"code {process.returncode}", printed


def _forked(words: list[str], folder: Path, patience: float) -> tuple[str, str]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    # The store is not a worker's, so that it outlives every one of them.
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    output = folder / "output.txt"
    left = {}
    for rank in range(2):
        child = os.fork()
        if child == 0:
            os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1)
            os.dup2(file, 2)
            _become(words)
        left[child] = rank
    codes, end = [], time.monotonic() + patience
    while left and time.monotonic() < end:
        found, status = os.waitpid(-1, os.WNOHANG)
        if found in left:
            del left[found]
            codes.append(os.waitstatus_to_exitcode(status))
        elif not found:
            time.sleep(0.02)
        if any(codes):  # torchrun stops the others then
            break
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    printed = output.read_text(errors="replace") if output.is_file() else ""
    if any(codes):
        return f"code {next(code for code in codes if code)}", printed
    return ("hung" if left else "ended"), printed


def _become(words: list[str]) -> NoReturn:
    """Do as a fresh interpreter that was started with these words, which does not come back from them."""
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
        print("the program came to its end, where it should have left with run_and_leave", flush=True)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(71)


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
    os.nice(19)  # what waits for a core is to go first: the runs, and whatever else the machine has to do
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
            self.units.setdefault(name, {"runs": 0, "forked": 0, "failed": 0, "seconds": 0.0, "failures": []})
        # How busy the machine was when each run ended: processes that ran or waited for a core, over the last minute.
        self.busy: list[float] = known.get("load averages", [])
        # A trial may go on elsewhere, on later sources: how many runs each processor has made.
        before = {known["processor"]: known["runs"]} if "processor" in known else {}
        self.processors: dict[str, int] = known.get("runs by processor", before)
        self.facts = {
            "what": "a unit is two processes, as the distributed tests start them; forked: not by torchrun",
            "load": f"{load} busy loops beside each run",
            "softprune": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "began": known.get("began") or datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }

    def next(self) -> str | None:
        """The unit with the fewest runs, of those that have not had all."""
        left = [name for name in self.chosen if self.units[name]["runs"] < self.runs]
        return min(left, key=lambda name: self.units[name]["runs"], default=None)

    def add(self, name: str, found: dict[str, Any], *, forked: bool = False) -> None:
        unit = self.units[name]
        unit["runs"] += 1
        self.processors[processor()] = self.processors.get(processor(), 0) + 1
        unit["forked"] = unit.get("forked", 0) + forked
        unit["seconds"] = round(unit["seconds"] + found["seconds"], 2)
        self.busy.append(round(os.getloadavg()[0], 2))
        if found["ending"] != "ended":
            unit["failed"] += 1
            unit["failures"].append({"run": unit["runs"], **found, "load average": self.busy[-1]})

    def write(self) -> None:
        least = min((unit["runs"] for unit in self.units.values()), default=0)
        complete = len(self.units) == len(UNITS) and least >= self.runs
        totals = {key: sum(unit.get(key, 0) for unit in self.units.values()) for key in ("runs", "forked", "failed")}
        facts = {
            **self.facts,
            "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "asked": f"{self.runs} runs of each unit",
            "complete": complete,
            "fewest runs of a unit": least,
            **totals,
            "runs by processor": self.processors,
            "load average": {
                "least": min(self.busy, default=0),
                "median": median(self.busy or [0]),
                "most": max(self.busy, default=0),
            },
            "units": self.units,
            "load averages": self.busy,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(facts, indent=1) + "\n")


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write, and to go on from if it is there")
    parser.add_argument("--runs", type=int, default=100, help="of each unit, those already in --out counted (100)")
    parser.add_argument("--only", nargs="+", choices=list(UNITS), default=list(UNITS), metavar="UNIT",
                        help=f"units to run; all by default: {', '.join(UNITS)}")  # fmt: skip
    parser.add_argument("--fork", action="store_true", help="fork the workers from this process instead of torchrun")
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1, help="busy loops (one for each core)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after this long (no limit)")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds after which a run has hung (900)")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    asked = parsed(words)
    record = Record(asked.out, runs=asked.runs, load=asked.load, units=asked.only)
    load, end = Load(asked.load), time.monotonic() + asked.seconds
    if asked.fork:
        for package in ("softprune.cli", "softprune.train.run", "sklearn.datasets", *FRAMEWORKS):
            importlib.import_module(package)
    while time.monotonic() < end and (name := record.next()) is not None:
        load.keep_up(2 * asked.patience)
        found = run_unit(name, patience=asked.patience, fork=asked.fork)
        record.add(name, found, forked=asked.fork)
        record.write()
        unit = record.units[name]
        print(f"{name}: run {unit['runs']} {found['ending']}, {unit['failed']} failed so far", flush=True)
    record.write()
    for name, unit in record.units.items():
        print(f"{name}: {unit['runs']} runs, {unit['failed']} failed")
    return 1 if any(unit["failed"] for unit in record.units.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
