"""How a trial is conducted: cases by number, in forked children, with what is known so far always on the disk.

A trial must outlive what it tries. Each block of cases runs in a child of its own, which notes in shared memory which
case it is at and what became of those before it; when it dies, the case that it died of is known and the next child
goes on behind it. The parent has imported everything, so a child costs a fork.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import os
import platform
import resource
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from softprune import __version__
from softprune.deploy.engine.tune import processor
from softprune.records import write_text

# As given: tasks that run commands in this process change it.
ARGV = tuple(sys.argv)
# What ends a child that hangs.
HANGS = (signal.SIGPROF, signal.SIGALRM)
# Findings that are told one by one; of more of the same kind only the number.
MOST_TOLD = 20


@dataclass
class Block:
    """What became of some cases.

    Attributes:
        reached: the first case that was not begun.
        counts: cases by outcome.
        findings: one entry for each case that found something.
    """

    reached: int
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)


class Ledger:
    """Numbers that a child writes and its parent reads, also after the child was killed."""

    def __init__(self, outcomes: Sequence[str]) -> None:
        self.outcomes = tuple(outcomes)
        self._memory = mmap.mmap(-1, 8 * (1 + len(self.outcomes)))

    def begin(self, number: int) -> None:
        struct.pack_into("<q", self._memory, 0, number)

    def count(self, outcome: str) -> None:
        place = 8 * (1 + self.outcomes.index(outcome))
        struct.pack_into("<q", self._memory, place, struct.unpack_from("<q", self._memory, place)[0] + 1)

    def read(self) -> tuple[int, Counter[str]]:
        number, *counts = struct.unpack_from(f"<{1 + len(self.outcomes)}q", self._memory, 0)
        return number, Counter({name: n for name, n in zip(self.outcomes, counts, strict=True) if n})


Try = Callable[[int], tuple[str, dict[str, Any] | None]]
"""Runs a case; its outcome, and what was found if it is a finding."""


def run_block(
    attempt: Try, first: int, stop: int, *, outcomes: Sequence[str], scratch: Path, seconds: float, memory: int
) -> Block:
    """Run cases in a child; where it dies, up to the case that it died of.

    Args:
        attempt: runs one case.
        first: number of the first case.
        stop: number behind the last one.
        outcomes: all that `attempt` may give; "crash" and "hang" are added.
        scratch: a folder.
        seconds: of the processor, after which a case hangs.
        memory: bytes of address space that the child may take beyond what it has.
    """
    ledger, found, errors = Ledger(outcomes), scratch / "findings.jsonl", scratch / "errors.txt"
    found.write_text("")
    errors.write_text("")
    child = os.fork()
    if child == 0:
        code = 70
        try:
            _in_child(attempt, first, stop, ledger, found, errors, seconds=seconds, memory=memory)
            code = 0
        except BaseException:
            errors.write_text(traceback.format_exc())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    number, counts = ledger.read()
    block = Block(stop if code == 0 else number + 1, counts)
    block.findings = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
    if code == 70:
        raise RuntimeError(f"the trial itself failed at case {number}: {errors.read_text(errors='replace')}")
    if code != 0:
        outcome = "hang" if -code in HANGS else "crash"
        block.counts[outcome] += 1
        told = errors.read_text(errors="replace")[:3000]
        block.findings.append({"case": number, "outcome": outcome, "what": f"{outcome}, exit code {code}", "at": told})
    return block


def _in_child(
    attempt: Try, first: int, stop: int, ledger: Ledger, found: Path, errors: Path, *, seconds: float, memory: int
) -> None:
    with errors.open("w") as trace, found.open("a", encoding="utf-8") as file:
        os.dup2(trace.fileno(), 2)
        faulthandler.enable(trace)
        # The place where it hangs is written, and then the signal does what it does: it ends the child.
        for number in HANGS:
            signal.signal(number, signal.SIG_DFL)
            faulthandler.register(number, file=trace, chain=True)
        limit = address_space() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for number in range(first, stop):
            ledger.begin(number)
            # By the time of the processor, since others may be busy on it; what sleeps is given more.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            signal.setitimer(signal.ITIMER_REAL, 20 * seconds)
            outcome, finding = attempt(number)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            ledger.count(outcome)
            if finding is not None:
                file.write(json.dumps({"case": number, "outcome": outcome, **finding}) + "\n")
                file.flush()


def address_space() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def told(error: BaseException, *, base: str = "softprune") -> dict[str, Any]:
    """An exception in two lines: what it says, and where it came from in the package and in the end."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"/{base}/" in frame.filename]
    places = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in (ours[-1:] + frames[-1:])]
    return {"what": f"{type(error).__name__}: {error}"[:300], "at": ", ".join(dict.fromkeys(places))}


class Book:
    """The results of a trial by group, in a JSON file that a stopped trial goes on from.

    Args:
        path: of the file; None keeps all in memory.
        seed: of the cases; a file of another seed is begun anew.
    """

    def __init__(self, path: Path | None, *, seed: int) -> None:
        self.path, self.seed = path, seed
        self.groups: dict[str, dict[str, Any]] = {}
        self.seconds = 0.0
        self._begun = time.perf_counter()
        if path is not None and path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            if before["seed"] == seed and before["versions"]["softprune"] == __version__:
                self.groups, self.seconds = before["groups"], before["seconds"]

    def done(self, group: str) -> int:
        """Cases of a group so far."""
        return int(self.groups.get(group, {}).get("cases", 0))

    def add(self, group: str, block: Block) -> None:
        """Add a block, and write the file."""
        entry = self.groups.setdefault(group, {"cases": 0, "outcomes": {}, "findings": [], "kinds": {}})
        entry["cases"] = block.reached
        for outcome, count in block.counts.items():
            entry["outcomes"][outcome] = entry["outcomes"].get(outcome, 0) + count
        for finding in block.findings:
            kind = (
                finding.get("kind") or f"{finding['what'].partition(':')[0]} at {finding['at'].partition(',')[0][:80]}"
            )
            entry["kinds"][kind] = entry["kinds"].get(kind, 0) + 1
            if entry["kinds"][kind] <= 2 and len(entry["findings"]) < MOST_TOLD:
                entry["findings"].append(finding)
        self.write()

    def write(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(self.summary(), indent=2, ensure_ascii=False) + "\n")

    @property
    def cases(self) -> int:
        return sum(entry["cases"] for entry in self.groups.values())

    @property
    def findings(self) -> int:
        return sum(sum(entry["kinds"].values()) for entry in self.groups.values())

    def summary(self) -> dict[str, Any]:
        """Everything that the file says."""
        total: Counter[str] = Counter()
        for entry in self.groups.values():
            total.update(entry["outcomes"])
        return {
            "command": f"python tests/trials/{Path(ARGV[0]).name} " + " ".join(ARGV[1:]),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "processor": processor(),
            "versions": {"softprune": __version__, "python": platform.python_version()},
            "seed": self.seed,
            "seconds": round(self.seconds + time.perf_counter() - self._begun, 1),
            "cases": self.cases,
            "findings": self.findings,
            "outcomes": dict(total.most_common()),
            "groups": self.groups,
        }


def say(text: str) -> None:
    """One line on the error stream, at once; it replaces the one before on a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
    else:
        sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def options(description: str, *, cases: int, epilog: str) -> argparse.ArgumentParser:
    """A parser with what every trial takes."""
    parser = argparse.ArgumentParser(
        description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=cases, help=f"how many cases in all (default {cases:,})")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other cases (default 0)")
    parser.add_argument("--out", type=Path, help="JSON file with counts and findings; a stopped trial goes on from it")
    parser.add_argument("--keep", type=Path, help="folder for what found something, to look at and to try again")
    return parser


def finish(book: Book) -> int:
    """Print the totals; 1 if anything was found."""
    book.write()
    summary = book.summary()
    sys.stderr.write("\n" if sys.stderr.isatty() else "")
    for name, entry in summary["groups"].items():
        outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in entry["outcomes"].items())
        sys.stdout.write(f"{name:22} {entry['cases']:9,} cases: {outcomes}\n")
        for kind, count in entry["kinds"].items():
            sys.stdout.write(f"    {count:,} x {kind}\n")
    found = summary["findings"]
    sys.stdout.write(f"{summary['cases']:,} cases in {summary['seconds']:,.0f} s, {found:,} findings\n")
    return 1 if found else 0
