"""A part of the model with one goal: its tensors, what each kept weight costs, and the totals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from softprune.budget.costs import Profile
from softprune.budget.goals import Flops, Goal, Params, Sparsity, require_reachable
from softprune.budget.rounds import Staircase
from softprune.budget.schedules import Constant, Ramp, Schedule, asked
from softprune.core.goals.bracket import Trail
from softprune.methods.base import Method, Target
from softprune.methods.transforms import SolvedThreshold

# Every tensor keeps at least this share of what it would have if all were equally dense: enough to stay alive,
# little enough to leave the distribution to the loss.
FLOOR_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class Member:
    """One tensor under a goal.

    Args:
        target: the tensor.
        method: says how its thresholds are learnt.
        cost: what one kept weight adds to the total.
        floor: the number of its largest weights that stay whatever happens.
    """

    target: Target
    method: Method
    cost: float
    floor: int


@dataclass(frozen=True, eq=False)
class Part:
    """The tensors that share a total.

    Args:
        goal: as the user gave it.
        schedule: the fraction of the goal that holds at each point of the training.
        members: the tensors.
        full: total cost with every weight kept.
        final: total cost allowed once the goal holds.
        trail: where the last solutions lay, which makes the next one faster and changes nothing else.
    """

    goal: Goal
    schedule: Schedule
    members: tuple[Member, ...]
    full: float
    final: float
    trail: Trail = field(default_factory=Trail)

    def allowed(self, progress: float) -> float:
        """The total that may be kept at this point of the training."""
        exact = self.full - (self.full - self.final) * asked(self.schedule, progress)
        return exact if isinstance(self.goal, Flops) else round(exact)

    def on(self, targets: Sequence[Target]) -> Part:
        """The same part of a copy of the model; what was learnt about the distribution goes with it."""
        named = {target.name: target for target in targets}
        missing = [m.target.name for m in self.members if m.target.name not in named]
        if missing:
            raise ValueError(f"this is no copy of the sparsified model: it does not manage {', '.join(missing)}")
        for member in self.members:
            theirs = named[member.target.name].transform
            for key, value in member.target.transform.named_buffers():
                theirs.get_buffer(key).copy_(value)
        members = tuple(replace(m, target=named[m.target.name]) for m in self.members)
        return replace(self, members=members, trail=Trail())

    def due(self, step: int, total_steps: int) -> bool:
        """Whether it is solved again after this step."""
        every = max(m.method.pursuit.every for m in self.members)
        if every == 0:
            return asked(self.schedule, step / total_steps) != asked(self.schedule, (step - 1) / total_steps)
        return step % every == 0 or step == total_steps

    def reached(self, progress: float) -> bool:
        """Whether the whole goal is asked for by then, and the thresholds in use are those that meet it."""
        return asked(self.schedule, progress) == 1.0 and (progress >= 1.0 or all(t.risen for t in self._solved()))

    def rise(self) -> None:
        """Let the network feel the thresholds that meet the goal, also where the training would raise them later."""
        for transform in self._solved():
            transform.rise_()

    def _solved(self) -> list[SolvedThreshold]:
        return [m.target.transform for m in self.members if isinstance(m.target.transform, SolvedThreshold)]

    @torch.no_grad()
    def met(self, progress: float) -> bool:
        """Whether the weights in use now cost what is allowed, to the cost of one weight."""
        kept = [int(torch.count_nonzero(m.target.effective)) for m in self.members]
        spent = sum(n * m.cost for n, m in zip(kept, self.members, strict=True))
        return self.allowed(progress) - max(m.cost for m in self.members) < spent <= self.allowed(progress)

    def __str__(self) -> str:
        """The same for equal parts in any process, as a checkpoint needs it."""
        known = isinstance(self.schedule, Ramp | Constant | Staircase)
        marks = ", ".join(f"{asked(self.schedule, quarter / 4):.6g}" for quarter in range(5))
        return f"{self.goal} by {self.schedule if known else f'a schedule of your own ({marks})'}"


def make_part(
    goal: Goal,
    schedule: Schedule,
    chosen: Sequence[tuple[Target, Method]],
    profile: Profile,
    *,
    other_params: int = 0,
) -> Part:
    """Check a goal against the tensors that it is for.

    Args:
        goal: the total.
        schedule: how it is approached; at the end of the training it must ask for all of it.
        chosen: the tensors with their methods.
        profile: their costs; what else the network costs belongs to a Flops goal.
        other_params: parameters that are in no part, for goals with ``scope="all"``.

    Raises:
        ValueError: if the goal cannot be reached, or the floors do not leave room for it.
    """
    if not callable(schedule):
        raise TypeError(f"a schedule is cubic(...), linear(...), constant() or a function, got {schedule!r}")
    if asked(schedule, 1.0) != 1.0:
        raise ValueError(
            f"the schedule asks for {asked(schedule, 1.0):.4g} of the goal at the end of the training, not for all"
        )
    names = [target.name for target, _ in chosen]
    sizes = [target.shape.numel() for target, _ in chosen]
    costs = [1.0] * len(chosen)
    count = sum(sizes)
    if isinstance(goal, Flops):
        fixed = profile.total_macs() - sum(profile[name].macs for name in names)
        require_reachable(goal, fixed, high=profile.total_macs())
        costs = [profile[name].macs / size for name, size in zip(names, sizes, strict=True)]
        final = float(goal.macs - fixed)
    elif isinstance(goal, Params):
        outside = other_params if goal.scope == "all" else 0
        require_reachable(goal, outside, high=count + outside)
        final = float(goal.count - outside)
    else:
        final = float(_kept(goal, count, other_params))
    full = sum(size * cost for size, cost in zip(sizes, costs, strict=True))
    members = tuple(
        Member(target, method, cost, _floor(method, target.shape.numel(), final / full))
        for (target, method), cost in zip(chosen, costs, strict=True)
    )
    least = sum(m.floor * m.cost for m in members)
    if least > final:
        raise ValueError(
            f"{goal} leaves {final:,.0f} to keep, but the floors of the {len(members)} tensors (min_keep) take "
            f"{least:,.0f}: lower min_keep, or ask for less"
        )
    if isinstance(schedule, Staircase):
        schedule = schedule.towards(final / full)
    return Part(goal, schedule, members, full, final)


def _kept(goal: Sparsity, count: int, other_params: int) -> int:
    if goal.scope == "managed":
        return goal.kept(count)
    kept = goal.kept(count + other_params) - other_params
    if kept < 1:
        raise ValueError(
            f"{goal} cannot be reached: {other_params:,} of the {count + other_params:,} parameters of the model are "
            'not managed; leave out scope="all", or ask for less'
        )
    return kept


def _floor(method: Method, size: int, density: float) -> int:
    wanted = method.pursuit.min_keep or math.ceil(FLOOR_SHARE * density * size)
    return min(size, max(1, wanted))
