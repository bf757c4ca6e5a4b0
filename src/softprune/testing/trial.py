"""Small trainings of a method: the networks and their data, one trial in a setting, and its history."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from softprune.budget.budget import Budget
from softprune.budget.profiler import prunable_tensors
from softprune.core.collapse import CollapseWarning
from softprune.core.sparsify import sparsify
from softprune.forecast.forecast import ForecastWarning
from softprune.goals.goal import Sparsity
from softprune.methods.base import Method, Total
from softprune.methods.transforms import Target

BATCH, CLASSES = 8, 4
STEPS = 30
# Steps between two masks, where a method says how many: a short trial then has several.
EVERY = 5
GOAL = Sparsity(0.8)


@dataclass(frozen=True)
class TrialNetwork:
    """How to build a network, and the shape of one of its inputs."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def made(self) -> nn.Module:
        """The same weights every time; the random state of the caller is left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build()

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and classes that can be learnt: the class is the largest of the first few numbers."""
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(BATCH, *self.shape, generator=generator)
        return x, x.flatten(1)[:, :CLASSES].argmax(1)


class Cell(nn.Module):
    """A recurrent cell that walks over a short sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(5, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 8)
        for moment in x.unbind(1):
            state = self.cell(moment, state)
        out: Tensor = self.head(state)
        return out


def _dense() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, CLASSES),
    )  # fmt: skip


NETWORKS = (
    TrialNetwork("mlp", _dense, (12,)),
    TrialNetwork("cnn", _convolutional, (3, 6, 6)),
    TrialNetwork("cell", Cell, (3, 5)),
)
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda groups: SGD(groups, lr=0.1, momentum=0.9),
    "AdamW": lambda groups: AdamW(groups, lr=0.01),
}


@dataclass(frozen=True)
class Setting:
    """The network, optimizer and kind of total that a method is tried with."""

    network: TrialNetwork
    optimizer: str
    total: Total

    def __str__(self) -> str:
        given = {"none": "no total", "goal": f"goal={GOAL}", "budget": "a budget"}[self.total]
        return f"the {self.network.name} with {self.optimizer} and {given}"


def has_interval(method: Method) -> bool:
    return any(field.name == "every" for field in fields(method))  # type: ignore[arg-type]


def hastened(method: Method) -> Method:
    """The same method with a short interval between its masks, if it has one."""
    return replace(method, every=EVERY) if has_interval(method) else method  # type: ignore[type-var,call-arg]


def densities(model: nn.Module) -> dict[str, float]:
    """A budget with a different density for every tensor."""
    names = [t.name for t in prunable_tensors(model)]
    return {name: 0.15 + 0.1 * (place % 3) for place, name in enumerate(names)}


def living(target: Target) -> Tensor:
    """The weights in use, as bools: by the mask where there is one, since a weight that has just joined is still 0."""
    mask = target.transform._buffers.get("mask")
    return (target.effective != 0 if mask is None else mask).detach().clone()


class Trial:
    """A training that can be stopped, saved and continued."""

    def __init__(self, method: Method, setting: Setting, *, follow: bool = True) -> None:
        self.setting, self._follow = setting, follow
        self.model = setting.network.made()
        total: dict[str, Any] = {}
        if setting.total != "none":
            total = {"goal": GOAL} if setting.total == "goal" else {"budget": Budget(densities(self.model))}
        else:
            # Zeros for methods without a total, some of which only keep those they find.
            with torch.no_grad():
                for found in prunable_tensors(self.model):
                    found.parameter.view(-1)[::3] = 0.0
        self.keys = list(self.model.state_dict())
        self.classes = [type(module) for module in self.model.modules()]
        self.dense = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.dense_output = self.output()
        self.sparsifier = sparsify(self.model, method, **total)
        self.run: Callable[[Tensor], Tensor] = self.model
        self.optimizer = OPTIMIZERS[setting.optimizer](self.sparsifier.param_groups(weight_decay=1e-3))
        with quiet():
            self.sparsifier.attach(self.optimizer, total_steps=STEPS, follow=follow)

    def train(self, steps: int = 1) -> None:
        """Go on from the step that was reached."""
        for _ in range(steps):
            self.train_on(self.sparsifier.step)

    def train_on(self, number: int) -> None:
        """One step on the batch of this number."""
        x, y = self.setting.network.batch(number)
        # What a method draws while it computes is the same in every run.
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            self.optimizer.zero_grad()
            F.cross_entropy(self.run(x), y).backward()
            if not self._follow:
                self.sparsifier.before_step()
            self.optimizer.step()
            if not self._follow:
                self.sparsifier.after_step()

    def output(self) -> Tensor:
        return evaluated(self.model, self.setting.network)

    def living(self) -> dict[str, Tensor]:
        with evaluating(self.model):
            return {target.name: living(target) for target in self.sparsifier.targets}

    def effective(self) -> dict[str, Tensor]:
        with evaluating(self.model):
            return {target.name: target.effective.detach().clone() for target in self.sparsifier.targets}

    def state(self) -> dict[str, Tensor]:
        return {key: t.detach().clone() for key, t in self.model.state_dict().items()}


def evaluated(model: nn.Module, network: TrialNetwork) -> Tensor:
    """The output of a model on inputs that it is not trained on."""
    with evaluating(model), torch.no_grad():
        out: Tensor = model(network.batch(10_000)[0])
    return out


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, where what a network uses is not drawn at random."""
    training = model.training
    model.eval()
    yield
    model.train(training)


class quiet(warnings.catch_warnings):  # noqa: N801
    """No warnings about forecasts and collapse, which trainings as short and small as these cause."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore", ForecastWarning)
        warnings.simplefilter("ignore", CollapseWarning)
        return entered


# Whether masks may change in a step, given the step (counted from 1) and the number of steps.
Timetable = Callable[[int, int], bool]


class UnmetError(AssertionError):
    """Tells what was expected and what was seen."""


def require(holds: object, expected: str, seen: object) -> None:
    if not holds:
        raise UnmetError(f"expected {expected}; saw {seen}")


@dataclass(frozen=True)
class Snapshot:
    """The masks and weights of a network after a number of steps, by tensor."""

    step: int
    living: dict[str, Tensor]
    effective: dict[str, Tensor]

    @property
    def counts(self) -> dict[str, int]:
        return {name: int(mask.sum()) for name, mask in self.living.items()}


@dataclass(eq=False)
class Case:
    """What the checks of a method are given: the method in a setting, and the history of one whole training."""

    method: Method
    setting: Setting
    timetable: Timetable | None = None

    def trial(self, *, follow: bool = True) -> Trial:
        return Trial(self.method, self.setting, follow=follow)

    @cached_property
    def _watched(self) -> tuple[list[Snapshot], Trial]:
        trial = self.trial()
        frames = [Snapshot(0, trial.living(), trial.effective())]
        for step in range(1, STEPS + 1):
            trial.train()
            frames.append(Snapshot(step, trial.living(), trial.effective()))
        return frames, trial

    @property
    def frames(self) -> list[Snapshot]:
        """A whole training, from before its first step."""
        return self._watched[0]

    @property
    def finished(self) -> Trial:
        """The trial that made the frames; only the last check may change it."""
        return self._watched[1]


def unequal(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """The names of tensors that are not the same bit for bit."""
    return sorted(n for n in {*one, *other} if n not in one or n not in other or not same(one[n], other[n]))


def same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, with NaN equal to itself."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
