"""Constraints: the tensors that share a goal, what each kept weight costs, and the totals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from softprune.budget.costs import Cost, PerWeight, Profile, equal_density
from softprune.core.parametrization import unwritten
from softprune.goals.base import Constant, Goal, Ramp, Schedule, Staircase, asked
from softprune.goals.select import Predictor
from softprune.methods.base import GoalSettings, Method
from softprune.methods.transforms import Solved, Target

if TYPE_CHECKING:
    from softprune.structure.joint_cost import JointCost

# Every tensor keeps at least this share of what it would have if all were equally dense: enough to stay alive,
# little enough to leave the distribution to the loss.
FLOOR_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class ConstrainedTensor:
    """One tensor under a goal."""

    target: Target  # the tensor
    settings: GoalSettings  # how its method approaches a goal
    cost: Cost  # what its kept weights add to the total
    floor: int  # the number of its largest weights that stay whatever happens

    @property
    def transform(self) -> Solved:
        transform = self.target.transform
        assert isinstance(transform, Solved)
        return transform


@dataclass(frozen=True, eq=False)
class Constraint:
    """The tensors that share a total."""

    goal: Goal  # as the user gave it
    schedule: Schedule  # the fraction of the goal that holds at each point of the training
    tensors: tuple[ConstrainedTensor, ...]  # those it is for
    full: float  # total cost with every weight kept
    final: float  # total cost allowed once the goal holds
    density: float  # that of all tensors with which the goal would hold if it were the same for all
    joint: JointCost | None = None  # what units cost together, where that is no sum over the tensors
    # where the last solutions lay, which makes the next one faster and changes nothing else
    predictor: Predictor = field(default_factory=Predictor)

    def allowed(self, progress: float) -> float:
        """The total that may be kept at this point of the training."""
        share = asked(self.schedule, progress)
        if all(t.cost.linear for t in self.tensors):
            total = self.full - (self.full - self.final) * share
        else:
            # What equally dense tensors cost whose density falls evenly. Time hardly falls while a dense kernel is the
            # faster one: a total that fell evenly in time would take most of the weights at the first step.
            total = self.final if share == 1.0 else _total(self.tensors, 1.0 - (1.0 - self.density) * share)
        return round(total) if self.goal.whole else total

    def on(self, model: nn.Module, targets: Sequence[Target]) -> Constraint:
        """The same constraint in a copy of the model, whose targets are `copied`."""
        named = {target.name: target for target in targets}
        tensors = tuple(replace(t, target=named[t.target.name]) for t in self.tensors)
        joint = None if self.joint is None else self.joint.on(model)
        return replace(self, tensors=tensors, joint=joint, predictor=Predictor())

    def due(self, step: int, total_steps: int) -> bool:
        """Whether it is solved again after this step."""
        every = max(t.settings.every for t in self.tensors)
        if every == 0:
            return asked(self.schedule, step / total_steps) != asked(self.schedule, (step - 1) / total_steps)
        return step % every == 0 or step == total_steps

    def reached(self, progress: float) -> bool:
        """Whether the whole goal is asked for by then, and the thresholds in use are those that meet it."""
        return asked(self.schedule, progress) == 1.0 and (
            progress >= 1.0 or all(t.rise is None or bool(t.rise == 1.0) for t in self._solved())
        )

    def rise(self) -> None:
        """Let the network feel the thresholds that meet the goal, also where the training would raise them later."""
        for transform in self._solved():
            if transform.rise is not None:
                transform.rise.fill_(1.0)

    def _solved(self) -> list[Solved]:
        return [t.transform for t in self.tensors if isinstance(t.target.transform, Solved)]

    @torch.no_grad()
    def met(self, progress: float) -> bool:
        """Whether the weights in use now cost what is allowed, to the cost of one. A joint cost must be solved for."""
        if self.joint is not None:
            return False
        allowed = self.allowed(progress)
        return allowed - max(t.cost.most for t in self.tensors) < self.spent() <= allowed

    @torch.no_grad()
    def spent(self) -> float:
        """What the weights, or units, in use now cost together, in the unit of the goal."""
        if self.joint is not None:
            return self.joint.now().total([(t.target.effective != 0).flatten().cpu().numpy() for t in self.tensors])
        return sum(t.cost.of(int(torch.count_nonzero(t.target.effective))) for t in self.tensors)

    def __str__(self) -> str:
        """The same for equal constraints in any process, as a checkpoint needs it."""
        known = isinstance(self.schedule, Ramp | Constant | Staircase)
        marks = ", ".join(f"{asked(self.schedule, quarter / 4):.6g}" for quarter in range(5))
        return f"{self.goal} by {self.schedule if known else f'a schedule of your own ({marks})'}"


@torch.no_grad()
def copied(originals: Sequence[Target], targets: Sequence[Target]) -> tuple[Target, ...]:
    """The tensors of a copy of a model in the order of the original ones, with the masks and thresholds of these.

    A copy whose weights are still those with which it was made, or loaded, has its own: they belong to these weights.

    Raises:
        ValueError: if it is no copy, or one from before the original was frozen.
    """
    named = {target.name: target for target in targets}
    missing = [original.name for original in originals if original.name not in named]
    if missing:
        raise ValueError(f"this is no whole copy of the sparsified model: it does not manage {', '.join(missing)}")
    snapshot = all(unwritten(*named[original.name].sites[0]) for original in originals)
    for original in originals:
        if not original.managed:
            continue  # baked already, so that the copy has to do with its own
        mine, theirs = original.transform, named[original.name].transform
        if type(mine) is not type(theirs):
            raise ValueError(f"{original.name} was frozen since this copy was made: make it anew from the frozen model")
        if snapshot:
            continue
        for key, value in mine.named_buffers():
            theirs.get_buffer(key).copy_(value)
    return tuple(named[original.name] for original in originals)


def make_constraint(
    goal: Goal,
    schedule: Schedule,
    chosen: Sequence[tuple[Target, Method]],
    profile: Profile,
    *,
    other_params: int = 0,
    joint: JointCost | None = None,
) -> Constraint:
    """Check a goal against the tensors that it is for.

    Args:
        goal: the total.
        schedule: how it is approached; at the end of the training it must ask for all of it.
        chosen: the tensors with their methods.
        profile: their costs; what else the network costs belongs to a Flops goal.
        other_params: parameters that are under no goal, for goals with ``scope="all"``.
        joint: what the units of these tensors cost, where the goal is a total of what they leave.

    Raises:
        ValueError: if the goal cannot be reached, or the floors do not leave room for it.
    """
    if not callable(schedule):
        raise TypeError(f"a schedule is cubic(...), linear(...), constant() or a function, got {schedule!r}")
    if asked(schedule, 1.0) != 1.0:
        raise ValueError(
            f"the schedule asks for {asked(schedule, 1.0):.4g} of the goal at the end of the training, not for all"
        )
    profile = replace(profile.only(target.name for target, _ in chosen), other_params=other_params)
    if joint is not None:
        return _joint_constraint(goal, schedule, chosen, profile, joint)
    costs, final = goal.costs(profile), goal.allowance(profile)
    tensors = tuple(
        ConstrainedTensor(target, method.goal_settings, costs[target.name], floor=0) for target, method in chosen
    )
    full = sum(t.cost.of(t.target.shape.numel()) for t in tensors)
    linear = all(t.cost.linear for t in tensors)
    density = final / full if linear else equal_density(partial(_total, tensors), final)
    tensors = tuple(replace(t, floor=_floor(t.settings, t.target.shape.numel(), density)) for t in tensors)
    least = sum(t.cost.of(t.floor) for t in tensors)
    if least > final:
        raise ValueError(
            f"{goal} leaves {goal.words(final)} to keep, but the floors of the {len(tensors)} tensors (min_keep) take "
            f"{goal.words(least)}: lower min_keep, or ask for less"
        )
    if isinstance(schedule, Staircase):
        schedule = schedule.towards(density)
    return Constraint(goal, schedule, tensors, full, final, density)


def _joint_constraint(
    goal: Goal, schedule: Schedule, chosen: Sequence[tuple[Target, Method]], profile: Profile, joint: JointCost
) -> Constraint:
    final, full = float(goal.amount(profile)), joint.full()
    density = equal_density(joint.at_density, final, halvings=20)
    floors = [
        _floor(method.goal_settings, size, density) for (_, method), size in zip(chosen, joint.sizes, strict=True)
    ]
    goal.check_reachable(final, joint.least(floors) - 1, full)
    if isinstance(schedule, Staircase):
        schedule = schedule.towards(final / full)
    tensors = tuple(
        ConstrainedTensor(target, method.goal_settings, PerWeight(), floor)
        for (target, method), floor in zip(chosen, floors, strict=True)
    )
    return Constraint(goal, schedule, tensors, full, final, density, joint)


def _total(tensors: Sequence[ConstrainedTensor], density: float) -> float:
    """What tensors of one density cost."""
    return sum(t.cost.of(density * t.target.shape.numel()) for t in tensors)


def _floor(settings: GoalSettings, size: int, density: float) -> int:
    wanted = settings.min_keep or math.ceil(FLOOR_SHARE * density * size)
    return min(size, max(1, wanted))
