"""Rules: what a user says about some of the tensors."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from torch import nn

from softprune.goals.base import Goal
from softprune.methods.base import Method
from softprune.ops import G

# A glob on the tensor's or its module's path, a compiled regular expression searched in the tensor's
# path, a module type, or a predicate on (tensor path, module).
Match: TypeAlias = str | re.Pattern[str] | type[nn.Module] | Callable[[str, nn.Module], bool]


# Fields of a rule that are not settings of the method.
_NOT_SETTINGS = ("match", "skip", "goal")


@dataclass(frozen=True)
class Rule:
    """Settings for the tensors that match; what is left at None stays as it is.

    Rules apply in order and a later one overrides an earlier one. ``skip=False`` also takes in a tensor
    that is not managed by default, such as a parameter of your own module; the bias of a layer only if the
    match is on its full name.

    >>> first_layer_dense = Rule("conv1", skip=True)
    >>> gentler_depthwise = Rule(lambda name, module: getattr(module, "groups", 1) > 1, s_init=-6400.0)
    """

    match: Match  # glob, compiled regular expression, module type, or predicate on (name, module)
    skip: bool | None = None  # True leaves the tensors alone, False manages them
    s_init: float | None = None  # where their s starts
    g: G | None = None  # their threshold function
    granularity: Literal["tensor", "filter", "weight", "global"] | None = None
    min_keep: int | None = None  # the least number of weights that each keeps
    goal: Goal | None = None  # a total of their own, shared by the tensors of this rule

    def matches(self, name: str, module: nn.Module) -> bool:
        return matches(self.match, name, module)

    def refine(self, method: Method) -> Method:
        """The method with this rule's settings."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in _NOT_SETTINGS}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        known = {f.name for f in dataclasses.fields(method)}  # type: ignore[arg-type]
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ValueError(f"{describe(self.match)} sets {', '.join(unknown)}, which {type(method).__name__} has not")
        return dataclasses.replace(method, **changes)  # type: ignore[type-var]


def matches(match: Match, name: str, module: nn.Module) -> bool:
    if isinstance(match, str):
        path = name.rpartition(".")[0]
        return fnmatchcase(name, match) or fnmatchcase(path, match)
    if isinstance(match, re.Pattern):
        return match.search(name) is not None
    if isinstance(match, type):
        return isinstance(module, match)
    return bool(match(name, module))


def describe(match: Match) -> str:
    if isinstance(match, re.Pattern):
        return f"the rule r{match.pattern!r}"
    return f"the rule {match!r}" if isinstance(match, str) else f"the rule {getattr(match, '__name__', match)}"


def refuse_unmatched(match: Match, names: Iterable[str]) -> None:
    """Every rule must mean something: raise for one that matched nothing, with the nearest names."""
    names = list(names)
    hint = ""
    if isinstance(match, str):
        near = get_close_matches(match, [*names, *(n.rpartition(".")[0] for n in names)], n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    raise ValueError(
        f"{describe(match)} matches no tensor that could be managed{hint or '.'} These are {shown or 'none'}; "
        "a parameter of another kind is taken in by Rule(..., skip=False)"
    )
