"""The choice: which tensors of a model are managed, whatever the method, and which rules speak of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from torch import nn

from softprune.budget.budget import Budget
from softprune.budget.profiler import weight_names
from softprune.budget.units import Units, noun
from softprune.core.refusal import byte_ranges, refuse_model, refuse_tensor, refuse_unfilled
from softprune.core.rule import Match, Rule, matches, refuse_unmatched
from softprune.goals.base import Goal
from softprune.goals.goal import Params, Rank, checked_goal
from softprune.methods.base import Method, Total, generator
from softprune.methods.masks import share_out
from softprune.methods.transforms import SoftThreshold, Solved, Target, Transform
from softprune.ops import at_random
from softprune.structure.gates import IMPORTANCE, VECTOR, Importance
from softprune.structure.kinds import Place, unit_kind


@dataclass(frozen=True, eq=False)
class Choice:
    """One candidate.

    Args:
        target: the tensor.
        rules: those that match it at any of its places, in their order.
        reason: why it is left alone; empty if it is managed.
    """

    target: Target
    rules: tuple[Rule, ...]
    reason: str = ""


def choose(
    model: nn.Module, skip: Match | Iterable[Match], rules: Sequence[Rule], units: Units = Units.weight
) -> list[Choice]:
    """Every candidate of a model, in the order of the modules.

    Args:
        model: any; with gates where the units are filters or blocks.
        skip: matches of tensors to leave alone.
        rules: settings for some of the tensors.
        units: whose weights, or importances, are candidates.

    Raises:
        ValueError: for a rule, or a skip, that matches no candidate.
    """
    skips: list[Match] = [skip] if isinstance(skip, str | re.Pattern) or callable(skip) else list(skip)
    kind = unit_kind(units)
    default = kind.managed(model)
    unmatched: list[Match] = [*skips, *(r.match for r in rules)]
    chosen: list[Choice] = []
    candidates = []
    for places in _all_places(model, kind.computed(model)):
        names = [name for name, _, _ in places]
        known = [*places, *_layers_of(model, places)]
        heard = [r for r in rules if any(r.matches(name, module) for name, module, _ in known)]
        hit = [m for m in skips if any(matches(m, name, module) for name, module, _ in known)]
        wanted = bool(default & set(names)) or any(_takes_in(r, places) for r in heard)
        if not wanted:
            continue
        candidates.extend(names)
        unmatched = [m for m in unmatched if not any(m is r.match for r in heard) and not any(m is h for h in hit)]
        target = Target(names[0], tuple((module, tensor) for _, module, tensor in places))
        chosen.append(Choice(target, tuple(heard), _reason(target, heard, skipped=bool(hit))))
    if unmatched:
        refuse_unmatched(unmatched[0], candidates)
    return chosen


def managed_names(model: nn.Module, *, skip: Match | Iterable[Match] = (), rules: Sequence[Rule] = ()) -> list[str]:
    """The tensors that would be managed, whatever the method: those that a budget must name."""
    return [c.target.name for c in choose(model, skip, rules) if not c.reason]


def _reason(target: Target, rules: Sequence[Rule], *, skipped: bool) -> str:
    skip = next((r.skip for r in reversed(rules) if r.skip is not None), None)
    if skipped or skip:
        return "skipped"
    if target.managed:
        return ""
    raw = target.raw
    if not isinstance(raw, nn.UninitializedParameter) and not raw.requires_grad and skip is None:
        return "frozen (requires_grad is False)"
    if raw.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return f"dtype {raw.dtype}"
    return ""


def _takes_in(rule: Rule, places: list[Place]) -> bool:
    """Whether a rule manages a tensor that is not managed by default.

    Said of a layer as a whole, by its path or type, ``skip=False`` means its weights; its bias must be named.
    """
    if rule.skip is not False:
        return False
    by_name = isinstance(rule.match, str) and any(fnmatchcase(name, rule.match) for name, _, _ in places)
    whole = isinstance(rule.match, str | type) and not by_name
    return any(rule.matches(name, module) and not (whole and weight_names(module)) for name, module, _ in places)


def _all_places(model: nn.Module, computed: list[Place]) -> Iterable[list[Place]]:
    """The places of every plain Parameter, and of every computed weight (to refuse it by name)."""
    sites: dict[int, list[Place]] = {}  # several places where weights are tied
    for path, module in model.named_modules():
        for tensor, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{path}.{tensor}" if path else tensor
                sites.setdefault(id(parameter), []).append((name, module, tensor))
    yield from (places for places in sites.values() if ".parametrizations." not in f".{places[0][0]}")
    yield from ([place] for place in computed)


def _layers_of(model: nn.Module, places: list[Place]) -> list[Place]:
    """The weights that an importance acts on: to a user the rule for a layer is about its units."""
    suffix = f".{IMPORTANCE}.{VECTOR}"
    # With a dot in front also where the model is itself the layer.
    paths = [f".{name}".removesuffix(suffix)[1:] for name, module, _ in places if isinstance(module, Importance)]
    return [(f"{path}.weight" if path else "weight", model.get_submodule(path), "weight") for path in paths]


# What a method accepts as its total, and how a total is divided over tensors to begin with.


def refuse_total(method: Method, total: Total) -> None:
    """Raise if the method cannot work with what it is given, and say with what it can."""
    if total in method.accepts:
        return
    name = type(method).__name__
    if method.accepts == ("none",):
        raise ValueError(f"{name} takes neither a goal nor a budget: leave it out")
    ways = {
        "none": "leave it out",
        "goal": "pass a goal, as in goal=Sparsity(0.9)",
        "budget": "pass a budget, as in budget=erk(softprune.profile(model, example), Sparsity(0.9))",
    }
    has = {
        "none": f"{name} prunes to a total and got none",
        "goal": f"{name} keeps what each tensor is given and cannot share a goal out",
        "budget": f"{name} finds out by itself what each tensor keeps and takes no budget",
    }
    raise ValueError(f"{has[total]}: {' or '.join(ways[way] for way in method.accepts)}")


def divide(goal: Goal, sizes: Mapping[str, int]) -> dict[str, int]:
    """A total in equal proportions: whole weights, at least one for each tensor, and the sum is exact.

    >>> from softprune import Params
    >>> divide(Params(5), {"a": 10, "b": 20, "c": 3})
    {'a': 1, 'b': 3, 'c': 1}
    """
    total = goal.number(sum(sizes.values()))
    if total < len(sizes):
        raise ValueError(f"{goal} keeps {total} weights, fewer than the {len(sizes)} tensors: ask for less sparsity")
    kept = {name: max(1, share) for name, share in share_out(total, sizes, sizes).items()}
    # Where the least of one has taken too many, the largest give.
    while sum(kept.values()) > total:
        kept[max(kept, key=lambda n: kept[n])] -= 1
    return kept


def first_masks(
    targets: Mapping[str, Target], methods: Mapping[str, Method], kept: Mapping[str, int], total: Total, seed: int
) -> dict[str, Transform]:
    """The masks that training begins with."""
    made: dict[str, Transform] = {}
    for name, target in targets.items():
        if target.raw.device == torch.device("meta"):
            raise ValueError(f"{name} is on the meta device and has no weights to choose from: load the weights first")
        everywhere = torch.ones_like(target.raw, dtype=torch.bool)
        mask = at_random(everywhere, kept[name], generator(seed, 0, name))
        made[name] = methods[name].transform(target, total, mask)
    return made


# The plan: what each tensor of a model will get, decided and checked before anything is touched.


@dataclass(frozen=True, eq=False)
class PlannedTensor:
    """One tensor and what becomes of it; `method` and `transform` are None where it is left alone.

    `rules` are those that speak of it, `goal_of` is the place of its goal in `Plan.goals`, `kept` is the number of
    weights that a mask of its own begins with.
    """

    target: Target
    method: Method | None = None
    transform: Transform | None = None
    reason: str = ""
    rules: tuple[Rule, ...] = ()
    goal_of: int | None = None
    kept: int | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """Every candidate tensor of a model, in the order of the modules. Print it to read it.

    `goals` are met by solving for thresholds; `shared` says whether masks were given a total for all tensors; `counts`
    is what the tensors hold, in words.
    """

    tensors: tuple[PlannedTensor, ...]
    goals: tuple[Goal, ...] = ()
    shared: bool = False
    counts: str = "weights"

    @property
    def managed(self) -> tuple[PlannedTensor, ...]:
        return tuple(t for t in self.tensors if t.method is not None)

    def __str__(self) -> str:
        rows = [("tensor", "shape", self.counts, "plan")]
        for planned in self.tensors:
            shape = planned.target.shape
            rows.append(
                (planned.target.name, "x".join(map(str, shape)), f"{shape.numel():,}", _words(planned, self.goals))
            )
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

    Args:
        model: any module.
        method: what every managed tensor gets unless a rule says otherwise.
        goal: the total for all tensors that no rule gives another one, or the rank of each layer.
        budget: instead of a goal, what each managed tensor shall keep.
        skip: matches of tensors to leave alone; stronger than any rule.
        rules: settings for some of the tensors, applied in order.
        units: what is kept or pruned as a whole; filters and blocks must have their gates already.
        seed: of masks that are drawn at random.

    Raises:
        ValueError: for an input that cannot work, naming the tensor, the reason and the way out.

    >>> print(plan(nn.Linear(4, 2), STR()))  # doctest: +SKIP
    """
    model = refuse_model(model)
    own = [r for r in rules if r.goal is not None]
    goals = checked_goals(goal, own)
    for given in goals:
        given.check_units(units, example=True)
    planned = [_planned(c, method) for c in choose(model, skip, rules, units)]
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
        decided = _with_transforms(planned, methods, goals, total)
    for p in decided.managed:
        refuse_unfilled(p.target, p.transform)
    method.link(model, {p.target.name: p.transform for p in decided.managed if p.transform is not None}, methods)
    return replace(decided, counts=noun(units.text))


def checked_goals(goal: Goal | None, rules: Sequence[Rule]) -> list[Goal]:
    """The goals of rules, which are totals, and the one for all the rest."""
    own = [checked_goal(rule.goal) for rule in rules if rule.goal is not None]
    return own if goal is None else [*own, checked_goal(goal, total=False)]


def _with_transforms(planned: list[PlannedTensor], methods: dict[str, Method], goals: list[Goal], total: Total) -> Plan:
    targets = [p.target for p in planned if p.method is not None]
    built = {t.name: methods[t.name].transform(t, total, None) for t in targets}
    return Plan(
        tuple(replace(p, transform=built[p.target.name]) if p.target.name in built else p for p in planned),
        tuple(goals),
    )


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


def _planned(choice: Choice, method: Method) -> PlannedTensor:
    if choice.reason:
        return PlannedTensor(choice.target, reason=choice.reason)
    for rule in choice.rules:
        method = rule.refine(method)
    return PlannedTensor(choice.target, method, rules=choice.rules)


def _with_goal(planned: PlannedTensor, own: list[Rule], *, general: bool) -> PlannedTensor:
    """The goal of the last rule that names one for this tensor, else the one for all the rest."""
    if planned.method is None:
        return planned
    hits = [number for number, rule in enumerate(own) if any(rule is r for r in planned.rules)]
    if hits:
        return replace(planned, goal_of=hits[-1])
    if not general:
        return PlannedTensor(planned.target, reason="no goal is for it")
    return replace(planned, goal_of=len(own))


def _with_budget(planned: list[PlannedTensor], budget: Budget) -> tuple[list[PlannedTensor], list[Goal]]:
    """A goal of its own for every managed tensor."""
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
