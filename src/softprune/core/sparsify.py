"""The entry: put a method on a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost
from softprune.budget.profiler import profile, prunable_tensors
from softprune.budget.units import USUAL, Units, unit_words
from softprune.core.bake import remove
from softprune.core.parametrization import register
from softprune.core.plan import Plan, PlannedTensor, checked_goals, plan
from softprune.core.refusal import refuse_model
from softprune.core.rule import Match, Rule
from softprune.core.sparsifier import Sparsifier
from softprune.goals.base import Goal
from softprune.goals.constraint import Part, make_part
from softprune.goals.goal import Rank
from softprune.goals.schedule import Schedule
from softprune.methods.base import Method
from softprune.methods.registry import from_config
from softprune.structure.gates import gated, gates_on
from softprune.structure.kinds import JointCostOf, unit_kind


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
        skip: tensors to leave alone: globs, regular expressions, module types, predicates on (name, module).
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
    if gated(inner):
        raise ValueError("this model has gates from an earlier sparsify: bake() or remove() it first")
    goals, kind = checked_goals(goal, rules), unit_kind(units)
    kind.check(inner, goals, method, example)
    gates = kind.gates(inner, example)
    joint_cost = kind.joint_cost(inner, goals, gates, example)
    with gates_on(inner, gates):
        decided = plan(inner, method, goal=goal, budget=budget, skip=skip, rules=rules, units=units, seed=seed)
        managed = decided.managed
        costs = _costs(inner, managed, example if unit_words(units.kind).costed else None)
        # Budgets and ranks say how many units of each tensor stay; only totals have a joint cost.
        totals = budget is None and all(one.shared for one in goals)
        parts = _parts(inner, method, decided, schedule, costs, joint_cost if totals else None)
    for planned in managed:
        assert planned.transform is not None
        planned.transform.train(planned.target.module.training)
        for module, tensor in planned.target.sites:
            register(module, tensor, planned.transform)
    try:
        sparsifier = Sparsifier(inner, method, decided, costs, parts, units=units, seed=seed)
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


def _parts(
    model: nn.Module,
    method: Method,
    decided: Plan,
    schedule: Schedule | None,
    costs: Profile,
    joint_cost: JointCostOf | None,
) -> tuple[Part, ...]:
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
    parts = []
    for number, goal in enumerate(decided.goals):
        chosen = [(p.target, p.method) for p in managed if p.goal_of == number and p.method is not None]
        if not chosen:
            raise ValueError(f"{goal} is for no tensor: later rules, or skip, took all of them")
        targets = [target for target, _ in chosen]
        rest = [p.target for p in managed if p.goal_of not in (None, number)]
        joint = None if joint_cost is None else joint_cost(goal, targets, rest)
        way = schedule or chosen[0][1].goal_settings.schedule
        parts.append(make_part(goal, way, chosen, costs, other_params=others, joint=joint))
    return tuple(parts)


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
