"""Plan, then execute: what each tensor of a model will get, decided and checked, and then put on the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost
from softprune.budget.profiler import profile, prunable_tensors
from softprune.budget.units import KINDS, USUAL, Units
from softprune.core.bake import remove
from softprune.core.candidates import (
    PlannedTensor,
    byte_ranges,
    choose,
    divide,
    first_masks,
    refuse_model,
    refuse_tensor,
    refuse_total,
    refuse_unfilled,
)
from softprune.core.parametrization import register
from softprune.core.rule import Match, Rule
from softprune.core.sparsifier import Sparsifier
from softprune.goals.base import Goal, Schedule
from softprune.goals.constraint import Constraint, make_constraint
from softprune.goals.goal import Params, Rank, checked_goal
from softprune.goals.select import keep_largest
from softprune.methods.base import Context, Method, Total, from_config
from softprune.methods.transforms import SoftThreshold, Solved
from softprune.structure.gates import Importance, gates_on
from softprune.structure.kinds import JointCostOf, unit_kind


@dataclass(frozen=True, eq=False)
class Plan:
    """Every candidate tensor of a model, in the order of the modules. Print it to read it."""

    tensors: tuple[PlannedTensor, ...]
    goals: tuple[Goal, ...] = ()  # met by solving for thresholds
    shared: bool = False  # whether masks were given a total for all tensors
    counts: str = "weights"  # what the tensors hold, in words

    @property
    def managed(self) -> tuple[PlannedTensor, ...]:
        return tuple(t for t in self.tensors if t.method is not None)

    def contexts(self, model: nn.Module, seed: int) -> dict[Method, Context]:
        """What each method that rules have made works with, in the order of its first tensor."""
        contexts: dict[Method, Context] = {}
        for planned in self.managed:
            assert planned.method is not None
            new = Context(0, 1, [], (), {}, self.shared, seed, keep_largest=keep_largest, model=model)
            context = contexts.setdefault(planned.method, new)
            context.targets = [*context.targets, planned.target]
            if planned.kept is not None:
                context.kept = {**context.kept, planned.target.name: planned.kept}
        return contexts

    def __str__(self) -> str:
        rows = [("tensor", "shape", self.counts, "plan")]
        for p in self.tensors:
            shape = p.target.shape
            rows.append((p.target.name, "x".join(map(str, shape)), f"{shape.numel():,}", _words(p, self.goals)))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [
            f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {count:>{widths[2]}}  {words}"
            for name, shape, count, words in rows
        ]
        managed = sum(t.target.shape.numel() for t in self.managed)
        everything = sum(t.target.shape.numel() for t in self.tensors)
        lines.append(
            f"{len(self.managed)} of {len(self.tensors)} tensors managed, {managed:,} of {everything:,} {self.counts}"
        )
        return "\n".join(lines)


def _words(planned: PlannedTensor, goals: Sequence[Goal]) -> str:
    if planned.method is None:
        return f"left alone: {planned.reason}"
    transform, also = planned.transform, ""
    if len(planned.target.sites) > 1:
        also = f", used at {len(planned.target.sites)} places"
    if isinstance(transform, Solved):
        count = transform.s.numel()
        which = "a share" if count == 1 else f"{count:,} shares"
        return f"{which} of {goals[planned.goal_of or 0]}{also}"
    if isinstance(transform, SoftThreshold):
        count = transform.s.numel()
        which = "one threshold" if count == 1 else f"{count:,} thresholds"
        # On the meta device s has no value yet; the method knows where it will start.
        on_meta = transform.s.device.type == "meta"
        s = getattr(planned.method, "s_init", float("nan")) if on_meta else float(transform.s.detach().flatten()[0])
        return f"{which}, s = {s:g}, g = {transform.g}{also}"
    kept = "" if planned.kept is None else f", keeps {planned.kept:,}"
    return f"{type(planned.method).__name__}{kept}{also}"


def plan(
    model: nn.Module,
    method: Method,
    *,
    goal: Goal | Rank | None = None,
    budget: Budget | None = None,
    skip: Match | Iterable[Match] = (),
    rules: Sequence[Rule] = (),
    units: Units = Units.weight,
    seed: int = 0,
) -> Plan:
    """Decide what `sparsify` would do, check all of it, and change nothing.

    It takes what `sparsify` takes; filters and blocks must have their gates already.

    Raises:
        ValueError: for an input that cannot work, naming the tensor, the reason and the way out.

    >>> print(plan(nn.Linear(4, 2), STR()))  # doctest: +SKIP
    """
    model = refuse_model(model)
    own = [r for r in rules if r.goal is not None]
    goals = checked_goals(goal, own)
    for given in goals:
        given.check_units(units, example=True)
    candidates = choose(model, skip, rules, units)
    planned = [p if p.reason else replace(p, method=_refined(method, p.rules)) for p in candidates]
    # What each tensor keeps is said, and no total is to be shared.
    said = [*([] if budget is None else ["a budget"]), *(str(given) for given in goals if not given.shared)]
    if said and len(said) + sum(given.shared for given in goals) > 1:
        raise ValueError(f"{said[-1]} says what each tensor keeps, a goal what all of them keep together: give one")
    if budget is not None:
        planned, goals = _with_budget(planned, budget)
    elif said:
        planned, goals = _with_each(planned, goals[0])
    elif goals:
        planned = [_with_goal(p, own, general=goal is not None) for p in planned]
    chosen = [p for p in planned if p.method is not None]
    if not chosen:
        reasons = "; ".join(f"{p.target.name}: {p.reason}" for p in planned) or "it has no weight tensors"
        raise ValueError(f"nothing to sparsify in {type(model).__name__}: {reasons}")
    ranges = byte_ranges(model)
    for p in chosen:
        refuse_tensor(p.target, ranges)
    methods = {p.target.name: p.method for p in chosen if p.method is not None}
    total: Total = "budget" if said else "goal" if goals else "none"
    for one in dict.fromkeys(methods.values()):
        refuse_total(one, total)
    if method.moves_masks:
        decided = _with_masks(planned, methods, goals, total, seed=seed)
    else:
        built = {p.target.name: methods[p.target.name].transform(p.target, total, None) for p in chosen}
        decided = Plan(tuple(replace(p, transform=built.get(p.target.name)) for p in planned), tuple(goals))
    for p in decided.managed:
        refuse_unfilled(p.target, p.transform)
    method.link(model, {p.target.name: p.transform for p in decided.managed if p.transform is not None}, methods)
    return replace(decided, counts=f"{KINDS[units.kind].noun}s")


def checked_goals(goal: Goal | None, rules: Sequence[Rule]) -> list[Goal]:
    """The goals of rules, which are totals, and the one for all the rest."""
    own = [checked_goal(rule.goal) for rule in rules if rule.goal is not None]
    return own if goal is None else [*own, checked_goal(goal, total=False)]


def _with_masks(
    planned: list[PlannedTensor], methods: dict[str, Method], goals: list[Goal], total: Total, *, seed: int
) -> Plan:
    """Masks to begin with, for methods that move them: one total is divided equally, a budget says it all."""
    targets = {p.target.name: p.target for p in planned if p.method is not None}
    if total == "budget":
        each = {p.target: goals[p.goal_of] for p in planned if p.goal_of is not None}
        kept = {target.name: goal.number(target.shape.numel()) for target, goal in each.items()}
    elif len(goals) > 1:
        raise ValueError("masks that move between tensors share one total: give one goal, and none in rules")
    else:
        kept = divide(goals[0], {name: target.shape.numel() for name, target in targets.items()})
    made = first_masks(targets, methods, kept, total, seed)
    done = [replace(p, transform=made.get(p.target.name), kept=kept.get(p.target.name), goal_of=None) for p in planned]
    return Plan(tuple(done), shared=total == "goal")


def _refined(method: Method, rules: Sequence[Rule]) -> Method:
    for rule in rules:
        method = rule.refine(method)
    return method


def _with_goal(planned: PlannedTensor, own: list[Rule], *, general: bool) -> PlannedTensor:
    """The goal of the last rule that names one for this tensor, else the one for all the rest."""
    if planned.method is None:
        return planned
    hits = [number for number, rule in enumerate(own) if any(rule is r for r in planned.rules)]
    if not hits and not general:
        return PlannedTensor(planned.target, reason="no goal is for it")
    return replace(planned, goal_of=hits[-1] if hits else len(own))


def _with_budget(planned: list[PlannedTensor], budget: Budget) -> tuple[list[PlannedTensor], list[Goal]]:
    managed = {p.target.name: p for p in planned if p.method is not None}
    strange = sorted(set(budget) - {p.target.name for p in planned})
    if strange:
        raise ValueError(f"the budget has tensors that this model has not: {', '.join(strange[:5])}")
    missing = sorted(set(managed) - set(budget))
    if missing:
        raise ValueError(f"the budget says nothing of {', '.join(missing[:5])}: skip them, or add them to it")
    goals: list[Goal] = []
    for name, one in managed.items():
        size = one.target.shape.numel()
        kept = round(budget[name] * size)
        if not 1 <= kept <= size:
            raise ValueError(
                f"the budget keeps {budget[name]:.4g} of {name}, {kept} of its {size:,} weights: give it 1 or more"
            )
        managed[name] = replace(one, goal_of=len(goals))
        goals.append(Params(kept))
    return [managed.get(p.target.name, p) for p in planned], goals


def _with_each(planned: list[PlannedTensor], goal: Goal) -> tuple[list[PlannedTensor], list[Goal]]:
    """A goal of its own for every tensor of which the goal says what it keeps; the others are left alone."""
    kept = goal.kept_by_each({p.target.name: p.target.shape.numel() for p in planned if p.method is not None})
    goals: list[Goal] = []
    decided = []
    for p in planned:
        if p.target.name in kept:
            p = replace(p, goal_of=len(goals))
            goals.append(Params(kept[p.target.name]))
        elif p.method is not None:
            p = PlannedTensor(p.target, reason=f"no {goal.key} is given for it")
        decided.append(p)
    return decided, goals


# Putting it on the model.


def sparsify(
    model: nn.Module,
    method: Method,
    *,
    goal: Goal | Rank | None = None,
    budget: Budget | None = None,
    schedule: Schedule | None = None,
    units: Units = Units.weight,
    skip: Match | Iterable[Match] = (),
    rules: Sequence[Rule] = (),
    example: Any = None,
    seed: int = 0,
) -> Sparsifier:
    """Put a method on the weights of any model, in place.

    The model keeps its modules, its Parameter objects and its forward. Every managed weight now reads as the
    method's transform of the raw one. Everything is checked before the first change.

    Args:
        model: any module; wrap it (DistributedDataParallel, fully_shard, torch.compile) afterwards.
        method: such as `STR(s_init=-3200)`.
        goal: the total that training shall end with, exactly: `Sparsity(0.95)`, `Params(500_000)`, `Flops(40e6)`
            (which needs `example`), or `Latency(3.5, table)` in milliseconds. A rule may give its tensors a goal of
            their own. `Rank(w=9, u=8)` is for directions of low-rank layers, with `units=Units.rank`.
        budget: instead of a goal, the density that each managed tensor shall end with: `uniform(...)`, `erk(...)`, one
            from a file, or one that another training has learnt.
        schedule: how the goal or the budget is approached; what the method proposes by default, for most of them
            `cubic(begin=0.1, end=0.7)` of the training.
        units: what is kept or pruned as a whole: single weights, `Units.filter` (output channels; needs `example`),
            `Units.block(rows, cols)`, or `Units.rank` (directions of low-rank layers that learn their rank). Units
            other than weights have an importance each. Their goal is a Sparsity, the share of units to prune,
            `Filters(n)`, or a total of `Params(n)` or `Flops(n)` that is left once dead units are taken out.
        skip: tensors to leave alone: globs, regular expressions, module types, predicates on (name, module). Stronger
            than any rule.
        rules: settings for some tensors, applied in order.
        example: an input (or a tuple or dict of inputs) of batch size one; with it budgets know their MACs.
        seed: of what a method draws at random; the same on every process.

    Returns:
        The handle to attach optimizers to, to measure and to bake.

    Raises:
        ValueError: for input that cannot work; the model is untouched then.
    """
    inner = refuse_model(model)
    if budget is not None and budget.units not in (USUAL, units.text):
        raise ValueError(f"the budget counts units of another kind: it has {budget.units}, here they are {units.text}")
    if any(isinstance(module, Importance) for module in inner.modules()):
        raise ValueError("this model has gates from an earlier sparsify: bake() or remove() it first")
    goals, kind = checked_goals(goal, rules), unit_kind(units)
    kind.check(inner, goals, method, example)
    gates = kind.gates(inner, example)
    joint_cost = kind.joint_cost(inner, goals, gates, example)
    with gates_on(inner, gates) if gates else nullcontext():
        decided = plan(inner, method, goal=goal, budget=budget, skip=skip, rules=rules, units=units, seed=seed)
        managed = decided.managed
        costs = _costs(inner, managed, example if KINDS[units.kind].costed else None)
        # Budgets and ranks say how many units of each tensor stay; only totals have a joint cost.
        totals = budget is None and all(one.shared for one in goals)
        constraints = _constraints(inner, method, decided, schedule, costs, joint_cost if totals else None)
    for planned in managed:
        assert planned.transform is not None
        planned.transform.train(planned.target.module.training)
        for module, tensor in planned.target.sites:
            register(module, tensor, planned.transform)
    try:
        sparsifier = Sparsifier(inner, method, decided, costs, constraints, units=units, seed=seed)
        # Weights on the meta device have no values yet; `attach` solves once they have.
        if not any(target.raw.device.type == "meta" for target in sparsifier.targets):
            sparsifier.solve()
        return sparsifier
    except BaseException:
        remove(inner)
        raise


def _costs(model: nn.Module, managed: Sequence[PlannedTensor], example: Any) -> Profile:
    if example is not None:
        return profile(model, example, tensors=[p.target.name for p in managed])
    return Profile(tuple(TensorCost(p.target.name, tuple(p.target.raw.shape), macs=0) for p in managed), counted=False)


def _constraints(
    model: nn.Module,
    method: Method,
    decided: Plan,
    schedule: Schedule | None,
    costs: Profile,
    joint_cost: JointCostOf | None,
) -> tuple[Constraint, ...]:
    if not decided.goals:
        if schedule is not None:
            if method.moves_masks:
                raise ValueError(f"{type(method).__name__} is sparse from the first step on: leave out the schedule")
            raise ValueError("a schedule is for a goal or a budget: name one, as in goal=Sparsity(0.9)")
        return ()
    if schedule is not None and method.goal_settings.rounds > 1:
        raise ValueError(f"{type(method).__name__} prunes between its rounds: leave out the schedule")
    managed = decided.managed
    counted = sum(p.target.shape.numel() for p in managed)
    others = sum(p.numel() for p in model.parameters()) - counted
    constraints = []
    for number, goal in enumerate(decided.goals):
        chosen = [(p.target, p.method) for p in managed if p.goal_of == number and p.method is not None]
        if not chosen:
            raise ValueError(f"{goal} is for no tensor: later rules, or skip, took all of them")
        targets = [target for target, _ in chosen]
        rest = [p.target for p in managed if p.goal_of not in (None, number)]
        joint = None if joint_cost is None else joint_cost(goal, targets, rest)
        way = schedule or chosen[0][1].goal_settings.schedule
        constraints.append(make_constraint(goal, way, chosen, costs, other_params=others, joint=joint))
    return tuple(constraints)


# Training on with the zeros that a model already has.


def freeze_support(model: nn.Module) -> Sparsifier:
    """Keep every zero of the model's weights at zero while the others train, in one line.

    For a sparse checkpoint of any origin: load it, call this, fine-tune as usual. No optimizer needs to be attached.
    `bake()` on the result gives the plain module back.

    Raises:
        ValueError: if there is no zero to keep.
    """
    model = refuse_model(model)
    with_zeros = {t.name for t in prunable_tensors(model) if bool((t.parameter == 0).any())}
    if not with_zeros:
        raise ValueError(
            f"{type(model).__name__} has no zero in its weights, so there is no support to keep: "
            "load the sparse checkpoint first"
        )
    return sparsify(
        model,
        from_config({"method": "keep-zeros"}),
        skip=[t.name for t in prunable_tensors(model) if t.name not in with_zeros],
    )
