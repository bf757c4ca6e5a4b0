"""Mutate .spx files and load them: each must be refused with an error, or run and be right. Never crash.

    python tests/trials/fuzz_spx.py --sanitize --out benchmarks/results/fuzz_spx.json [--cases 100000] [--seed 0]

The cases run in child processes, a chunk each, with the instruction sets in turn. With --sanitize the kernels are built
with AddressSanitizer and UndefinedBehaviorSanitizer into a temporary folder, and its runtime is preloaded. A case is
its seed and its number: a run goes on where an unfinished --out ends, and `--first N --cases 1` is case N alone. Files
that crash, hang, raise anything unexpected, or give two different results are counted, named and kept in --keep.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_mutations import MUTATIONS
from fuzz_seeds import write_seeds

from softprune import __version__
from softprune.deploy.engine.build import build, compiler
from softprune.records import write_text

LEVELS = ("avx512", "avx2", "portable")
# Seconds after which a case hangs.
PATIENCE = 300
SANITIZERS = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-g", "-O1")
STAGES = ("refused", "too large", "stopped", "run")
FAULTS = ("crash", "hang", "unexpected", "different")


def make_case(contents: list[bytes], seed: int, number: int) -> tuple[str, bytes, random.Random]:
    """The mutation, the file and the dice of a case."""
    dice = random.Random(f"{seed}-{number}")
    kind = dice.choice(list(MUTATIONS))
    return kind, MUTATIONS[kind](dice.choice(contents), dice), dice


def run_chunk(options: argparse.Namespace) -> None:
    """In a child: run cases one by one; after each, the file --state says how far it came."""
    from fuzz_case import DifferenceError, try_file

    warnings.simplefilter("ignore")
    contents = [path.read_bytes() for path in sorted(options.seeds.glob("*.spx"))]
    path, state = options.state.with_suffix(".case"), options.state
    counts: dict[str, dict[str, int]] = {}
    notes: list[str] = []
    for number in range(options.first, options.first + options.cases):
        kind, content, dice = make_case(contents, options.seed, number)
        state.write_text(json.dumps({"number": number, "kind": kind, "counts": counts, "notes": notes}))
        path.unlink(missing_ok=True)  # the file before may still be mapped
        path.write_bytes(content)
        signal.alarm(PATIENCE)
        try:
            stage = try_file(path, dice)
        except Exception as error:
            stage = "different" if isinstance(error, DifferenceError) else "unexpected"
            notes.append(f"{number} {kind}: {_last_line(error)}")
            if options.keep:
                (options.keep / f"{number}.spx").write_bytes(content)
        signal.alarm(0)
        counts.setdefault(kind, {}).setdefault(stage, 0)
        counts[kind][stage] += 1
    state.write_text(json.dumps({"number": None, "counts": counts, "notes": notes}))


def _last_line(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {error}"[:300]


class Fuzz:
    """All cases, in chunks; what is known so far is always on the disk."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.found: dict[str, Any] = {"counts": {}, "notes": [], "cases": 0, "seconds": 0.0}
        write_seeds(folder)
        if options.sanitize:
            self._sanitize()
        if options.out and options.out.is_file():
            before = json.loads(options.out.read_text())
            if before["seed"] == options.seed and before["cases"] < options.cases:
                self.found = {key: before[key] for key in ("counts", "notes", "cases", "seconds")}

    def _sanitize(self) -> None:
        program = compiler()
        if program is None:
            raise SystemExit("no C++ compiler")
        library = build(self.folder / "kernels.so", extra=SANITIZERS)
        runtime = subprocess.check_output([*program, "-print-file-name=libasan.so"], text=True).strip()
        self.environment |= {
            "LD_PRELOAD": runtime,
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:exitcode=77",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "SOFTPRUNE_KERNELS": str(library),
        }

    def run(self) -> None:
        """Run what is left."""
        begin, before = time.perf_counter(), self.found["seconds"]
        while self.found["cases"] < self.options.cases:
            place = self.found["cases"]
            stop = min(self.options.cases, (place // self.options.chunk + 1) * self.options.chunk)
            self._chunk(self.options.first + place, stop - place, LEVELS[place // self.options.chunk % len(LEVELS)])
            self.found["seconds"] = round(before + time.perf_counter() - begin, 1)
            if self.options.out:
                write_text(self.options.out, json.dumps(self.summary(), indent=2) + "\n")

    def _chunk(self, first: int, cases: int, level: str) -> None:
        """Cases in a child; if it dies, up to the case that it died of."""
        state = self.folder / "state.json"
        state.unlink(missing_ok=True)
        arguments = {"--state": state, "--seeds": self.folder, "--first": first, "--cases": cases}
        arguments |= {"--seed": self.options.seed} | ({"--keep": self.options.keep} if self.options.keep else {})
        command = [sys.executable, __file__, *(str(word) for pair in arguments.items() for word in pair)]
        environment = {**self.environment, "SOFTPRUNE_KERNELS_LEVEL": level}
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace")
        if not state.is_file():
            raise SystemExit(f"the child did not start: {done.stderr[-2000:]}")
        reached = json.loads(state.read_text())
        number = reached["number"]
        for kind, stages in reached["counts"].items():
            for stage, count in stages.items():
                self._count(kind, stage, count)
        self.found["notes"] += reached["notes"]
        self.found["cases"] += cases if number is None else number - first + 1
        if number is not None:
            self._died(number, reached["kind"], level, done)

    def _died(self, number: int, kind: str, level: str, done: subprocess.CompletedProcess[str]) -> None:
        stage = "hang" if done.returncode == -signal.SIGALRM else "crash"
        self._count(kind, stage, 1)
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line or "runtime error" in line]
        self.found["notes"].append(f"{number} {kind} {level}: {stage}, code {done.returncode} {' '.join(lines)[:300]}")
        if self.options.keep:
            (self.options.keep / f"{number}.txt").write_text(done.stderr)
            (self.options.keep / f"{number}.spx").write_bytes((self.folder / "state.case").read_bytes())

    def _count(self, kind: str, stage: str, count: int) -> None:
        stages = self.found["counts"].setdefault(kind, {})
        stages[stage] = stages.get(stage, 0) + count

    def summary(self) -> dict[str, Any]:
        """Everything that the committed file says."""
        total = {s: sum(c.get(s, 0) for c in self.found["counts"].values()) for s in (*STAGES, *FAULTS)}
        cases = max(1, self.found["cases"])
        loaded = cases - total["refused"] - sum(total[name] for name in FAULTS)
        return {
            "command": "python tests/trials/fuzz_spx.py " + " ".join(sys.argv[1:]),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "machine": platform.processor() or platform.machine(),
            "versions": {"softprune": __version__, "python": platform.python_version(), "numpy": np.__version__},
            "sanitized": bool(self.options.sanitize),
            "seed": self.options.seed,
            "cases": self.found["cases"],
            "seconds": self.found["seconds"],
            **total,
            "loaded share": round(loaded / cases, 4),
            "run share": round(total["run"] / cases, 4),
            "counts": self.found["counts"],
            "notes": self.found["notes"],
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--chunk", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for the files that found something")
    parser.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    if options.state:
        run_chunk(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(options, Path(folder))
        fuzz.run()
    summary = fuzz.summary()
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    return 1 if any(summary[name] for name in FAULTS) else 0


if __name__ == "__main__":
    raise SystemExit(main())
