"""The Sparsifier: the handle on a managed model, and the only object with state at run time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.show import TextTable, budget_table, profile_table
from softprune.budget.units import Units
from softprune.core import bake as baking
from softprune.core.bake import Freezable, freeze_
from softprune.core.collapse import (
    Collapse,
    CollapseWarning,
    CollapseWatch,
    Diagnosis,
    diagnose,
    find_collapse,
    find_cut,
    find_nonfinite,
    refuse_nonfinite,
    refuse_uninitialised,
)
from softprune.core.groups import (
    learnt,
    param_groups,
    place,
    refuse_optimizers,
    refuse_readers,
    refuse_split,
    settle,
    settled_weight,
    sharded,
    unchanged_on_error,
)
from softprune.core.hooks import StepHooks, nonfinite
from softprune.core.parametrization import Link
from softprune.core.state_file import load_folder, restore, save_folder, snapshot
from softprune.forecast.forecast import Forecast, forecast_first_threshold
from softprune.goals.constraint import Constraint
from softprune.goals.solve import learn, observe, solve
from softprune.methods.base import Method
from softprune.methods.transforms import Target
from softprune.structure.gates import VECTOR, behind_gates, has_importances
from softprune.structure.kinds import unit_kind

if TYPE_CHECKING:
    from rich.table import Table

    from softprune.core.sparsify import Plan

# Steps between two looks that cost a pass over the weights: silent channels, and thresholds that follow.
INSPECT_EVERY = 100
SETTLE_EVERY = 10

O = TypeVar("O", bound=Optimizer)  # noqa: E741


class Sparsifier:
    """What `sparsify` returns. The model itself stays yours; this holds no tensor of it.

    Attributes:
        model: the managed model, the same object that was given.
        method: as it was given; rules may have refined it for single tensors.
        plan: what each tensor got; print it.
        targets: the managed tensors.
        goals: the constraints, each with the total that is prescribed.
        contexts: the method as rules have refined it, each with its tensors and what it remembers.
        step: optimizer steps completed since `attach` (continued by `load_state_dict`).
        forecast: when sparsity will set in, computed by `attach`; None for methods without thresholds.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        plan: Plan,
        profile: Profile,
        goals: tuple[Constraint, ...] = (),
        *,
        units: Units = Units.weight,
        seed: int = 0,
    ) -> None:
        self.model, self.method, self.plan, self.profile = model, method, plan, profile
        self.goals, self.units, self.seed = goals, units, seed
        self.targets: tuple[Target, ...] = tuple(p.target for p in plan.managed)
        self.step = 0
        self.total_steps: int | None = None
        self.forecast: Forecast | None = None
        self.frozen: Freezable | None = None
        self.contexts = plan.contexts(model, seed)
        # The order in which optimizers of earlier checkpoints have what transforms learn.
        self._by_method = [target for context in self.contexts.values() for target in context.targets]
        self._hooks: StepHooks | None = None
        self._watch = CollapseWatch()
        self._thresholds = len({p for t in self.targets if t.transform.decayed for p in t.transform.parameters()})
        self._importances = [t for t in self.targets if t.tensor == VECTOR and has_importances(t.module)]
        # What importances multiply is no target, and yet a part of every weight.
        self._behind = behind_gates(model) if self._importances else ()
        self._all_targets = (*self.targets, *self._behind)
        self._solved = False
        self._link()

    def _link(self) -> None:
        for target in self.targets:
            for module, tensor in target.sites:
                module.parametrizations[tensor].link = Link(self, target.name)  # type: ignore[index,union-attr]

    def __deepcopy__(self, memo: dict[int, Any]) -> Sparsifier:
        twin = memo[id(self)] = object.__new__(type(self))
        vars(twin).update({name: deepcopy(value, memo) for name, value in vars(self).items()})
        if twin.managed:
            twin._link()  # the copied model was linked to this one
        return twin

    # training

    def param_groups(
        self,
        *,
        weight_decay: float,
        norm_decay: float = 0.0,
        threshold_decay: float | None = None,
        importance_decay: float | None = None,
    ) -> list[dict[str, Any]]:
        """Parameter groups for any optimizer: "weight", "norm" (normalisation, biases), "threshold" and others.

        Args:
            weight_decay: for weights.
            norm_decay: for normalisation parameters and biases. The paper decays them like the weights.
            threshold_decay: for s; None takes weight_decay, as the paper does.
            importance_decay: for the importances of units; None takes weight_decay.
        """
        return param_groups(
            self.model,
            self._by_method,
            [target.raw for target in self._importances],
            weight_decay=weight_decay,
            norm_decay=norm_decay,
            threshold_decay=threshold_decay,
            importance_decay=importance_decay,
        )

    def attach(
        self,
        *optimizers: O,
        total_steps: int,
        threshold_decay: float | None = None,
        scheduler: Any = None,
        steps_per_scheduler_step: int = 1,
        follow: bool = True,
    ) -> O | tuple[O, ...]:
        """Follow the steps of these optimizers, which are returned; your loop stays as it is.

        Thresholds that are in none of the optimizers (one built before `sparsify`) join the group of their weight.

        Args:
            total_steps: optimizer steps of the whole training.
            threshold_decay: decay of s, for optimizers that do not hold the thresholds yet.
            scheduler: the learning rate scheduler (or a callable from step to learning rate), for the forecast.
            steps_per_scheduler_step: optimizer steps between two scheduler steps.
            follow: by hooks, so that nothing else is to be done. False is for loops that do not call the `step` of
                these optimizers: there call `before_step` and `after_step` around each.
        """
        self._refuse_finished()
        if self._hooks is not None:
            raise ValueError("optimizers are attached already: pass all of them in one call of attach()")
        refuse_optimizers(optimizers, self.targets, total_steps)
        thresholds = learnt(self._by_method)
        refuse_split(self.targets, len(thresholds), self._thresholds)
        refuse_readers(self.contexts, to_goal=bool(self.goals))
        if self.goals and threshold_decay is not None:
            raise ValueError("threshold_decay has no effect under a goal, which sets the thresholds: leave it out")
        for method, context in self.contexts.items():
            context.step, context.total_steps, context.optimizers = self.step, total_steps, optimizers
            method.check(context)
        refuse_uninitialised(self.targets, self._behind)
        if not self._solved:
            self.solve()
        with unchanged_on_error(optimizers):
            place(self.model, self._by_method, optimizers, decayed=True, decay=threshold_decay)
            place(self.model, self._by_method, optimizers, decayed=False)
            plan = (total_steps, scheduler, steps_per_scheduler_step)
            if thresholds:
                self.forecast = forecast_first_threshold(self.targets, optimizers, *plan, done=self.step)
            else:
                self.forecast = None
        self.total_steps = total_steps
        self._hooks = StepHooks(optimizers, thresholds, before=self._before_step, after=self._after_step, follow=follow)
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def before_step(self, optimizer: Optimizer | None = None) -> None:
        """Say that a step begins, with the gradients in place; only after ``attach(..., follow=False)``.

        The optimizer that steps must be named where several are attached.
        """
        self._attached().begin(optimizer)

    def after_step(self, optimizer: Optimizer | None = None) -> None:
        """Say that a step was made; only after ``attach(..., follow=False)``."""
        self._attached().end(optimizer)

    def detach(self) -> None:
        """Stop following the optimizers, so that others can be attached. Steps that were made stay counted."""
        if self._hooks is not None:
            self._hooks.detach()
            self._hooks = None
            for context in self.contexts.values():
                context.optimizers = ()

    def freeze(self, what: Freezable = "support") -> None:
        """Stop learning "thresholds", fix the "support" (which weights are zero), or the "budget" (how many).

        DistributedDataParallel has counted on gradients for the thresholds: wrap the model in it anew.
        """
        self._refuse_finished()
        freeze_(self.targets, what)
        self.frozen = what

    @property
    def progress(self) -> float:
        """The fraction of the training that is done; 0 before `attach`."""
        return self.step / self.total_steps if self.total_steps else 0.0

    def solve(self, model: nn.Module | None = None, *, at: float | None = None) -> None:
        """Meet every goal exactly with the weights as they are now. Training does this after every step.

        `model` may be a copy whose weights are others, such as `AveragedModel(...).module`. `at` is the point of the
        training whose share of the goal shall hold: now by default, 1 for the whole goal.
        """
        constraints = self.goals if model is None else baking.constraints_of(self, model)[0]
        self._solve(constraints, self.progress if at is None else at)

    def _solve(self, constraints: Sequence[Constraint], progress: float) -> None:
        if self.frozen in ("support", "budget"):
            return
        for constraint in constraints:
            if progress >= 1.0:
                constraint.rise()
            allowed = constraint.allowed(progress)
            # New transforms keep all weights, as long as the schedule asks for nothing.
            if self._solved or allowed < constraint.full:
                solve(constraint, allowed)
        self._solved = True

    # reading

    @property
    def managed(self) -> bool:
        """Whether the model still is: `bake` and `remove` end it."""
        return self.targets[0].managed

    def measure(self) -> Budget:
        """The present densities, counted on the weights that the network uses."""
        self._refuse_finished()
        densities, importances = {}, {}
        for collapse in find_nonfinite(self._behind):
            warnings.warn(str(collapse), CollapseWarning, stacklevel=2)
        for target in self.targets:
            effective = settled_weight(target)
            densities[target.name] = int(torch.count_nonzero(effective)) / effective.numel()
            if bad := int((~torch.isfinite(effective)).sum()):
                words = f"{bad} of {effective.numel():,} weights are NaN or infinite, and counted as kept"
                warnings.warn(f"non-finite weights: {target.name}: {words}", CollapseWarning, stacklevel=2)
            if target in self._importances:
                importances[target.module] = effective
        return Budget(
            densities,
            profile=self.profile,
            source=f"measured at step {self.step}",
            units=self.units.text,
            stored=unit_kind(self.units).stored(self.model, importances),
        )

    def diagnose(self) -> list[Diagnosis]:
        """Per tensor: s, threshold, density, P, the L1 norm of the living weights, the balance of forces."""
        self._refuse_finished()
        optimizers, seen = (self._hooks.optimizers, self._hooks.seen) if self._hooks else ((), {})
        return [diagnose(target, optimizers, seen) for target in self.targets]

    def check(self, example: Any = None) -> list[Collapse]:
        """Look for dead tensors, dead channels and, with an example input, cut paths; warn about each once."""
        self._refuse_finished()
        found = find_collapse(self.targets, self._behind)
        if example is not None:
            found += find_cut(self.model, self.targets, example)
        self._watch.report(found)
        return found

    def _repr_html_(self) -> str:
        return self._table().html()

    def __rich__(self) -> Table:
        return self._table().rich()

    # leaving

    def bake(self, *, at: Literal["now", "target"] | None = None, fold: bool = True) -> nn.Module:
        """The plain model with zeros in its weights, as `softprune.bake` makes it, and no optimizer attached."""
        return self._finish(lambda model: baking.bake(model, at=at, fold=fold))

    def prepare_bake(self, model: nn.Module, at: Literal["now", "target"] | None) -> None:
        """Meet the goals in the model, or in a copy whose weights are others; refuse where they are not due yet."""
        constraints, targets = baking.constraints_of(self, model)
        refuse_nonfinite(targets, "bake()")
        progress = 1.0 if at == "target" else self.progress
        if self.frozen in ("support", "budget"):
            for target in targets:
                settle(target)  # as baking does; a held budget is that of the present weights
            for constraint in () if at == "now" else constraints:
                goal = constraint.goal
                if constraint.spent() > constraint.final:
                    raise ValueError(
                        f"the {self.frozen} was frozen before the goal held: {goal.words(constraint.spent())} is kept "
                        f'where {goal} allows {goal.words(constraint.final)}; say bake(at="now") to take it as it '
                        "is, or freeze after the schedule has ended"
                    )
            return
        if at is None and not all(constraint.reached(progress) for constraint in constraints):
            raise ValueError(
                f"the goal holds only later in the training (step {self.step} of {self.total_steps}): finish it, "
                'or say bake(at="now") for the present zeros or bake(at="target") for all that the goal asks for'
            )
        # Weights that were put in since, or a mask that is renewed only now and then, may be behind.
        if not all(constraint.met(progress) for constraint in constraints):
            self._solve(constraints, progress)

    def remove(self) -> nn.Module:
        """The raw dense model back, as if `sparsify` had never been called, with the weights as trained."""
        return self._finish(baking.remove)

    # files

    def state_dict(self) -> dict[str, Any]:
        """Everything that is not in `model.state_dict()`, as JSON-able data."""
        return snapshot(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`. Call it before `model.load_state_dict`, since freezing changes the keys."""
        restore(self, state)

    def save(self, folder: str | Path) -> None:
        """Write the model's raw state, this object's state and the budget into a folder; each file whole or not at all.

        Of a sharded model all processes must call this; the first one writes.
        """
        self._refuse_finished()
        save_folder(self, Path(folder))

    def load(self, folder: str | Path) -> None:
        """Continue from a folder that `save` wrote, in a model that was sparsified in the same way.

        First build and attach the optimizers as in the run that saved, then call this, then load their states.
        Nothing is changed if the folder does not fit.
        """
        self._refuse_finished()
        load_folder(self, Path(folder))

    # inside

    def _before_step(self, loss_scale: float) -> None:
        # bake(model) leaves the hooks behind; a plain model trains on without them.
        if not self.managed:
            return
        hooks = self._attached()
        if hooks.watches and hooks.all_move():
            self._watch.all_move()
        elif hooks.watches:
            self._watch.read_gradients(self.targets)
        if self.frozen is None:
            for constraint in self.goals:
                observe(constraint, loss_scale=loss_scale)
            self._tell("before_step", loss_scale)

    def _after_step(self) -> None:
        if not self.managed:
            return
        self.step += 1
        if nonfinite(self._all_targets):
            self._watch.report(find_nonfinite(self._all_targets, step=self.step))
        if self.frozen in (None, "thresholds"):
            for constraint in self.goals:
                if self.frozen is None:
                    learn(constraint, self.progress, self.total_steps or 1)
                if constraint.due(self.step, self.total_steps or 1):
                    solve(constraint, constraint.allowed(self.progress))
        if self.frozen is None:
            for target in self.targets:
                target.transform.after_step_(target.raw, self.progress)
            self._tell("after_step")
        if self.step % SETTLE_EVERY == 0 or self.step == self.total_steps:
            for target in self.targets:
                settle(target)
        if self.step % INSPECT_EVERY == 0 and not any(map(sharded, self.targets)):
            self._watch.report(find_collapse(self.targets, self._behind))

    def _tell(self, hook: Literal["before_step", "after_step"], loss_scale: float = 1.0) -> None:
        """Call a hook of the methods that have it."""
        for method, context in self.contexts.items():
            if getattr(type(method), hook) is not getattr(Method, hook):
                context.step, context.loss_scale = self.step, loss_scale
                getattr(method, hook)(context)

    def _attached(self) -> StepHooks:
        if self._hooks is None:
            raise ValueError("no optimizer is attached: call attach(optimizer, total_steps=...) first")
        return self._hooks

    def _table(self) -> TextTable:
        words = f"{type(self.method).__name__}, step {self.step}"
        if self.total_steps:
            words += f" of {self.total_steps}"
        # To show must not talk to other processes, nor read weights that have no values.
        if not self.managed or any(sharded(t) or t.raw.device.type == "meta" for t in self.targets):
            words += ", not measured" if self.managed else ", baked or removed"
            return profile_table(self.profile, caption=words, units=self.units.text)
        return budget_table(self.measure(), caption=words)

    def _refuse_finished(self) -> None:
        if not self.managed:
            raise ValueError("this model was baked or removed already: call sparsify again to go on")

    def _finish(self, leave: Any) -> nn.Module:
        self._refuse_finished()
        model = leave(self.model)
        self.detach()
        return model
