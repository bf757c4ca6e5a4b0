"""What happens to a model around its training: it is saved, copied, run again, baked."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from softprune.methods.base import Method
from softprune.methods.registry import from_config, to_config
from softprune.testing.case import Case, require, same, unequal
from softprune.testing.trial import STEPS, evaluated


def training_resumes(case: Case) -> None:
    """Half a training, saved, loaded in a fresh model, and the other half: the same bits as in one go."""
    first, second = case.trial(), case.trial()
    first.train(STEPS // 2)
    with TemporaryDirectory() as folder:
        first.sparsifier.save(Path(folder))
        second.sparsifier.load(Path(folder))
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.train(STEPS - STEPS // 2)
    differ = unequal(second.state(), case.finished.state())
    require(not differ, "the bits of a training that was not interrupted", f"others in {differ}")


def bake_is_exact(case: Case) -> None:
    """The plain model computes what the managed one did, with the classes and the keys that it had.

    This ends the trial that other checks look at, so it comes last.
    """
    trial = case.finished
    managed = trial.output()
    baked = trial.sparsifier.bake()
    require(baked is trial.model, "the same model back", "another object")
    require(same(trial.output(), managed), "the output of the managed network, bit for bit", "another output")
    require(list(baked.state_dict()) == trial.keys, f"the keys {trial.keys}", list(baked.state_dict()))
    classes = [type(module) for module in baked.modules()]
    require(classes == trial.classes, f"the classes {trial.classes}", classes)


def runs_repeat(case: Case) -> None:
    """Two equal trainings end with equal bits; after detach() nothing of the method moves any more."""
    trial, half = case.trial(), STEPS // 2
    trial.train(half)
    differ = unequal(trial.effective(), case.frames[half].effective)
    require(not differ, f"the same bits after {half} steps of two equal trainings", f"others in {differ}")
    trial.sparsifier.detach()
    before = {t.name: {k: b.clone() for k, b in t.transform.named_buffers()} for t in trial.sparsifier.targets}
    memories = copy.deepcopy(trial.sparsifier.variants.memories)
    for number in range(half, half + 6):
        trial.train_on(number)
    for target in trial.sparsifier.targets:
        moved = unequal(before[target.name], dict(target.transform.named_buffers()))
        require(not moved, f"the transform of {target.name} to rest after detach()", f"changes in {moved}")
    require(trial.sparsifier.step == half, f"step {half} after detach()", trial.sparsifier.step)
    require(trial.sparsifier.variants.memories == memories, "no change in the memory after detach()", "one")


def explicit_calls_do_as_hooks(case: Case) -> None:
    """A loop that says itself when a step begins and ends gets the bits of one that is followed by hooks."""
    trial, half = case.trial(follow=False), STEPS // 2
    trial.train(half)
    differ = unequal(trial.effective(), case.frames[half].effective)
    require(not differ, f"the bits of {half} steps that hooks followed", f"others in {differ}")


def copies_are_independent(case: Case) -> None:
    """A deep copy computes the same, shares no memory, and trains without the original."""
    original, network = case.finished.model, case.setting.network
    other = copy.deepcopy(original)
    require(same(evaluated(other, network), case.finished.output()), "a copy that computes the same", "another output")
    shared = {t.data_ptr() for t in original.state_dict().values()} & {
        t.data_ptr() for t in other.state_dict().values() if t.numel()
    }
    require(not shared, "a copy with memory of its own", f"{len(shared)} shared tensors")
    before = case.finished.state()
    _train_plainly(other, case)
    differ = unequal(before, case.finished.state())
    require(not differ, "the original to rest while its copy trains", f"changes in {differ}")


def config_round_trips(method: Method) -> None:
    """The method is plain data: through JSON and back it is equal, and so is its hash."""
    config = json.loads(json.dumps(to_config(method)))
    again = from_config(config)
    require(again == method and hash(again) == hash(method), f"{method} again from {config}", again)


def _train_plainly(model: nn.Module, case: Case) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    for number in range(3):
        x, y = case.setting.network.batch(number)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
