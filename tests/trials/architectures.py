"""Sparsify random architectures with random methods: totals exact, bake exact, states whole, the engine agrees."""

from __future__ import annotations

import math
import os
import random
import sys
import tempfile
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
import torch.nn.functional as F
import trial_parts  # noqa: F401 - first: one thread
from conduct import Book, finish, options, run_block, say, told
from random_networks import FAMILIES, Drawn
from torch import Tensor, nn

from softprune import Budget, Params, Sparsity, sparsify
from softprune.budget.profiler import prunable_tensors
from softprune.core.sparsifier import Sparsifier
from softprune.deploy.engine.inference import load
from softprune.deploy.export import export
from softprune.methods import from_config, method_names
from softprune.methods.base import Method, method_class
from softprune.testing.trial import evaluating, living, same

OUTCOMES = ("agreed", "no engine", "not finite", "not sparsified", "wrong", "unexpected", "memory")
STEPS = 8
BATCH = 4
PATIENCE = 60.0
MEMORY = 4 << 30
BLOCK = 10
TOLERANCE = 1e-3
ROUNDED = ("attention", "recurrent")
# Settings for so short a training.
SHORT = {"dsr": {"threshold": 0.05}, "acdc": {"phases": 1}, "imp": {"rounds": 2}, "vd": {"kl": 0.5}}

EPILOG = """
A case draws a network (mlp, tied weights, cnn, residual, conv1d, attention, recurrent; odd sizes, groups, paddings,
norms and activations by chance), a method, and a goal, a budget or neither. Eight steps later: the total is exact
(within one weight a tensor where a method moves masks), a saved and loaded copy computes the same bits, so does the
baked network, also from its state dict in a fresh one, and the exported file agrees with torch in the engine.

  python tests/trials/architectures.py --cases 1000 --out benchmarks/results/trials/architectures.json
  python tests/trials/architectures.py --only cnn --first 42 --cases 1          # one case again

Outcomes: agreed; no engine (export refuses, with a ValueError that names the operation); not sparsified (refused with
a ValueError: the method, the goal and the network do not go together); not finite (training diverged, all else held).
wrong, unexpected, memory, crash and hang are findings. The same command goes on where a stopped one was.
"""


class WrongError(Exception):
    """Something does not hold."""


def drawn_method(dice: random.Random) -> Method:
    """A method of ours, with a short interval between masks if it has one."""
    names = [name for name in method_names() if method_class(name).__module__.startswith("softprune.")]
    name = dice.choice(names)
    method = from_config({"method": name, **SHORT.get(name, {})})
    timed = any(field.name == "every" for field in fields(method))  # type: ignore[arg-type]
    return replace(method, every=2) if timed else method  # type: ignore[type-var,call-arg]


def drawn_total(dice: random.Random, method: Method, model: nn.Module) -> dict[str, Any]:
    """A goal, a budget, or neither, as the method takes it; now and then one that it must refuse."""
    parameters = {id(t.parameter): t for t in reversed(list(prunable_tensors(model)))}
    tensors = list(parameters.values())  # tied ones once, by their first name
    weights = sum(t.parameter.numel() for t in tensors)
    kind = dice.choice(method.accepts if dice.random() < 0.95 else ("none", "goal", "budget"))
    if kind == "budget":
        return {"budget": Budget({t.name: dice.choice((0.2, 0.5, 0.9, 1.0)) for t in tensors})}
    if kind == "none":
        return {}
    few = Params(dice.randint(min(weights, 2 * len(tensors)), weights))
    return {"goal": dice.choice((few, Sparsity(dice.choice((0.1, 0.5, 0.8, 0.95)))))}


def network(family: str, seed: int, number: int) -> tuple[Drawn, random.Random]:
    """The network of a case, the same at every call, and the dice behind it."""
    dice = random.Random(f"{seed}-{family}-{number}")
    torch.manual_seed(dice.randrange(1 << 30))
    return FAMILIES[family][0](dice), dice


class Case:
    """One network with one method, trained for a few steps."""

    def __init__(self, family: str, seed: int, number: int) -> None:
        self._family = family
        self.drawn, dice = network(family, seed, number)
        self._fresh = lambda: network(family, seed, number)[0].model
        self.method = drawn_method(dice)
        self.total = drawn_total(dice, self.method, self.drawn.model)
        self._rate = dice.choice((0.01, 0.05))
        self.probe = torch.randn(3, *self.drawn.shape)

    def run(self, folder: Path) -> str:
        """All checks in turn; how far the network comes."""
        model = self.drawn.model
        keys = list(model.state_dict())
        try:
            sparsifier = sparsify(model, self.method, **self.total)
            self._train(sparsifier)
        except ValueError:
            return "not sparsified"
        self._check_total(sparsifier)
        managed = self._output(model)
        self._check_saved(sparsifier, managed, folder / "saved")
        with evaluating(model):
            weights = {t.name: t.effective.detach().clone() for t in sparsifier.targets}
        baked = sparsifier.bake()
        held = baked.state_dict()
        if wrong := [name for name, weight in weights.items() if not same(held[name], weight)]:
            raise WrongError(f"bake: other weights than the managed ones in {wrong[0]}")
        self._require_same(self._output(baked), managed, "bake: the baked network")
        if list(baked.state_dict()) != keys:
            raise WrongError("bake: the baked network has other keys")
        again = self._fresh()
        again.load_state_dict(baked.state_dict())
        self._require_same(self._output(again), managed, "state dict: a fresh network with the baked weights")
        if not torch.isfinite(managed).all():
            return "not finite"
        return self._check_engine(baked.eval(), managed, folder / "model.spx")

    def _require_same(self, found: Tensor, managed: Tensor, what: str) -> None:
        """Bit for bit. For recurrence and attention torch has other kernels for weights that require gradients, which
        those of a managed network do not while it is evaluated: there the last bit may differ."""
        if same(found, managed):
            return
        apart = float((found - managed).abs().max() / managed.abs().max().clamp(min=1e-6))
        if self._family not in ROUNDED or not apart < 1e-5:
            raise WrongError(f"{what} computes something else, by {apart:.3g} of the largest number")

    def _train(self, sparsifier: Sparsifier) -> None:
        model = sparsifier.model.train()
        optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=1e-4), lr=self._rate, momentum=0.9)
        sparsifier.attach(optimizer, total_steps=STEPS)
        for step in range(STEPS):
            torch.manual_seed(step)
            x, y = torch.randn(BATCH, *self.drawn.shape), torch.randint(0, 5, (BATCH,))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    def _output(self, model: nn.Module) -> Tensor:
        with evaluating(model), torch.no_grad():
            return model(self.probe)

    def _check_total(self, sparsifier: Sparsifier) -> None:
        with evaluating(sparsifier.model):
            sizes = {t.name: t.raw.numel() for t in sparsifier.targets}
            kept = {
                t.name: int(living(t).sum() if self.method.moves_masks else torch.count_nonzero(t.effective))
                for t in sparsifier.targets
            }
        goal, slack = self.total.get("goal"), 0 if self.method.role == "learned" else len(sizes)
        if goal is not None:
            wanted = goal.count if isinstance(goal, Params) else goal.kept(sum(sizes.values()))
        elif "budget" in self.total:
            wanted = sum(round(self.total["budget"][name] * size) for name, size in sizes.items())
        else:
            return
        if abs(sum(kept.values()) - wanted) > slack:
            raise WrongError(f"total: {sum(kept.values())} of {sum(sizes.values())} weights left, not {wanted}")

    def _check_saved(self, sparsifier: Sparsifier, managed: Tensor, folder: Path) -> None:
        sparsifier.save(folder)
        other = sparsify(self._fresh(), self.method, **self.total)
        other.load(folder)
        if not same(self._output(other.model), managed):
            raise WrongError("save: a loaded copy computes something else")

    def _check_engine(self, model: nn.Module, managed: Tensor, path: Path) -> str:
        path.unlink(missing_ok=True)
        try:
            export(model, path, example=self.probe[:1])
        except ValueError as error:
            if path.exists():
                raise WrongError("export: refused, and left a file") from error
            # An operation is named as torch calls it, a layer by its kind.
            if not any(word in str(error) for word in ("aten", "operation", "not in the format", "cannot")):
                raise WrongError(f"export: refused without naming an operation: {error}") from error
            return "no engine"
        engine = load(path, threads=1, tune=False)
        for batch in (1, 3):
            wanted = self._output_of(model, batch)
            found = np.asarray(engine(self.probe[:batch].numpy()))
            if found.shape != wanted.shape:
                raise WrongError(f"engine: shape {found.shape}, not {wanted.shape}")
            apart = np.abs(found - wanted).max() / max(1.0, float(np.abs(wanted).max()))
            if not apart < TOLERANCE:
                raise WrongError(f"engine: differs by {apart:.3g} of the largest number")
        return "agreed"

    def _output_of(self, model: nn.Module, batch: int) -> Any:
        with evaluating(model), torch.no_grad():
            return model(self.probe[:batch]).numpy()


def attempt(family: str, seed: int, folder: Path) -> Any:
    """What runs a case of a family."""
    folder.mkdir(parents=True, exist_ok=True)

    def run(number: int) -> tuple[str, dict[str, Any] | None]:
        words = ""
        try:
            case = Case(family, seed, number)
            words = f"{case.method} {case.total or ''} on {_shown(case.drawn)}"[:1500]
            return case.run(folder), None
        except WrongError as error:
            return "wrong", {"what": str(error), "at": family, "case of": words}
        except Exception as error:
            outcome = "memory" if isinstance(error, MemoryError) else "unexpected"
            return outcome, {**told(error), "case of": words}

    return run


def _shown(drawn: Drawn) -> str:
    return " ".join(str(drawn.model).split()) + f" for {drawn.shape}"


def main() -> int:
    parser = options(__doc__.splitlines()[0], cases=1000, epilog=EPILOG)
    parser.add_argument("--only", action="append", choices=tuple(FAMILIES), help="a family; may be given several times")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each family")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = {name: share for name, (_, share) in FAMILIES.items() if not given.only or name in given.only}
    book = Book(given.out, seed=given.seed)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as place:
        warm_up(Path(place))
        try:
            for name, share in wanted.items():
                stop = given.first + math.ceil(given.cases * share / sum(wanted.values()))
                first, run = max(given.first, book.done(name)), attempt(name, given.seed, Path(place) / name)
                while first < stop:
                    block = run_block(
                        *(run, first, min(stop, first + BLOCK)),
                        outcomes=OUTCOMES, scratch=Path(place) / name, seconds=PATIENCE, memory=MEMORY,
                    )  # fmt: skip
                    first = block.reached
                    book.add(name, block)
                    say(f"{name}: {first} of {stop}; {book.cases:,} in all, {book.findings:,} findings")
        except KeyboardInterrupt:
            say("stopped; the same command goes on from here")
    return finish(book)


def warm_up(folder: Path) -> None:
    """Import here what a case imports when it runs, so that a child costs a fork."""
    export(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), folder / "warm.spx", example=torch.zeros(1, 3))


if __name__ == "__main__":
    raise SystemExit(main())
