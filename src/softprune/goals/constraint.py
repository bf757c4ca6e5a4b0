"""A part of the model with one goal: its tensors, what each kept weight costs, and the totals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import nn

from softprune.budget.costs import Profile
from softprune.core.parametrization import unwritten
from softprune.goals.cost import Bill, Price, allowance, equal_density, prices_of
from softprune.goals.goal import Flops, Goal, Latency, Params, require_reachable
from softprune.goals.schedule import Constant, Ramp, Schedule, Staircase, asked
from softprune.goals.select import Trail
from softprune.methods.base import GoalSettings, Method
from softprune.methods.transforms import Solved, Target

# Every tensor keeps at least this share of what it would have if all were equally dense: enough to stay alive,
# little enough to leave the distribution to the loss.
FLOOR_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class Member:
    """One tensor under a goal.

    Args:
        target: the tensor.
        settings: how its method approaches a goal.
        price: what its kept weights add to the total.
        floor: the number of its largest weights that stay whatever happens.
    """

    target: Target
    settings: GoalSettings
    price: Price
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
        density: that of all tensors with which the goal would hold if it were the same for all.
        bill: what units cost together, where that is no price for each.
        trail: where the last solutions lay, which makes the next one faster and changes nothing else.
    """

    goal: Goal
    schedule: Schedule
    members: tuple[Member, ...]
    full: float
    final: float
    density: float
    bill: Bill | None = None
    trail: Trail = field(default_factory=Trail)

    def allowed(self, progress: float) -> float:
        """The total that may be kept at this point of the training."""
        share = asked(self.schedule, progress)
        if isinstance(self.goal, Latency):
            return self._in_time(share)
        exact = self.full - (self.full - self.final) * share
        return exact if isinstance(self.goal, Flops) else round(exact)

    def _in_time(self, share: float) -> float:
        """The time at the density that a uniform network would have by now.

        Time hardly falls while a dense kernel is the faster one: a total that fell evenly in time would take most of
        the weights at the first step.
        """
        if share == 1.0:
            return self.final
        return _total(self.members, 1.0 - (1.0 - self.density) * share)

    def on(self, model: nn.Module, targets: Sequence[Target]) -> Part:
        """The same part of a copy of the model, whose targets are `copied`."""
        named = {target.name: target for target in targets}
        members = tuple(replace(m, target=named[m.target.name]) for m in self.members)
        bill = None if self.bill is None else self.bill.on(model)
        return replace(self, members=members, bill=bill, trail=Trail())

    def due(self, step: int, total_steps: int) -> bool:
        """Whether it is solved again after this step."""
        every = max(m.settings.every for m in self.members)
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
        return [m.target.transform for m in self.members if isinstance(m.target.transform, Solved)]

    @torch.no_grad()
    def met(self, progress: float) -> bool:
        """Whether the weights in use now cost what is allowed, to the cost of one weight. A bill must be solved."""
        if self.bill is not None:
            return False
        return self.allowed(progress) - max(m.price.most for m in self.members) < self.spent() <= self.allowed(progress)

    def words(self, total: float) -> str:
        """A total in the unit of the goal."""
        return _words(self.goal, total)

    @torch.no_grad()
    def spent(self) -> float:
        """What the weights, or units, in use now cost together, in the unit of the goal."""
        if self.bill is not None:
            return self.bill.now().total([(m.target.effective != 0).flatten().cpu().numpy() for m in self.members])
        return sum(m.price.of(int(torch.count_nonzero(m.target.effective))) for m in self.members)

    def __str__(self) -> str:
        """The same for equal parts in any process, as a checkpoint needs it."""
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


def make_part(
    goal: Goal,
    schedule: Schedule,
    chosen: Sequence[tuple[Target, Method]],
    profile: Profile,
    *,
    other_params: int = 0,
    bill: Bill | None = None,
) -> Part:
    """Check a goal against the tensors that it is for.

    Args:
        goal: the total.
        schedule: how it is approached; at the end of the training it must ask for all of it.
        chosen: the tensors with their methods.
        profile: their costs; what else the network costs belongs to a Flops goal.
        other_params: parameters that are in no part, for goals with ``scope="all"``.
        bill: what the units of these tensors cost, for totals of units that are no count of them.

    Raises:
        ValueError: if the goal cannot be reached, or the floors do not leave room for it.
    """
    if not callable(schedule):
        raise TypeError(f"a schedule is cubic(...), linear(...), constant() or a function, got {schedule!r}")
    if asked(schedule, 1.0) != 1.0:
        raise ValueError(
            f"the schedule asks for {asked(schedule, 1.0):.4g} of the goal at the end of the training, not for all"
        )
    if bill is not None:
        return _billed(goal, schedule, chosen, bill)
    sizes = {target.name: target.shape.numel() for target, _ in chosen}
    if isinstance(goal, Latency):
        goal.table.require({target.name: tuple(target.shape) for target, _ in chosen})
    prices = prices_of(goal, sizes, profile)
    final = allowance(goal, sizes, profile, other_params)
    members = tuple(Member(target, method.goal_settings, prices[target.name], floor=0) for target, method in chosen)
    full = sum(m.price.of(sizes[m.target.name]) for m in members)
    density = final / full
    if isinstance(goal, Latency):
        density = equal_density(partial(_total, members), final)
    members = tuple(replace(m, floor=_floor(m.settings, sizes[m.target.name], density)) for m in members)
    _refuse_floors(goal, members, final)
    if isinstance(schedule, Staircase):
        schedule = schedule.towards(density)
    return Part(goal, schedule, members, full, final, density)


def _billed(goal: Goal, schedule: Schedule, chosen: Sequence[tuple[Target, Method]], bill: Bill) -> Part:
    assert isinstance(goal, Params | Flops)
    final, full = float(goal.macs if isinstance(goal, Flops) else goal.count), bill.full()
    density = equal_density(bill.at_density, final, halvings=20)
    floors = [_floor(method.goal_settings, size, density) for (_, method), size in zip(chosen, bill.sizes, strict=True)]
    require_reachable(goal, bill.least(floors) - 1, high=full)
    if isinstance(schedule, Staircase):
        schedule = schedule.towards(final / full)
    pairs = zip(chosen, floors, strict=True)
    members = tuple(Member(target, method.goal_settings, Price(), floor) for (target, method), floor in pairs)
    return Part(goal, schedule, members, full, final, density, bill)


def _total(members: Sequence[Member], density: float) -> float:
    """What tensors of one density cost."""
    return sum(m.price.of(density * m.target.shape.numel()) for m in members)


def _refuse_floors(goal: Goal, members: Sequence[Member], final: float) -> None:
    least = sum(m.price.of(m.floor) for m in members)
    if least <= final:
        return
    raise ValueError(
        f"{goal} leaves {_words(goal, final)} to keep, but the floors of the {len(members)} tensors (min_keep) take "
        f"{_words(goal, least)}: lower min_keep, or ask for less"
    )


def _words(goal: Goal, total: float) -> str:
    return f"{1e3 * total:,.4f}" if isinstance(goal, Latency) else f"{total:,.0f}"


def _floor(settings: GoalSettings, size: int, density: float) -> int:
    wanted = settings.min_keep or math.ceil(FLOOR_SHARE * density * size)
    return min(size, max(1, wanted))
