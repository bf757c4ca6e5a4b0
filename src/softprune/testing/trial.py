"""A trial: one method trains one small network for a few steps, the same in every run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from softprune.budget.budget import Budget
from softprune.budget.goals import Sparsity
from softprune.budget.prunable import prunable_tensors
from softprune.core.collapse import CollapseWarning
from softprune.core.forecasting.outlook import ForecastWarning
from softprune.core.sparsify import sparsify
from softprune.methods.base import Method, Target, Total
from softprune.methods.transforms import Masked, SolvedMask
from softprune.testing.network import Network

STEPS = 30
# So many steps between two masks, where a method says how many: a short trial then has several.
EVERY = 5
GOAL = Sparsity(0.8)

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda groups: SGD(groups, lr=0.1, momentum=0.9),
    "AdamW": lambda groups: AdamW(groups, lr=0.01),
}


@dataclass(frozen=True)
class Setting:
    """What a method is tried on."""

    network: Network
    optimizer: str
    total: Total

    def __str__(self) -> str:
        given = {"none": "no total", "goal": f"goal={GOAL}", "budget": "a budget"}[self.total]
        return f"the {self.network.name} with {self.optimizer} and {given}"


def hastened(method: Method) -> Method:
    """The same method with a short interval between its masks, if it has one."""
    timed = any(field.name == "every" for field in fields(method))  # type: ignore[arg-type]
    return replace(method, every=EVERY) if timed else method  # type: ignore[type-var,call-arg]


def densities(model: nn.Module) -> dict[str, float]:
    """A budget with a different density for every tensor."""
    names = [t.name for t in prunable_tensors(model)]
    return {name: 0.15 + 0.1 * (place % 3) for place, name in enumerate(names)}


def living(target: Target) -> Tensor:
    """Which weights take part. By the mask where there is one, since a weight that has just joined is still 0."""
    transform = target.transform
    return (transform.mask if isinstance(transform, Masked | SolvedMask) else target.effective != 0).detach().clone()


class Trial:
    """A training that can be stopped, saved and continued."""

    def __init__(self, method: Method, setting: Setting, *, follow: bool = True) -> None:
        self.setting, self._follow = setting, follow
        self.model = setting.network.made()
        total: dict[str, Any] = {}
        if setting.total == "goal":
            total = {"goal": GOAL}
        elif setting.total == "budget":
            total = {"budget": Budget(densities(self.model))}
        else:
            _empty_some(self.model)
        self.keys = list(self.model.state_dict())
        self.classes = [type(module) for module in self.model.modules()]
        self.dense = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.dense_output = self.output()
        self.sparsifier = sparsify(self.model, method, **total)
        self.run: Callable[[Tensor], Tensor] = self.model
        groups = self.sparsifier.param_groups(weight_decay=1e-3)
        self.optimizer = OPTIMIZERS[setting.optimizer](groups)
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
            self._step()

    def _step(self) -> None:
        if self._follow:
            self.optimizer.step()
            return
        self.sparsifier.before_step()
        self.optimizer.step()
        self.sparsifier.after_step()

    def output(self) -> Tensor:
        """What the network says to inputs that it is not trained on."""
        return evaluated(self.model, self.setting.network)

    def living(self) -> dict[str, Tensor]:
        with evaluating(self.model):
            return {target.name: living(target) for target in self.sparsifier.targets}

    def effective(self) -> dict[str, Tensor]:
        with evaluating(self.model):
            return {target.name: target.effective.detach().clone() for target in self.sparsifier.targets}

    def state(self) -> dict[str, Tensor]:
        return {key: t.detach().clone() for key, t in self.model.state_dict().items()}


def evaluated(model: nn.Module, network: Network) -> Tensor:
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


def _empty_some(model: nn.Module) -> None:
    """Zeros for methods without a total, some of which only keep those they find."""
    with torch.no_grad():
        for found in prunable_tensors(model):
            found.parameter.view(-1)[::3] = 0.0


class quiet(warnings.catch_warnings):  # noqa: N801
    """Trials are short and small on purpose."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore", ForecastWarning)
        warnings.simplefilter("ignore", CollapseWarning)
        return entered
