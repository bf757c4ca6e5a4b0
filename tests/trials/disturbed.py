"""What is disturbed, and what must be so afterwards: files whole or absent, and the same result in the end."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
import trial_parts
from disturbance import Disturbance, Ending, run

from softprune import STR, sparsify
from softprune.budget.budget import Budget
from softprune.cli import main
from softprune.core.state_file import read_state, read_tensors
from softprune.deploy.engine.inference import load
from softprune.deploy.export import from_pretrained, load_compressed
from softprune.train.config import RunConfig
from softprune.train.config.keys import write_yaml


class WrongError(Exception):
    """Something is not as it must be after a disturbance."""


def command(*words: object) -> Any:
    """The command line, as something to run in a child; it may import the network that the configurations name."""

    def action() -> None:
        sys.argv = ["softprune", *map(str, words), "--trust"]
        main()

    return action


class Task(ABC):
    """Something that writes files.

    Args:
        name: in the results.
        share: of all cases, relative to the others.
    """

    def __init__(self, name: str, share: float) -> None:
        self.name, self.share = name, share

    @abstractmethod
    def prepare(self, folder: Path) -> None:
        """Make what must be there before; not disturbed."""

    @abstractmethod
    def action(self, folder: Path) -> Any:
        """What is disturbed: something to call in a child."""

    @abstractmethod
    def check(self, folder: Path, whole: Path, ending: Ending, disturbance: Disturbance) -> None:
        """Look at what is left, go on, and compare with the undisturbed folder ``whole``."""


def check_words(ending: Ending, disturbance: Disturbance) -> None:
    """A command that failed says one line, and no traceback."""
    if ending.code == -99:
        raise WrongError("it hangs")
    if ending.code == 0 or (disturbance.kills and ending.code < 0):
        return
    lines = [line for line in ending.said.splitlines() if line.strip() and not line.startswith("[I ")]
    if "Traceback" in ending.said:
        raise WrongError(f"a traceback: {lines[-1][:200]}; {_place(lines)}")
    if ending.code != 1 or len(lines) != 1 or not lines[0].startswith("error: "):
        raise WrongError(f"exit code {ending.code} and {len(lines)} lines: {' / '.join(lines)[:200]}")


def _place(lines: list[str]) -> str:
    ours = [line.strip() for line in lines if "/softprune/" in line and "File" in line]
    return ours[-1].rpartition("/softprune/")[2] if ours else ""


def succeed(ending: Ending, what: str) -> None:
    if ending.code != 0:
        raise WrongError(f"{what} failed with code {ending.code}: {ending.said.strip()[-300:]}")


def check_names(folder: Path, whole: Path) -> None:
    """The same files as an undisturbed run leaves, and no other."""
    mine, wanted = ({str(p.relative_to(top)) for p in top.rglob("*")} for top in (folder, whole))
    if mine != wanted:
        raise WrongError(f"left over {sorted(mine - wanted)}, missing {sorted(wanted - mine)}")


def check_whole(folder: Path) -> None:
    """Every file with its own name can be read to its end."""
    for path in sorted(folder.rglob("*")):
        if path.name.startswith(".") or not path.is_file():
            continue
        try:
            _read(path)
        except Exception as error:
            raise WrongError(f"{path.name} is not whole: {type(error).__name__}: {error}") from error


def _read(path: Path) -> None:
    if path.name == "budget.json":
        Budget.load(path)
    elif path.name == "config.yaml":
        RunConfig.load(path, trust=True)
    elif path.suffix == ".json":
        json.loads(path.read_text())
    elif path.suffix == ".safetensors":
        (read_state if path.parent.name == "checkpoints" else read_tensors)(path)
    elif path.name == "metrics.jsonl":
        # The last line may be cut off; those before it may not.
        for line in path.read_text().split("\n")[:-1]:
            json.loads(line)


def same_run(folder: Path, whole: Path) -> None:
    """Bit for bit the weights, the state of the optimizer, what was logged and measured."""
    mine, wanted = (sorted((top / "checkpoints").glob("step-*")) for top in (folder, whole))
    if [path.name for path in mine] != [path.name for path in wanted]:
        raise WrongError(f"other checkpoints: {[path.name for path in mine]}")
    (a, facts), (b, expected) = read_state(mine[-1]), read_state(wanted[-1])
    if a.keys() != b.keys() or any(not torch.equal(a[name], b[name]) for name in a):
        raise WrongError("other weights than those of an undisturbed run")
    for said in (facts, expected):
        said["progress"].pop("seconds")
    if facts != expected:
        raise WrongError("another state than that of an undisturbed run")
    for name in ("layers.csv", "budget.json"):
        if (folder / name).read_bytes() != (whole / name).read_bytes():
            raise WrongError(f"another {name} than that of an undisturbed run")
    if _metrics(folder) != _metrics(whole):
        raise WrongError("other metrics than those of an undisturbed run")


def _metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


class Training(Task):
    """A run; ``again`` disturbs its continuation, too."""

    def action(self, folder: Path) -> Any:
        return command("train", folder / "trial.yaml", "--out", folder / "run", "--quiet")

    def prepare(self, folder: Path) -> None:
        (folder / "trial.yaml").write_text(write_yaml(trial_parts.SHORT))

    def check(self, folder: Path, whole: Path, ending: Ending, disturbance: Disturbance) -> None:
        check_words(ending, disturbance)
        if (folder / "run").exists():
            check_whole(folder / "run")
        if (folder / "run" / "config.yaml").exists():
            succeed(run(command("train", "--resume", folder / "run", "--quiet"), folder), "to resume")
        else:
            succeed(run(self.action(folder), folder), "to begin again")
        check_names(folder / "run", whole / "run")
        same_run(folder / "run", whole / "run")


class Resuming(Training):
    """A run that was stopped half way and is continued: the continuation is disturbed."""

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        half = run(super().action(folder), folder, Disturbance("call", 48))
        if half.code == 0 or not list((folder / "run" / "checkpoints").glob("step-*")):
            raise RuntimeError(f"the run was not stopped half way: code {half.code}, {half.said[-300:]}")

    def action(self, folder: Path) -> Any:
        return command("train", "--resume", folder / "run", "--quiet")


class Written(Task):
    """A command that makes one file or folder of a finished run.

    Args:
        words: the command, in which RUN and OUT stand for places.
        target: name of what it writes.
    """

    def __init__(self, name: str, share: float, words: tuple[str, ...], target: str, run_folder: Path) -> None:
        super().__init__(name, share)
        self._words, self._target, self._run = words, target, run_folder

    def action(self, folder: Path) -> Any:
        places = {"RUN": self._run, "OUT": folder / "out" / self._target}
        return command(*(places.get(word, word) for word in self._words))

    def prepare(self, folder: Path) -> None:
        (folder / "out").mkdir(exist_ok=True)

    def check(self, folder: Path, whole: Path, ending: Ending, disturbance: Disturbance) -> None:
        check_words(ending, disturbance)
        if not disturbance.kills:
            self._check_left(folder / "out", whole / "out")
        check_whole(folder / "out")
        succeed(run(self.action(folder), folder), "the same command again")
        mine, wanted = folder / "out" / self._target, whole / "out" / self._target
        for path in sorted(wanted.rglob("*")) if wanted.is_dir() else [wanted]:
            if path.is_file() and (mine / path.relative_to(wanted)).read_bytes() != path.read_bytes():
                raise WrongError(f"{path.name} has other bytes than without a disturbance")
        self._open(mine)

    def _check_left(self, out: Path, whole: Path) -> None:
        """After a fault, in contrast to a kill, there is time to clean up."""
        hidden = [p.name for p in out.rglob("*") if not (whole / p.relative_to(out)).exists()] if out.exists() else []
        if hidden:
            raise WrongError(f"left over {hidden}")

    def _open(self, path: Path) -> None:
        if path.suffix == ".spx":
            load(path, tune=False)
        elif path.name.endswith("compressed.safetensors"):
            load_compressed(path)
        elif path.is_dir():
            from_pretrained(path, make=trial_parts.small)


class Saving(Task):
    """Sparsifier.save over an older save."""

    def prepare(self, folder: Path) -> None:
        self._made(0).save(folder / "saved")

    def action(self, folder: Path) -> Any:
        def save() -> None:
            try:
                self._made(1).save(folder / "saved")
            except OSError as error:  # as the command line would say it
                sys.stderr.write(f"error: {error}\n")
                raise SystemExit(1) from None

        return save

    def check(self, folder: Path, whole: Path, ending: Ending, disturbance: Disturbance) -> None:
        check_words(ending, disturbance)
        check_whole(folder / "saved")
        sparsifier = self._made(2)
        sparsifier.load(folder / "saved")
        held = [
            all(torch.equal(a, b) for a, b in zip(sparsifier.model.parameters(), old.model.parameters(), strict=True))
            for old in (self._made(0), self._made(1))
        ]
        if held.count(True) != 1:
            raise WrongError("what is loaded is neither the old save nor the new one")
        if not disturbance.kills:
            check_names(folder / "saved", whole / "saved")
        succeed(run(self.action(folder), folder), "to save again")

    def _made(self, seed: int) -> Any:
        torch.manual_seed(seed)
        return sparsify(trial_parts.small(), STR(s_init=-5.0))


class Sweeping(Task):
    """A sweep of two trials."""

    def prepare(self, folder: Path) -> None:
        (folder / "base.yaml").write_text(write_yaml({**trial_parts.SHORT, "epochs": 1}))
        keys = {"name": "trial", "base": "base.yaml", "sampler": "grid", "search": {"optimizer.lr": [0.05, 0.1]}}
        (folder / "sweep.yaml").write_text(write_yaml({**keys, "grace_seconds": 2}))

    def action(self, folder: Path) -> Any:
        return command("sweep", folder / "sweep.yaml", "--out", folder / "sweep", "--quiet")

    def check(self, folder: Path, whole: Path, ending: Ending, disturbance: Disturbance) -> None:
        check_words(ending, disturbance)
        for trial in (folder / "sweep" / "trials").glob("*"):
            check_whole(trial)
        succeed(run(self.action(folder), folder), "the sweep again")
        for trial in (whole / "sweep" / "trials").glob("*"):
            same_run(folder / "sweep" / "trials" / trial.name, trial)
        # The database is that of another history; the numbers are not.
        for name in ("best.json",):
            if (
                json.loads((folder / "sweep" / name).read_text())["best"]
                != json.loads((whole / "sweep" / name).read_text())["best"]
            ):
                raise WrongError("another best trial than without a disturbance")


def warm_up(action: Any) -> None:
    """Run a command here; it must succeed."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            action()
        except SystemExit as error:
            if error.code:
                raise RuntimeError(f"an undisturbed command fails: {error.code}") from error


def all_tasks(folder: Path) -> list[Task]:
    """Every task; those that need a finished run share one that is made below ``folder``."""
    training = Training("train", 40)
    made = folder / "finished"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    training.prepare(made)
    # In this process, so that every child finds imported what a command imports when it runs.
    warm_up(training.action(made))
    source = made / "run"
    warm_up(command("export", source, "-o", made / "model.spx"))
    tasks: list[Task] = [training, Resuming("resume", 20), Saving("Sparsifier.save", 15), Sweeping("sweep", 3)]
    tasks.append(Written("bake", 10, ("bake", "RUN", "-o", "OUT"), "model.safetensors", source))
    for form, target in (
        ("spx", "model.spx"),
        ("compressed", "model.compressed.safetensors"),
        ("safetensors", "model.safetensors"),
        ("hub", "hub"),
    ):
        words = ("export", "RUN", "-f", form, "-o", "OUT", "--force")
        tasks.append(Written(f"export {form}", 4, words, target, source))
    return tasks
