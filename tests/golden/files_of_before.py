"""The files that an earlier release has written, how they were made, and what they gave then.

They stay as they are: a release that cannot read them has broken the work of its users. `tools/make_golden.py` wrote
them, and writes only what is missing.
"""

import json
from pathlib import Path

import numpy as np
import torch
from frozen_networks import KEPT, exact_inputs, exact_network, images, kept_sparsifier, train
from frozen_text import DATA
from safetensors.torch import save_file

from softprune import export
from softprune.train.config import RunConfig
from softprune.train.observer import Silent, StopRun
from softprune.train.run import train as train_run

BEFORE = DATA / "of_before"
STEPS_DONE = 7
# What each run was made of, and the step after which it was stopped. 256 samples in batches of 64: 4 steps an epoch.
RUNS = {
    # The network of the recipe; plain SGD keeps the file small, and it stops before the first epoch ends.
    "run_digits": (["epochs=2", "optimizer.momentum=0"], 3),
    # All that a checkpoint can hold, of a network that is named by its code; it stops within the second epoch.
    "run_little": (["epochs=3", "model=frozen_networks:little_cnn", "ema=0.9"], 6),
    # The paper's mode, whose thresholds are parameters with a decay of their own.
    "run_paper": (["epochs=3", "model=frozen_networks:little_cnn", "propose.push=2"], 6),
}
RECIPES = {"run_paper": "digits/str"}
EPOCHS = {"run_digits": 2, "run_little": 3, "run_paper": 3}
STEPS_PER_EPOCH = 4
SHORT = ["data.subset=256", "threads=1", "log.every_steps=1", "checkpoint.keep=1"]


class StopAfter(Silent):
    """Stops a run after a step, as a signal would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, progress):
        if progress.step == self.step:
            raise StopRun("enough")


def write_run(name: str, folder: Path) -> None:
    """A run folder that was left in the middle."""
    changes, step = RUNS[name]
    config = RunConfig.load(RECIPES.get(name, "digits/str-goal"), [*SHORT, *changes])
    train_run(config, folder, observer=StopAfter(step))
    (folder / ".lock").unlink()
    # It says on which machine it was, which is nobody's business.
    environment = folder / "environment.json"
    said = json.loads(environment.read_text())
    said |= {"platform": "Linux", "command": ["softprune", "train"], "git": None, "cores": 2}
    environment.write_text(json.dumps(said, indent=2) + "\n")


def write_checkpoint(name: str, folder: Path) -> None:
    """A sparsifier after a few steps of training, and beside it what its model computed and how much it kept."""
    sparsifier, optimizer = kept_sparsifier(name)
    train(sparsifier, optimizer, steps=STEPS_DONE)
    sparsifier.save(folder)
    sparsifier.model.eval()
    with torch.no_grad():
        expected = {"outputs": sparsifier.model(images(4, seed=9))}
    expected |= {f"effective.{t.name}": t.effective.clone() for t in sparsifier.targets}
    expected |= {f"momentum.{n}": optimizer.state[p]["momentum_buffer"] for n, p in _named(sparsifier, optimizer)}
    save_file(expected, folder / "expected.safetensors")


def load_momentum(sparsifier, optimizer, expected) -> None:
    """The optimizer as it was when the checkpoint was written."""
    for name, parameter in _named(sparsifier, optimizer):
        optimizer.state[parameter]["momentum_buffer"] = expected[f"momentum.{name}"].clone()


def _named(sparsifier, optimizer):
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [(name, p) for name, p in sparsifier.model.named_parameters() if id(p) in held]


def write_spx(folder: Path) -> None:
    """A network for the engine, and what it gives: exact numbers, so the same on every processor."""
    folder.mkdir(parents=True)
    model = exact_network()
    export(model, folder / "network.spx", example=exact_inputs()[:1])
    with torch.no_grad():
        np.save(folder / "outputs.npy", model(exact_inputs()).numpy())


def write_missing() -> list[str]:
    """Write what is not there; the names of it."""
    makers = {name: (write_run, name) for name in RUNS} | {name: (write_checkpoint, name) for name in KEPT}
    made = [name for name in (*makers, "spx") if not (BEFORE / name).exists()]
    BEFORE.mkdir(parents=True, exist_ok=True)
    for name in made:
        if name == "spx":
            write_spx(BEFORE / name)
        else:
            write, argument = makers[name]
            write(argument, BEFORE / name)
    return made
