"""A configuration in short words: its method, goal and units; and what two configurations differ in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from softprune.budget.units import USUAL, checked_units, unit_words
from softprune.goals.base import Goal
from softprune.goals.goal import GOALS
from softprune.reporting.reading import mapping

# Methods that may also run without a goal; with one they do something else, so their label says it.
_GOAL_OPTIONAL = ("str", "autosparse", "vd")
# Methods that rank all weights together unless they are given a budget, where both are usual.
_GLOBAL = ("gmp",)
# Settings that do not change what a run learns, or are compared anyway: seeds are averaged, goals are levels.
_IGNORED = (
    *("seed", "name", "summary", "version", "threads", "compile", "channels_last", "accumulate", "evaluate_every"),
    *("data.root", "data.workers", "model.weights"),
    *("goal", "goal.sparsity", "goal.params", "goal.flops", "goal.rank"),
)
_IGNORED_PARTS = ("log.", "checkpoint.", "expected.", "distributed.", "goal.latency.", "goal.rank.")
# Settings that decide how sparse a run without a goal becomes: values of these are levels.
_KNOBS = ("propose.push", "propose.onset", "method.s_init", "optimizer.threshold_decay", "optimizer.weight_decay")


def configured_units(config: Mapping[str, Any]) -> str:
    """What is kept or pruned as a whole, in the words of a budget; weights if the configuration names nothing.

    Example:
        >>> configured_units({"units": "filter"}), configured_units({"units": {"block": [4, 8]}})
        ('filter', 'block 4x8')
    """
    given = config.get("units")
    if isinstance(given, Mapping):
        block = given.get("block")
        given = f"block {'x'.join(map(str, block))}" if isinstance(block, list) else given.get("kind")
    try:
        return checked_units(given, origin="config")
    except ValueError:
        return USUAL


def part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part of a configuration; empty if it is missing, null or a plain value."""
    return mapping(config.get(key))


def name_of(config: Mapping[str, Any], key: str) -> str:
    """The name of the method, the model or the data; empty without one."""
    named = config.get(key)
    return named if isinstance(named, str) else str(part(config, key).get("name") or "")


def method_name(config: Mapping[str, Any]) -> str:
    return name_of(config, "method") or "dense"


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
    goal, method = part(config, "goal"), part(config, "method")
    budget = str(goal.get("budget") or "")
    words = name
    if budget:
        words += f" {PurePath(budget).name.removesuffix('.json').removesuffix('.csv') or budget}"
    elif config.get("goal") is not None and name in _GLOBAL:
        words += " global"
    elif config.get("goal") is not None and name in _GOAL_OPTIONAL:
        words += " goal"
    units = configured_units(config)
    counted = unit_words(units)
    more = [
        "" if not counted.importances else units if counted.sized else counted.plural,
        str(method["granularity"]) if method.get("granularity") not in (None, "tensor") else "",
        *(kind.mark for key, kind in GOALS.items() if goal.get(key) is not None),
        "all parameters" if goal.get("scope") == "all" else "",
        "fine-tuned" if part(config, "model").get("weights") else "",
    ]
    return ", ".join([words, *(word for word in more if word)])


def goal_text(config: Mapping[str, Any]) -> str:
    """The goal in words; empty without one.

    Example:
        >>> goal_text({"goal": {"sparsity": 0.9023}}), goal_text({"goal": {"flops": 330554}})
        ('90.23 % sparsity', '330,554 multiply-adds')
        >>> goal_text({"goal": {"latency": {"ms": 3.5}}})
        '3.5 ms'
        >>> goal_text({"units": "filter", "goal": {"sparsity": 0.5}}), goal_text({"goal": {"rank": {"w": 9, "u": 8}}})
        ('50 % sparsity of the filters', 'rank w 9, u 8')
    """
    goal, words = part(config, "goal"), unit_words(configured_units(config))
    given = goal or {"sparsity": config.get("goal")}
    asked = ((kind, given[key]) for key, kind in GOALS.items() if given.get(key) is not None)
    texts = (kind.described(value, words, given.get("scope")) for kind, value in asked)
    return next(filter(None, texts), f"budget {goal['budget']}" if goal.get("budget") else "")


def configured_goal(config: Mapping[str, Any]) -> tuple[type[Goal], float] | None:
    """The kind of a run's goal and its number; None without a goal, or for one that is not a single number."""
    goal = part(config, "goal")
    found = ((kind, kind.number_in(goal[key])) for key, kind in GOALS.items() if key in goal)
    return next(((kind, number) for kind, number in found if number is not None), None)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A configuration by dotted keys, with values as JSON.

    Example:
        >>> flat({"optimizer": {"lr": 0.1}, "seed": 0})
        {'optimizer.lr': '0.1', 'seed': '0'}
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = json.dumps(value, default=str, sort_keys=True)
    return found


def model_and_data(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings of model and data by dotted key: runs in which they are equal can be compared."""
    return {k: v for k, v in flat(config).items() if k.partition(".")[0] in ("model", "data") and _matters(k)}


def knobs(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The settings that decide how sparse a run becomes; empty where a goal does."""
    if part(config, "goal") or method_name(config) == "dense":
        return ()
    values = flat(config)
    return tuple((key, values[key]) for key in _KNOBS if key in values)


def traits(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings in which runs of one label and level may differ beside their seeds."""
    left_out = {key for key, _ in knobs(config)}
    if part(config, "goal"):
        left_out |= {"propose.push", "propose.onset", "method.s_init"}
    return {key: value for key, value in flat(config).items() if _matters(key) and key not in left_out}


def varying(many: Iterable[Mapping[str, str]]) -> list[str]:
    """The keys whose value is not the same in all of them.

    Example:
        >>> varying([{"a": "1", "b": "2"}, {"a": "1", "b": "3"}])
        ['b']
    """
    rows = list(many)
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if len({row.get(key) for row in rows}) > 1]


def _matters(key: str) -> bool:
    return key not in _IGNORED and not key.startswith(_IGNORED_PARTS)
