"""What runs differ in, by the keys of their configurations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from softprune.reporting.naming import section
from softprune.reporting.run import Run

# What does not change what a run learns, or is compared anyway: seeds are averaged, goals are levels.
_IGNORED = ("seed", "name", "summary", "version", "threads", "compile", "channels_last", "accumulate", "evaluate_every")
_IGNORED_PARTS = ("log.", "checkpoint.", "expected.", "distributed.", "goal.latency.", "goal.rank.")
_IGNORED_KEYS = (
    "data.root",
    "data.workers",
    "model.weights",
    "goal.sparsity",
    "goal.params",
    "goal.flops",
    "goal.rank",
    "goal",
)
# What sets how sparse a run without a goal becomes: values of these are levels.
_KNOBS = ("propose.push", "propose.onset", "method.s_init", "optimizer.threshold_decay", "optimizer.weight_decay")


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


def setting(run: Run) -> str:
    """What makes two runs a question of the same network on the same data: equal texts mean yes."""
    model, data = run.config.get("model"), run.config.get("data")
    kept = [
        {k: v for k, v in part.items() if k not in ("root", "workers", "weights")}
        if isinstance(part, Mapping)
        else part
        for part in (model, data)
    ]
    return json.dumps(kept, default=str, sort_keys=True)


def settings_differ(run: Run) -> dict[str, str]:
    """The keys of model and data of a run, to say what sections differ in."""
    return {k: v for k, v in flat(run.config).items() if k.partition(".")[0] in ("model", "data") and _matters(k)}


def knobs(run: Run) -> tuple[tuple[str, str], ...]:
    """What sets how sparse a run becomes; empty where a goal does."""
    if section(run.config, "goal") or run.method == "dense":
        return ()
    values = flat(run.config)
    return tuple((key, values[key]) for key in _KNOBS if key in values)


def traits(run: Run) -> dict[str, str]:
    """What a run can differ in from another of its label and level, if both are not just other seeds."""
    left_out = {key for key, _ in knobs(run)}
    if section(run.config, "goal"):
        left_out |= {"propose.push", "propose.onset", "method.s_init"}
    return {key: value for key, value in flat(run.config).items() if _matters(key) and key not in left_out}


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
    return key not in _IGNORED and key not in _IGNORED_KEYS and not key.startswith(_IGNORED_PARTS)
