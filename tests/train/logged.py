"""Short runs that are logged, and what a logger should have of them: read from the files of the run folder."""

import csv
import json
import math
from functools import partial

import pytest

from softprune.core.state_file import read_state
from softprune.train.config import RunConfig
from softprune.train.observer import Silent
from softprune.train.run import resume, train

# Fifteen steps with a line for every second one; a checkpoint after every fifth.
SHORT = [
    "model=own_parts:linear_probe",
    "model.args={inputs: 64, classes: 10}",
    "epochs=3",
    "data.subset=320",
    "threads=1",
    "log.every_steps=2",
    "propose.push=2",
]


class Crash(Silent):
    """Pulls the plug after a step."""

    def __init__(self, step):
        self._step = step

    def on_step(self, progress):
        if progress.step == self._step:
            raise RuntimeError("pulled the plug")


def config(*changes):
    return RunConfig.load("digits/str", [*SHORT, *changes])


def run_with_crashes(settings, folder, crashes):
    """Train to the end, crashing after these steps on the way; each crash goes back to a checkpoint."""
    go = partial(train, settings, folder)
    for step in crashes:
        with pytest.raises(RuntimeError, match="pulled the plug"):
            go(observer=Crash(step))
        go = partial(resume, folder, trust=True)
    return go()


def expected(folder):
    """Name and step -> value, for all that the run folder has."""
    found = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        group = {"step": "train", "epoch": "epoch"}[row["kind"]]
        for key in row.keys() - {"kind", "epoch", "step"}:
            found[f"{group}/{key}", row["step"]] = row[key]
    with (folder / "layers.csv").open() as file:
        for row in csv.DictReader(file):
            for key in row.keys() - {"name", "epoch", "step"}:
                found[f"{key}/{row['name']}", int(row["step"])] = float(row[key])
    return {where: value for where, value in found.items() if math.isfinite(value)}


def untimed(values):
    """Without the clock, which is not the same when a step is made again."""
    return {where: value for where, value in values.items() if not where[0].endswith("/seconds")}


def random_state(folder):
    """Of all generators at the end of a run; a package that draws from them would change what the run computes."""
    return read_state(sorted((folder / "checkpoints").glob("step-*"))[-1])[1]["random"]
