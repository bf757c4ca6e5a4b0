"""Lightning: a callback that sparsifies the model, follows its optimizers, logs, saves and resumes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from softprune.adapters.thresholds import ThresholdsAside, refuse_decay
from softprune.budget.budget import Budget
from softprune.budget.profiler import prunable_tensors
from softprune.budget.units import Units
from softprune.core.groups import learnt, take_out
from softprune.core.rule import Match, Rule
from softprune.core.sparsifier import Sparsifier
from softprune.core.sparsify import sparsify
from softprune.goals.base import Goal, Schedule
from softprune.goals.goal import Rank
from softprune.methods.base import Method


def count_steps(trainer: Any, pl_module: Any) -> int:
    """Optimizer steps of the whole fit."""
    if not pl_module.automatic_optimization:
        raise ValueError("in manual optimization only you know the number of steps: pass total_steps=")
    steps = trainer.estimated_stepping_batches
    if not 1 <= steps < math.inf:
        raise ValueError(
            f"the Trainer does not know how many optimizer steps it will make (it says {steps}): set its max_steps, or "
            "its max_epochs with a data loader that has a length, or pass total_steps="
        )
    return int(steps)


def scheduler_of(trainer: Any) -> tuple[LRScheduler | None, int]:
    """The learning rate scheduler, and the number of optimizer steps between two of its steps."""
    configs = trainer.lr_scheduler_configs
    known = len(configs) == 1 and isinstance(configs[0].scheduler, LRScheduler)
    if not known or not trainer.lightning_module.automatic_optimization:
        return None, 1
    batches, every = trainer.num_training_batches, configs[0].frequency
    if configs[0].interval == "epoch":
        if math.isinf(batches):
            return None, 1
        every *= math.ceil(batches / trainer.accumulate_grad_batches)
    return configs[0].scheduler, every


def _framework() -> Any:
    # The same code under two names, and a Trainer of one takes no callback of the other: what the program has
    # imported is what it uses.
    for name in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ImportError("the Lightning callback needs Lightning: pip install 'softprune[lightning]'")


pl = _framework()


class SoftpruneCallback(pl.Callback):  # type: ignore[misc,name-defined]
    """Puts a method on the model of a Lightning Trainer.

    The network is sparsified before the optimizers are made, so `self.parameters()` has the thresholds in it.
    Gradient clipping leaves them out. `goal`, `budget`, `schedule`, `units`, `skip`, `rules`, `example` and `seed` are
    those of `sparsify`; with an example MACs are logged beside the sparsity.

    Args:
        method: such as `STR(s_init=-60.0)`.
        submodule: path of the module to sparsify; the whole LightningModule if empty.
        threshold_decay: decay of s, where the optimizer would give it that of the weights.
        total_steps: optimizer steps of the whole training; None asks the Trainer.
        bake: leave a plain model with zeros behind when the fit has ended.

    Attributes:
        sparsifier: the handle; None until the Trainer has set the callback up.
    """

    def __init__(
        self,
        method: Method,
        *,
        submodule: str = "",
        goal: Goal | Rank | None = None,
        budget: Budget | None = None,
        schedule: Schedule | None = None,
        units: Units = Units.weight,
        skip: Match | Iterable[Match] = (),
        rules: Sequence[Rule] = (),
        example: Any = None,
        seed: int = 0,
        threshold_decay: float | None = None,
        total_steps: int | None = None,
        bake: bool = False,
    ) -> None:
        refuse_decay(threshold_decay, goal, budget, rules)
        self.method, self.submodule = method, submodule
        self.settings: dict[str, Any] = {"goal": goal, "budget": budget, "schedule": schedule, "units": units}
        self.settings |= {"skip": skip, "rules": rules, "example": example, "seed": seed}
        self.threshold_decay, self.total_steps, self.bake = threshold_decay, total_steps, bake
        self.sparsifier: Sparsifier | None = None
        self._early: set[str] = set()
        self._aside: ThresholdsAside | None = None

    # Lightning's order: setup, weights restored, model wrapped, optimizers made, on_fit_start, their states restored.

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        model = pl_module.get_submodule(self.submodule)
        if self.sparsifier is None:
            if isinstance(trainer.strategy, pl.strategies.FSDPStrategy | pl.strategies.DeepSpeedStrategy):
                kind = type(trainer.strategy).__name__
                raise ValueError(f"{kind} takes apart the parameters that thresholds act on: use strategy='ddp'")
            self._early = {tensor.name for tensor in prunable_tensors(model)}
            self.sparsifier = sparsify(model, self.method, **self.settings)
        elif self.sparsifier.model is not model:
            raise ValueError("this callback manages another model already: make a callback for each model")

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        sparsifier, optimizers = self._managed(), trainer.optimizers
        if sparsifier is None:  # baked after an earlier fit: it trains on as what it is
            return
        if late := sorted({tensor.name for tensor in prunable_tensors(sparsifier.model)} - self._early):
            raise ValueError(f"{', '.join(late)} came after callbacks were set up: build the network in __init__")
        steps = count_steps(trainer, pl_module) if self.total_steps is None else self.total_steps
        scheduler, every = scheduler_of(trainer)
        thresholds, decay = learnt(sparsifier.targets), self.threshold_decay
        if decay is not None:
            take_out(thresholds, optimizers, decay)
        self._aside = ThresholdsAside(thresholds, optimizers)
        sparsifier.detach()  # from the optimizers of an earlier fit
        sparsifier.attach(
            *optimizers, total_steps=steps, threshold_decay=decay, scheduler=scheduler, steps_per_scheduler_step=every
        )

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self._aside is not None:
            self._aside.take()

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._log(pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.enable_validation:
            self._log(pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        sparsifier, self._aside = self._managed(), None
        if self.bake and sparsifier is not None:
            sparsifier.bake()

    def state_dict(self) -> dict[str, Any]:
        sparsifier = self._managed()
        return sparsifier.state_dict() if sparsifier is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        sparsifier = self._managed()
        if sparsifier is not None and state_dict:
            sparsifier.load_state_dict(state_dict)

    def _log(self, pl_module: Any) -> None:
        sparsifier = self._managed()
        if sparsifier is not None:
            budget = sparsifier.measure()
            pl_module.log("sparsity", budget.overall, sync_dist=True)
            if sparsifier.profile.counted:
                pl_module.log("macs", float(budget.macs()), sync_dist=True)

    def _managed(self) -> Sparsifier | None:
        return self.sparsifier if self.sparsifier is not None and self.sparsifier.managed else None


def sparsifier_of(trainer: Any) -> Sparsifier:
    """The handle of a Trainer's callback, for `configure_optimizers`: it makes the parameter groups."""
    for callback in trainer.callbacks:
        if isinstance(callback, SoftpruneCallback) and callback.sparsifier is not None:
            return callback.sparsifier
    raise ValueError("this Trainer has no SoftpruneCallback that is set up: pass one in callbacks=")
