"""The candidates: which tensors of a model are managed, what cannot work, and the masks that a total begins with.

What cannot work is refused by name with a way out, before anything is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from softprune.budget.profiler import weight_names
from softprune.budget.units import Units
from softprune.core.parametrization import inside_compiled
from softprune.core.rule import Match, Rule, matches, refuse_unmatched
from softprune.goals.base import Goal
from softprune.methods.base import Method, Total, generator
from softprune.methods.masks import share_out
from softprune.methods.transforms import Target, Transform
from softprune.ops import at_random
from softprune.structure.gates import IMPORTANCE, VECTOR, Importance
from softprune.structure.kinds import NamedSite, unit_kind

# First byte, the byte after the last, name and Parameter.
ByteRange: TypeAlias = tuple[int, int, str, nn.Parameter]


@dataclass(frozen=True, eq=False)
class PlannedTensor:
    """One tensor and what becomes of it; `method` and `transform` are None where it is left alone."""

    target: Target
    method: Method | None = None
    transform: Transform | None = None
    reason: str = ""
    rules: tuple[Rule, ...] = ()  # those that match it
    goal_of: int | None = None  # the index of its goal in `Plan.goals`
    kept: int | None = None  # weights that a mask of its own begins with


def choose(
    model: nn.Module, skip: Match | Iterable[Match], rules: Sequence[Rule], units: Units = Units.weight
) -> list[PlannedTensor]:
    """Every candidate of a model, in the order of the modules, without a method yet, and why some are left alone.

    Where the units are filters or blocks the model has gates, and the importances are candidates.
    """
    skips: list[Match] = [skip] if isinstance(skip, str | re.Pattern) or callable(skip) else list(skip)
    kind = unit_kind(units)
    default = kind.managed(model)
    unmatched: list[Match] = [*skips, *(r.match for r in rules)]
    chosen: list[PlannedTensor] = []
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
        reason = _reason(target, heard, skipped=bool(hit))
        chosen.append(PlannedTensor(target, rules=tuple(heard), reason=reason))
    if unmatched:
        refuse_unmatched(unmatched[0], candidates)
    return chosen


def managed_names(model: nn.Module, *, skip: Match | Iterable[Match] = (), rules: Sequence[Rule] = ()) -> list[str]:
    """The tensors that would be managed, whatever the method: those that a budget must name."""
    return [p.target.name for p in choose(model, skip, rules) if not p.reason]


def _reason(target: Target, rules: Sequence[Rule], *, skipped: bool) -> str:
    skip = next((r.skip for r in reversed(rules) if r.skip is not None), None)
    if skipped or skip:
        return "skipped"
    if target.managed:
        return ""
    raw = target.raw
    if not isinstance(raw, nn.UninitializedParameter) and not raw.requires_grad and skip is None:
        return "frozen (requires_grad is False)"
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return "" if raw.dtype in floats else f"dtype {raw.dtype}"


def _takes_in(rule: Rule, places: list[NamedSite]) -> bool:
    """Whether a rule manages a tensor that is not managed by default.

    Said of a layer as a whole, by its path or type, ``skip=False`` means its weights; its bias must be named.
    """
    if rule.skip is not False:
        return False
    by_name = isinstance(rule.match, str) and any(fnmatchcase(name, rule.match) for name, _, _ in places)
    whole = isinstance(rule.match, str | type) and not by_name
    return any(rule.matches(name, module) and not (whole and weight_names(module)) for name, module, _ in places)


def _all_places(model: nn.Module, computed: list[NamedSite]) -> Iterable[list[NamedSite]]:
    """The places of every plain Parameter, and of every computed weight (to refuse it by name)."""
    sites: dict[int, list[NamedSite]] = {}  # several places where weights are tied
    for path, module in model.named_modules():
        for tensor, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{path}.{tensor}" if path else tensor
                sites.setdefault(id(parameter), []).append((name, module, tensor))
    yield from (places for places in sites.values() if ".parametrizations." not in f".{places[0][0]}")
    yield from ([place] for place in computed)


def _layers_of(model: nn.Module, places: list[NamedSite]) -> list[NamedSite]:
    """The weights that an importance acts on: to a user the rule for a layer is about its units."""
    suffix = f".{IMPORTANCE}.{VECTOR}"
    # With a dot in front also where the model is itself the layer.
    paths = [f".{name}".removesuffix(suffix)[1:] for name, module, _ in places if isinstance(module, Importance)]
    return [(f"{path}.weight" if path else "weight", model.get_submodule(path), "weight") for path in paths]


# Refusals: what no transform could work on.


def refuse_model(model: nn.Module) -> nn.Module:
    """The module to work on (a compiled model's own module), or an error for one that must not be wrapped yet."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"sparsify works on a torch.nn.Module, got {type(model).__name__}")
    model = inside_compiled(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            "a TorchScript module cannot be changed any more: sparsify the Python module, script after bake()"
        )
    for path, module in model.named_modules():
        wrapper = type(module).__name__
        where = f"{path} is wrapped in {wrapper}, which" if path else wrapper
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise ValueError(
                f"{where} has already registered the parameters: sparsify the module first, then wrap it in {wrapper}"
            )
        if wrapper == "FullyShardedDataParallel":
            raise ValueError(
                f"{where} flattens the parameters: sparsify the module first and shard it with fully_shard (FSDP2)"
            )
    return model


def refuse_unfilled(target: Target, transform: Transform | None) -> None:
    """Raise if the state of a transform was chosen from weights that are not there, and nothing fills it later."""
    if target.raw.device.type != "meta" or transform is None:
        return
    if {name for name, _ in (*transform.named_parameters(), *transform.named_buffers())} - transform.first.keys():
        raise ValueError(
            f"{target.name} is on the meta device and has no weights to choose from: load the weights first"
        )


def refuse_tensor(target: Target, ranges: Sequence[ByteRange]) -> None:
    if target.managed:
        _refuse_computed(target)
    raw, name = target.raw, target.name
    for module, _ in target.sites:
        _refuse_module(module, name)
    if isinstance(raw, nn.UninitializedParameter):
        raise ValueError(f"{name} has no shape yet: run one forward pass through the lazy module, then sparsify")
    if type(raw).__name__ == "DTensor" or type(raw.data).__name__ == "DTensor":
        raise ValueError(f"{name} is sharded already: sparsify first, then call fully_shard")
    if raw.layout is not torch.strided:
        raise ValueError(f"{name} is stored sparsely ({raw.layout}): make it dense (.to_dense()) first")
    if raw.numel() == 0 or raw.ndim == 0:
        what = "is a single number" if raw.ndim == 0 else f"has no elements (shape {tuple(raw.shape)})"
        raise ValueError(f"{name} {what}: leave it out with skip=[{name!r}]")
    if raw.device.type == "meta":
        return
    if sharer := _sharer(raw, ranges):
        raise ValueError(
            f"{name} and {sharer} share memory but are different parameters: tie them by assigning the same "
            f"Parameter to both modules, or leave both out with skip=[{name!r}, {sharer!r}]"
        )
    if bad := int((~torch.isfinite(raw.detach())).sum()):
        raise ValueError(f"{name} has {bad} NaN or infinite weights of {raw.numel()}: start from finite weights")


def _refuse_computed(target: Target) -> None:
    """Raise for a weight that is not a Parameter of its module."""
    module, tensor, name = target.module, target.tensor, target.name
    if not parametrize.is_parametrized(module, tensor):
        raise ValueError(
            f"{name} is not a parameter (pruned by torch.nn.utils.prune, or normalised by hooks): "
            f"make it one first (prune.remove, remove_weight_norm), or leave it out with skip=[{name!r}]"
        )
    transforms = list(module.parametrizations[tensor])  # type: ignore[index,union-attr,arg-type]
    if isinstance(transforms[0], Transform):
        raise ValueError(f"{name} is sparsified already: call bake() or remove() first, or pass skip=[{name!r}]")
    kinds = ", ".join(type(t).__name__ for t in transforms)
    raise ValueError(
        f"{name} already has the parametrization {kinds}: remove it first "
        f"(torch.nn.utils.parametrize.remove_parametrizations), or leave it out with skip=[{name!r}]"
    )


def _refuse_module(module: nn.Module, name: str) -> None:
    """Raise for a module that does with its weight what no computed weight allows."""
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(
            f"{name} is in a TorchScript module, which cannot be changed any more: leave it out with skip=[{name!r}]"
        )
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return
    if module.max_norm is not None:
        raise ValueError(
            f"{name} belongs to an {type(module).__name__} with max_norm, which rescales its weight in place in every "
            f"forward pass: set max_norm=None, or leave it out with skip=[{name!r}]"
        )
    if module.sparse:
        raise ValueError(
            f"{name} belongs to an {type(module).__name__} with sparse=True, whose gradient is a sparse tensor: "
            f"set sparse=False, or leave it out with skip=[{name!r}]"
        )


def byte_ranges(model: nn.Module) -> list[ByteRange]:
    """Which bytes the parameters of a model occupy.

    Views of one buffer are common and harmless (cuDNN's recurrent layers keep all weights in one) as long as no byte
    belongs to two of them, so what counts is the range from first to last byte.
    """
    ranges = []
    for name, p in model.named_parameters():
        if isinstance(p, nn.UninitializedParameter) or is_traceable_wrapper_subclass(p):
            continue
        if p.device.type != "meta" and p.layout is torch.strided and p.numel() > 0:
            last = sum((n - 1) * stride for n, stride in zip(p.shape, p.stride(), strict=True))
            ranges.append((p.data_ptr(), p.data_ptr() + (last + 1) * p.element_size(), name, p))
    return ranges


def _sharer(raw: nn.Parameter, ranges: Sequence[ByteRange]) -> str | None:
    """The name of another Parameter that shares memory with this one."""
    start, end = next(((start, end) for start, end, _, p in ranges if p is raw), (0, 0))
    return next((name for a, b, name, p in ranges if p is not raw and a < end and start < b), None)


# What a method accepts as its total, and how a total is divided over tensors to begin with.


def refuse_total(method: Method, total: Total) -> None:
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
        if target.raw.device.type == "meta":
            raise ValueError(f"{name} is on the meta device and has no weights to choose from: load the weights first")
        mask = at_random(torch.ones_like(target.raw, dtype=torch.bool), kept[name], generator(seed, 0, name))
        made[name] = methods[name].transform(target, total, mask)
    return made
