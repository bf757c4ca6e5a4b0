"""The plan: what each tensor of a model will get, decided and checked before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from softprune.budget.prunable import prunable_tensors, weight_names
from softprune.core.refusal import Memory, refuse_model, refuse_tensor
from softprune.core.rule import Match, Rule, matches, refuse_unmatched
from softprune.methods.base import Method, Target
from softprune.methods.transforms import SoftThreshold, Transform


@dataclass(frozen=True, eq=False)
class PlannedTensor:
    """One tensor and what becomes of it; `method` and `transform` are None where it is left alone."""

    target: Target
    method: Method | None = None
    transform: Transform | None = None
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Plan:
    """Every candidate tensor of a model, in the order of the modules. Print it to read it."""

    tensors: tuple[PlannedTensor, ...]

    @property
    def managed(self) -> tuple[PlannedTensor, ...]:
        return tuple(t for t in self.tensors if t.method is not None)

    def __str__(self) -> str:
        rows = [("tensor", "shape", "weights", "plan")]
        for planned in self.tensors:
            shape = planned.target.shape
            rows.append((planned.target.name, "x".join(map(str, shape)), f"{shape.numel():,}", _words(planned)))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [
            f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {count:>{widths[2]}}  {words}"
            for name, shape, count, words in rows
        ]
        managed = sum(t.target.shape.numel() for t in self.managed)
        everything = sum(t.target.shape.numel() for t in self.tensors)
        lines.append(
            f"{len(self.managed)} of {len(self.tensors)} tensors managed, {managed:,} of {everything:,} weights"
        )
        return "\n".join(lines)


def _words(planned: PlannedTensor) -> str:
    if planned.method is None:
        return f"left alone: {planned.reason}"
    transform, also = planned.transform, ""
    if len(planned.target.sites) > 1:
        also = f", used at {len(planned.target.sites)} places"
    if isinstance(transform, SoftThreshold):
        count = transform.s.numel()
        which = "one threshold" if count == 1 else f"{count:,} thresholds"
        # On the meta device s has no value yet; the method knows where it will start.
        on_meta = transform.s.device.type == "meta"
        s = getattr(planned.method, "s_init", float("nan")) if on_meta else float(transform.s.detach().flatten()[0])
        return f"{which}, s = {s:g}, g = {transform.g}{also}"
    return f"{type(planned.method).__name__}{also}"


def plan(model: nn.Module, method: Method, *, skip: Match | Iterable[Match] = (), rules: Sequence[Rule] = ()) -> Plan:
    """Decide what `sparsify` would do, check all of it, and change nothing.

    Args:
        model: any module.
        method: what every managed tensor gets unless a rule says otherwise.
        skip: matches of tensors to leave alone; stronger than any rule.
        rules: settings for some of the tensors, applied in order.

    Raises:
        ValueError: for an input that cannot work, naming the tensor, the reason and the way out.

    >>> print(plan(nn.Linear(4, 2), STR()))  # doctest: +SKIP
    """
    model = refuse_model(model)
    skips: list[Match] = [skip] if isinstance(skip, str | re.Pattern) or callable(skip) else list(skip)
    sites = _sites(model)
    planned = _decide(model, method, skips, list(rules), sites)
    chosen = [p for p in planned if p.method is not None]
    if not chosen:
        reasons = "; ".join(f"{p.target.name}: {p.reason}" for p in planned) or "it has no weight tensors"
        raise ValueError(f"nothing to sparsify in {type(model).__name__}: {reasons}")
    memory = Memory(model)
    for p in chosen:
        refuse_tensor(p.target, memory)
    methods = {p.target.name: p.method for p in chosen if p.method is not None}
    built = {p.target.name: methods[p.target.name].transform(p.target) for p in chosen}
    method.link(built, methods)
    return Plan(
        tuple(PlannedTensor(p.target, p.method, built[p.target.name]) if p.target.name in built else p for p in planned)
    )


def _sites(model: nn.Module) -> dict[int, list[tuple[str, nn.Module, str]]]:
    """id of a Parameter -> every (name, module, attribute) that reads it; several where weights are tied."""
    sites: dict[int, list[tuple[str, nn.Module, str]]] = {}
    for path, module in model.named_modules():
        for tensor, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{path}.{tensor}" if path else tensor
                sites.setdefault(id(parameter), []).append((name, module, tensor))
    return sites


def _decide(
    model: nn.Module,
    method: Method,
    skips: list[Match],
    rules: list[Rule],
    sites: dict[int, list[tuple[str, nn.Module, str]]],
) -> list[PlannedTensor]:
    default = {t.name for t in prunable_tensors(model)} | {name for name, _, _ in _computed_weights(model)}
    unmatched: list[Match] = [*skips, *(r.match for r in rules)]
    decided: list[PlannedTensor] = []
    candidates = []
    for places in _all_places(model, sites):
        names = [name for name, _, _ in places]
        chosen = [r for r in rules if any(r.matches(name, module) for name, module, _ in places)]
        hit = [m for m in skips if any(matches(m, name, module) for name, module, _ in places)]
        wanted = bool(default & set(names)) or any(_takes_in(r, places) for r in chosen)
        if not wanted:
            continue
        candidates.extend(names)
        unmatched = [m for m in unmatched if not any(m is r.match for r in chosen) and not any(m is h for h in hit)]
        target = Target(names[0], tuple((module, tensor) for _, module, tensor in places))
        decided.append(_judge(target, method, chosen, skipped=bool(hit)))
    if unmatched:
        refuse_unmatched(unmatched[0], candidates)
    return decided


def _takes_in(rule: Rule, places: list[tuple[str, nn.Module, str]]) -> bool:
    """Whether a rule manages a tensor that is not managed by default.

    Said of a layer as a whole, by its path or type, ``skip=False`` means its weights; its bias must be named.
    """
    if rule.skip is not False:
        return False
    by_name = isinstance(rule.match, str) and any(fnmatchcase(name, rule.match) for name, _, _ in places)
    whole = isinstance(rule.match, str | type) and not by_name
    return any(rule.matches(name, module) and not (whole and weight_names(module)) for name, module, _ in places)


def _all_places(
    model: nn.Module, sites: dict[int, list[tuple[str, nn.Module, str]]]
) -> Iterable[list[tuple[str, nn.Module, str]]]:
    """The places of every plain Parameter, and of every weight that is none (to refuse it by name)."""
    yield from (places for places in sites.values() if ".parametrizations." not in f".{places[0][0]}")
    yield from ([place] for place in _computed_weights(model))


def _computed_weights(model: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Weights that are not Parameters of their module: parametrized, pruned by torch, normalised by hooks."""
    return [
        (f"{path}.{tensor}" if path else tensor, module, tensor)
        for path, module in model.named_modules()
        for tensor in weight_names(module)
        if tensor not in module._parameters
    ]


def _judge(target: Target, method: Method, rules: list[Rule], *, skipped: bool) -> PlannedTensor:
    skip = None
    for rule in rules:
        method = rule.refine(method)
        skip = rule.skip if rule.skip is not None else skip
    if skipped or skip:
        return PlannedTensor(target, reason="skipped")
    if target.managed:
        return PlannedTensor(target, method)
    raw = target.raw
    if not isinstance(raw, nn.UninitializedParameter) and not raw.requires_grad and skip is None:
        return PlannedTensor(target, reason="frozen (requires_grad is False)")
    if raw.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return PlannedTensor(target, reason=f"dtype {raw.dtype}")
    return PlannedTensor(target, method)
