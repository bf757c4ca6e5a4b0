"""The choice: which tensors of a model are managed, whatever the method, and which rules speak of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch
from torch import nn

from softprune.budget.prunable import prunable_tensors, weight_names
from softprune.core.gate import IMPORTANCE, VECTOR, Importance, importances
from softprune.core.rule import Match, Rule, matches, refuse_unmatched
from softprune.methods.base import Target
from softprune.ops.units import Units

# Where a tensor is read: its name there, the module, the attribute.
Place: TypeAlias = tuple[str, nn.Module, str]


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
    if units.kind == "weight":
        default = {t.name for t in prunable_tensors(model)} | {name for name, _, _ in _computed_weights(model)}
    else:
        default = set(importances(model, units))
    unmatched: list[Match] = [*skips, *(r.match for r in rules)]
    chosen: list[Choice] = []
    candidates = []
    for places in _all_places(model, computed=units.kind == "weight"):
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


def _all_places(model: nn.Module, *, computed: bool) -> Iterable[list[Place]]:
    """The places of every plain Parameter, and of every weight that is none (to refuse it by name)."""
    sites: dict[int, list[Place]] = {}  # several places where weights are tied
    for path, module in model.named_modules():
        for tensor, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{path}.{tensor}" if path else tensor
                sites.setdefault(id(parameter), []).append((name, module, tensor))
    yield from (places for places in sites.values() if ".parametrizations." not in f".{places[0][0]}")
    if computed:
        yield from ([place] for place in _computed_weights(model))


def _layers_of(model: nn.Module, places: list[Place]) -> list[Place]:
    """The weights that an importance acts on: to a user the rule for a layer is about its units."""
    suffix = f".{IMPORTANCE}.{VECTOR}"
    # With a dot in front also where the model is itself the layer.
    paths = [f".{name}".removesuffix(suffix)[1:] for name, module, _ in places if isinstance(module, Importance)]
    return [(f"{path}.weight" if path else "weight", model.get_submodule(path), "weight") for path in paths]


def _computed_weights(model: nn.Module) -> list[Place]:
    """Weights that are not Parameters of their module: parametrized, pruned by torch, normalised by hooks."""
    return [
        (f"{path}.{tensor}" if path else tensor, module, tensor)
        for path, module in model.named_modules()
        for tensor in weight_names(module)
        if tensor not in module._parameters
    ]
