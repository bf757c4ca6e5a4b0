"""Kill commands at random moments and let their files fail: what is left must be whole, and go on as if nothing was."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import trial_parts  # noqa: F401 - first: one thread, and where the helpers of the other tests are
from conduct import Block, Book, finish, options, say
from disturbance import Disturbance, any_disturbance, run
from disturbed import Task, WrongError, all_tasks

EPILOG = """
Each case runs a command in a child that is forked from a process with everything imported, and disturbs it: SIGKILL at
a random moment or at the n-th call that opens, writes, syncs or renames a file; ENOSPC, EIO or EACCES from that call,
once or from then on; or no file may grow beyond some bytes (RLIMIT_FSIZE), which also reaches writers that are no
Python. Afterwards every file is whole or absent; the command goes on (train --resume, the same sweep, the same export)
and ends with bit-equal weights, the same logs and no temporary files; and a command that failed has said one line.

  python tests/trials/kills.py --cases 1000 --out benchmarks/results/trials/kills.json --keep /tmp/kept
  python tests/trials/kills.py --only resume --first 17 --cases 1               # one case again

Outcomes: continued (disturbed, went on), unharmed (succeeded in spite of it), missed (had ended before), finding.
The same command goes on where a stopped one was. Folders that found something are copied to --keep.
"""


class Trial:
    """A task with an undisturbed folder to compare with.

    Args:
        task: what is disturbed.
        folder: for all that the trial writes.
        seed: of the cases.
    """

    def __init__(self, task: Task, folder: Path, *, seed: int) -> None:
        self.task, self._folder, self._seed = task, folder, seed
        self._whole = folder / "whole"
        self._whole.mkdir(parents=True)
        task.prepare(self._whole)
        self._prepared = folder / "prepared"
        shutil.copytree(self._whole, self._prepared)
        self._usual = run(task.action(self._whole), self._whole)
        if self._usual.code != 0:
            raise RuntimeError(f"{task.name} fails by itself: {self._usual.said}")
        self._largest = max(path.stat().st_size for path in self._whole.rglob("*") if path.is_file())

    def disturbance(self, number: int) -> Disturbance:
        """What happens in a case."""
        dice = random.Random(f"{self._seed}-{self.task.name}-{number}")
        usual = self._usual
        return any_disturbance(dice, calls=usual.calls, seconds=usual.seconds, largest=self._largest)

    def case(self, number: int, keep: Path | None = None) -> tuple[str, dict[str, Any] | None]:
        """Run a case; its outcome, and what is wrong."""
        wish = self.disturbance(number)
        # Of the same name in every case: a path may be in a file.
        folder = self._folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._prepared, folder)
        ending = run(self.task.action(folder), folder, wish)
        left = self._folder / "left"
        if keep is not None:
            shutil.rmtree(left, ignore_errors=True)
            shutil.copytree(folder, left)
        try:
            self.task.check(folder, self._whole, ending, wish)
        except WrongError as error:
            if keep is not None:
                shutil.copytree(left, keep / f"{self.task.name.replace(' ', '_')}-{number}", dirs_exist_ok=True)
            kind = re.sub(r"\d+", "N", f"{wish.kind}: {error}")[:160]
            return "finding", {"what": f"{wish.kind}: {error}", "at": str(wish), "kind": kind}
        if ending.code != 0:
            return "continued", None
        reached = wish.kind == "limit" or (wish.kind != "moment" and ending.calls >= wish.at)
        return "unharmed" if reached else "missed", None


def main() -> int:
    parser = options(__doc__.splitlines()[0], cases=1000, epilog=EPILOG)
    parser.add_argument("--only", action="append", help="a task by its name; may be given several times")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each task")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    os.environ |= {"PYTHONWARNINGS": "ignore", "COLUMNS": "200"}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as place:
        tasks = all_tasks(Path(place))
        if given.only:
            if strange := sorted(set(given.only) - {task.name for task in tasks}):
                parser.error(f"no task {strange[0]!r}; there are: {', '.join(task.name for task in tasks)}")
            tasks = [task for task in tasks if task.name in given.only]
        book, whole = Book(given.out, seed=given.seed), sum(task.share for task in tasks)
        try:
            for task in tasks:
                stop = given.first + math.ceil(given.cases * task.share / whole)
                begin = max(given.first, book.done(task.name))
                trial = Trial(task, Path(place) / task.name.replace(" ", "_"), seed=given.seed)
                for number in range(begin, stop):
                    outcome, finding = trial.case(number, given.keep)
                    found = [] if finding is None else [{"case": number, "outcome": outcome, **finding}]
                    book.add(task.name, Block(number + 1, Counter([outcome]), found))
                    say(f"{task.name}: {number + 1} of {stop}; {book.cases:,} in all, {book.findings:,} findings")
        except KeyboardInterrupt:
            say("stopped; the same command goes on from here")
    return finish(book)


if __name__ == "__main__":
    raise SystemExit(main())
