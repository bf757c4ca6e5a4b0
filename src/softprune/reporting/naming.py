"""Short names for what a run did: its method with what distinguishes it, and its goal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from softprune.budget.counted import WEIGHT, noun
from softprune.reporting.counting import configured_units
from softprune.reporting.reading import known

# Methods that may also run without a goal: with one they do something else, which the name has to say.
_GOAL_OPTIONAL = ("str", "autosparse", "vd")
# Where a method ranks all weights together unless it is given a budget, and both are usual.
_GLOBAL = ("gmp",)


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part of a configuration; empty if it is missing, null or a plain value."""
    found = config.get(key)
    return found if isinstance(found, Mapping) else {}


def method_name(config: Mapping[str, Any]) -> str:
    """The method, such as "str"; "dense" without one."""
    method = config.get("method")
    if isinstance(method, str):
        return method
    return str(section(config, "method").get("name") or "dense")


def model_name(config: Mapping[str, Any], key: str = "model") -> str:
    """The name of the model, or of the data."""
    named = config.get(key)
    return named if isinstance(named, str) else str(section(config, key).get("name") or "")


def label(config: Mapping[str, Any]) -> str:
    """The method with what distinguishes it: budget, units, granularity, kind of goal, trained start.

    Example:
        >>> label({"method": {"name": "gmp"}, "goal": {"sparsity": 0.9, "budget": "uniform"}})
        'gmp uniform'
        >>> label({"method": {"name": "str", "granularity": "filter"}, "goal": {"flops": 330554}})
        'str goal, filter, flops'
        >>> label({"method": {"name": "str"}, "units": {"kind": "rank"}, "goal": {"rank": 8}})
        'str goal, directions'
    """
    name = method_name(config)
    goal, method = section(config, "goal"), section(config, "method")
    budget = str(goal.get("budget") or "")
    words = name
    if budget:
        words += f" {PurePath(budget).name.removesuffix('.json').removesuffix('.csv') or budget}"
    elif config.get("goal") is not None and name in _GLOBAL:
        words += " global"
    elif config.get("goal") is not None and name in _GOAL_OPTIONAL:
        words += " goal"
    units = configured_units(config)
    more = [
        "" if units == WEIGHT else units if " " in units else noun(units),
        str(method["granularity"]) if method.get("granularity") not in (None, "tensor") else "",
        "flops" if goal.get("flops") is not None else "",
        "latency" if goal.get("latency") is not None else "",
        "all parameters" if goal.get("scope") == "all" else "",
        "fine-tuned" if section(config, "model").get("weights") else "",
    ]
    return ", ".join([words, *(word for word in more if word)])


def goal_text(config: Mapping[str, Any]) -> str:
    """What the run shall end with, in words; empty without a goal.

    Example:
        >>> goal_text({"goal": {"sparsity": 0.9023}}), goal_text({"goal": {"flops": 330554}})
        ('90.23 % sparsity', '330,554 multiply-adds')
        >>> goal_text({"goal": {"latency": {"ms": 3.5}}})
        '3.5 ms'
        >>> goal_text({"units": "filter", "goal": {"sparsity": 0.5}}), goal_text({"goal": {"rank": {"w": 9, "u": 8}}})
        ('50 % sparsity of the filters', 'rank w 9, u 8')
    """
    goal = section(config, "goal")
    share = known(config.get("goal") if not goal else goal.get("sparsity"))
    units = configured_units(config)
    scope = " of all parameters" if goal.get("scope") == "all" else ""
    if share is not None:
        of = f" of the {noun(units)}" if units != WEIGHT else scope
        return f"{round(100 * share, 6):g} % sparsity{of}"
    if (kept := known(goal.get("params"))) is not None:
        return f"{kept:,.0f} {'parameters' if scope or units != WEIGHT else 'weights'}"
    if (macs := known(goal.get("flops"))) is not None:
        return f"{macs:,.0f} multiply-adds"
    if (ms := known(section(goal, "latency").get("ms"))) is not None:
        return f"{ms:g} ms"
    if (rank := goal.get("rank")) is not None:
        each = [f"{name} {count}" for name, count in rank.items()] if isinstance(rank, Mapping) else [f"{rank}"]
        return f"rank {', '.join(each)}"
    return f"budget {goal['budget']}" if goal.get("budget") else ""
