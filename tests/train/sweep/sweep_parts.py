"""Sweeps of a second per trial, and workers in processes of their own."""

import csv
import json
import multiprocessing
import os
import signal
import sqlite3
import time
from contextlib import closing

import torch
from torch import nn

from softprune.core.state_file import read_state
from softprune.train.config.keys import write_yaml
from softprune.train.run_folder import RunFolder
from softprune.train.sweep.run import run_sweep
from softprune.train.sweep.sweep import Sweep
from softprune.train.sweep.worker import TrialWatcher

SHORT = {"model": "sweep_parts:probe", "epochs": 1, "data.subset": 128, "threads": 1, "propose.push": 2.0}

# A server that has imported everything forks workers that begin at once and share nothing with the tests.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["sweep_parts", "softprune.train.sweep.worker", "sklearn.datasets"])


def probe():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def write_sweep(folder, **keys):
    """A sweep file; `changes` are made on top of what keeps trials short."""
    keys = {"name": "test", "base": "digits/str", "sampler": "grid", **keys}
    short = {key: value for key, value in SHORT.items() if key not in keys["search"]}
    keys["changes"] = {**short, **keys.get("changes", {})}
    path = folder / "sweep.yaml"
    path.write_text(write_yaml({key: value for key, value in keys.items() if value is not None}))
    return path


def work(file, folder, step, act):
    """Be a worker; once, after this step of a trial, do something."""
    torch.set_num_threads(1)
    watch, due = TrialWatcher.on_step, [step]

    def on_step(self, progress):
        watch(self, progress)
        if progress.step in due:
            due.clear()
            act()

    TrialWatcher.on_step = on_step
    run_sweep(Sweep.load(file, trust=True), folder)


class Signal:
    """Send a signal to oneself."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self):
        os.kill(os.getpid(), self.kind)


class Pause:
    """Leave a mark, and wait until it is taken away."""

    def __init__(self, mark):
        self.mark = mark

    def __call__(self):
        self.mark.touch()
        while self.mark.exists():
            time.sleep(0.05)


def put_to_sleep(worker, database):
    """Stop a worker, but not while it writes: asleep, it would hold the database against everyone."""
    with closing(sqlite3.connect(database, timeout=120, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(0.5)  # threads that are on a core just now hear of it within microseconds, others before they run


def wait_for(path):
    """Wait until a file is there, as long as it may take a slow machine."""
    until = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.05)


def read_table(folder):
    with (folder / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_best(folder):
    return json.loads((folder / "best.json").read_text())


def assert_same_run(one, other):
    """Two run folders hold the same run, bit for bit; only the time it took may differ."""
    states = []
    for folder in (one, other):
        tensors, facts = read_state(sorted((folder / "checkpoints").glob("step-*"))[-1])
        result = json.loads((folder / "result.json").read_text())
        rows = RunFolder(folder).metrics()
        for timed in (facts["progress"], result, *rows):
            del timed["seconds"]
        states.append((tensors, facts, result, rows, (folder / "layers.csv").read_text()))
    (tensors, *rest), (other_tensors, *other_rest) = states
    assert tensors.keys() == other_tensors.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], other_tensors[name])] == []
    assert rest == other_rest
